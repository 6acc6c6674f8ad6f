"""torch's functions of a tensor's elements give under portable arithmetic what numpy gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmark.runtime import vector_functions
from benchmark.runtime.vector_functions import FUNCTIONS

vector_functions.mend()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(200, 33, generator=torch.Generator().manual_seed(0)) * 0.99 + 1e-3


def exact(x: torch.Tensor) -> torch.Tensor:
    """The nearest float32 to each root: float64's has more than twice the digits, so that rounding twice is exact."""
    return torch.from_numpy(np.sqrt(x.double().numpy()).astype(np.float32))


def test_every_way_to_a_root_gives_the_nearest_float(x) -> None:
    roots = {
        "function": torch.sqrt(x),
        "power": x**0.5,
        "in place": x.clone().sqrt_(),
        "power in place": x.clone().pow_(0.5),
        "out": torch.sqrt(x, out=torch.empty(0)),
        "power out": torch.pow(x, 0.5, out=torch.empty_like(x)),
        "of a list": torch._foreach_sqrt([x])[0],
        "transposed": x.mT.sqrt().mT,
        "vmapped": torch.vmap(torch.sqrt)(x),
    }
    wrong = [name for name, found in roots.items() if not torch.equal(found, exact(x))]
    assert not wrong


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_are_numpys_where_mkl_approximates(name, dtype, x) -> None:
    function, dtypes = FUNCTIONS[name]
    found = getattr(torch, name)(x.to(dtype))
    expected = torch.from_numpy(function(x.to(dtype).numpy()))
    if dtype in dtypes:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected)


def test_gradients_pass(x) -> None:
    x.requires_grad_()
    x.sqrt().sum().backward()
    torch.testing.assert_close(x.grad, 0.5 / x.detach().sqrt())


def test_other_types_and_values_are_torchs() -> None:
    assert torch.equal(torch.tensor([1, 4]).sqrt(), torch.tensor([1.0, 2.0]))
    assert torch.equal(
        torch.tensor([-1.0, 0.0, torch.inf]).sqrt().nan_to_num(7), torch.tensor([7.0, 0.0, torch.inf]).nan_to_num(7)
    )
    assert torch.tensor([4.0], dtype=torch.float16).sqrt().item() == 2
    assert torch.tensor([-1 + 0j]).sqrt().item() == 1j
    assert (torch.tensor([3.0]) ** 2).item() == 9
    assert torch.empty(3, device="meta").sqrt().device.type == "meta"
