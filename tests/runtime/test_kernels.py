"""Under portable arithmetic torch's roots, functions and matrix products are numpy's, to the bit, by every way to them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmark.runtime import arithmetic, kernels

pytestmark = pytest.mark.skipif(arithmetic.in_force() == "native", reason="native arithmetic keeps torch's own kernels")
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_numpy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))


def wrong(ways: dict[str, torch.Tensor], expected: torch.Tensor) -> list[str]:
    return [name for name, result in ways.items() if not torch.equal(result, expected)]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(200, 33, generator=torch.Generator().manual_seed(0)) * 0.99 + 1e-3


def test_every_way_to_a_root_gives_the_nearest_float(x) -> None:
    ways = {
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
    # float64's root has more than twice the digits, so that rounding twice is exact
    assert wrong(ways, torch.from_numpy(np.sqrt(x.double().numpy()).astype(np.float32))) == []


@pytest.mark.parametrize("name", kernels.FUNCTIONS)
@BOTH
def test_functions_are_numpys_where_mkl_approximates(name, dtype, x) -> None:
    function, dtypes = kernels.FUNCTIONS[name]
    result = getattr(torch, name)(x.to(dtype))
    expected = torch.from_numpy(function(x.to(dtype).numpy()))
    if dtype in dtypes:
        assert torch.equal(result, expected)
    torch.testing.assert_close(result, expected)


def test_roots_of_other_types_and_values_are_torchs_and_gradients_pass(x) -> None:
    assert torch.equal(torch.tensor([1, 4]).sqrt(), torch.tensor([1.0, 2.0]))
    roots = torch.tensor([-1.0, 0.0, torch.inf]).sqrt()
    assert torch.equal(roots.nan_to_num(7), torch.tensor([7.0, 0.0, torch.inf]).nan_to_num(7))
    assert torch.tensor([4.0], dtype=torch.float16).sqrt().item() == 2
    assert torch.tensor([-1 + 0j]).sqrt().item() == 1j
    assert (torch.tensor([3.0]) ** 2).item() == 9
    assert torch.empty(3, device="meta").sqrt().device.type == "meta"
    x.requires_grad_().sqrt().sum().backward()
    torch.testing.assert_close(x.grad, 0.5 / x.detach().sqrt())


@BOTH
def test_every_way_to_a_product_is_numpys(dtype) -> None:
    a, b, zero = drawn(36, 20, dtype=dtype), drawn(20, 17, dtype=dtype, seed=1), torch.zeros(36, 17, dtype=dtype)
    ways = {
        "function": torch.mm(a, b),
        "operator": a @ b,
        "out": torch.mm(a, b, out=torch.empty(0, dtype=dtype)),
        "out in columns": torch.mm(a, b, out=torch.empty(17, 36, dtype=dtype).mT),
        "added": torch.addmm(zero, a, b),
        "added in place": zero.clone().addmm_(a, b),
        "added into out": torch.addmm(zero, a, b, out=torch.empty(36, 17, dtype=dtype)),
        "added by a factor of nothing": torch.addmm(torch.full_like(zero, torch.nan), a, b, beta=0),
        "linear layer": functional.linear(a, b.mT),
        "by columns": a.mT.contiguous().mT @ b,
        "not in one piece": torch.stack((a, a), 2)[..., 0] @ b,
        "negated view": -(torch._neg_view(a) @ b),
        "einsum": torch.einsum("ij,jk->ik", a, b),
    }
    assert wrong(ways, by_numpy(a, b)) == []


@BOTH
def test_batches_of_products_are_numpys(dtype) -> None:
    a, b = drawn(6, 5, 20, dtype=dtype), drawn(6, 20, 7, dtype=dtype, seed=1)
    zero = torch.zeros(6, 5, 7, dtype=dtype)
    ways = {
        "function": torch.bmm(a, b),
        "operator": a @ b,
        "out": torch.bmm(a, b, out=torch.empty(0, dtype=dtype)),
        "added": torch.baddbmm(zero, a, b),
        "added in place": zero.clone().baddbmm_(a, b),
        "added into out": torch.baddbmm(zero, a, b, out=torch.empty_like(zero)),
        "vmapped": torch.vmap(torch.mm)(a, b),
        "einsum": torch.einsum("nij,njk->nik", a, b),
    }
    assert wrong(ways, by_numpy(a, b)) == []
    wide = b[:1].expand(6, -1, -1)  # the same matrix for all
    assert torch.equal(a @ wide, by_numpy(a, wide))


def test_factors_count_as_torch_has_them() -> None:
    added, a, b = drawn(4, 3), drawn(4, 5, seed=1), drawn(5, 3, seed=2)
    expected = 0.5 * added.double() - 2 * (a.double() @ b.double())
    torch.testing.assert_close(torch.addmm(added, a, b, beta=0.5, alpha=-2).double(), expected, rtol=1e-5, atol=1e-5)
    row = torch.addmm(added[0], a, b)  # a bias, the same for all rows
    torch.testing.assert_close(row, added[0] + a @ b, rtol=0, atol=0)


def test_the_error_is_within_the_bound_of_any_order_of_summation() -> None:
    """|fl(ab) - ab| <= k u / (1 - k u) |a| |b|, which certificates count on (bounds/rounding.py)."""
    unit = torch.finfo(torch.float32).eps / 2
    for terms in (1, 8, 129, 1000, 4097):
        a, b = drawn(40, terms), drawn(terms, 24, seed=1)
        share = terms * unit / (1 - terms * unit)
        error = ((a @ b).double() - a.double() @ b.double()).abs()
        assert (error <= share * (a.abs().double() @ b.abs().double())).all()


def test_gradients_and_their_batches_pass() -> None:
    layer, x = torch.nn.Linear(6, 4).double(), drawn(3, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: layer(y).sin(), x)
    slope = torch.autograd.grad(layer(x).sum(), x)[0]  # of a gradient whose entries are one number
    torch.testing.assert_close(slope, layer.weight.detach().sum(0).expand(3, -1))
    jacobian = torch.func.jacrev(lambda y: layer(y))(x[0].detach())
    torch.testing.assert_close(jacobian, layer.weight.detach())
    rows = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 3, 4)
    batched = torch.autograd.grad(layer(x), x, rows, is_grads_batched=True)[0]
    torch.testing.assert_close(batched[:, 0], layer.weight.detach())


def test_what_is_no_product_of_float_matrices_is_torchs() -> None:
    ones = torch.ones(2, 3, dtype=torch.int64)
    assert (ones @ ones.mT).tolist() == [[3, 3], [3, 3]]
    assert (torch.zeros(2, 0) @ torch.zeros(0, 3)).tolist() == [[0.0] * 3] * 2
    assert torch.addmm(torch.ones(2, 3), torch.zeros(2, 0), torch.zeros(0, 3)).tolist() == [[1.0] * 3] * 2
    assert (torch.zeros(0, 2) @ torch.zeros(2, 3)).shape == (0, 3)
    half = drawn(4, 4).bfloat16()
    torch.testing.assert_close(half @ half, (half.float() @ half.float()).bfloat16(), rtol=0.02, atol=0.05)
    sparse = torch.eye(3).to_sparse()
    torch.testing.assert_close(torch.sparse.mm(sparse, drawn(3, 2)), drawn(3, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(torch.ones(2, 3), torch.ones(3, 2).double())
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.addmm(drawn(4, 3, dtype=torch.float64), drawn(4, 5), drawn(5, 3))


def test_infinity_and_nan_multiply_without_a_warning() -> None:
    a = torch.tensor([[torch.inf, 1.0], [torch.nan, 1e38]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product = a @ torch.tensor([[0.0], [1e38]])
    assert product.isnan().all()


def test_native_arithmetic_keeps_torchs_own(monkeypatch) -> None:
    monkeypatch.setattr(arithmetic, "in_force", lambda: "native")
    monkeypatch.setattr(kernels, "_registered", [])
    kernels.replace()
    assert not kernels._registered
