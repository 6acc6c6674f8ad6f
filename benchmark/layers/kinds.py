"""The declaration of a layer by `known`: its constructor's arguments and its global Lipschitz constant in training.

Descriptions of networks (description.py) hold the arguments. certificates/bounds has the proven bounds.

Arguments are read from attributes that the constructor sets, or from shapes of parameters. Those that only set initial
parameters are left out, because the description holds the parameters. A check returns the argument as the constructor takes
it, or raises a ValueError that says what it should be: descriptions are untrusted.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from benchmark.layers.convolution_matrices import check_convolution, convolution_upper
from benchmark.runtime.errors import BenchmarkError

Check = Callable[[Any], Any]
Layer = TypeVar("Layer", bound=type[nn.Module])

LARGEST_SIZE = 2**20
LARGEST_NUMBER = 2.0**127  # about the largest float32
SMALLEST_NUMBER = 2.0**-126  # below it float32 loses digits
LONGEST = 64  # entries of a list
# The largest |slope| of GELU by `approximate`, rounded up. The first is Phi(2^.5) + 2^.5 phi(2^.5).
GELU_SLOPE = {"none": 1.1289042, "tanh": 1.1289931}


@dataclass(frozen=True)
class Argument:
    """An argument of a layer's constructor: its check, and how to read it from a layer."""

    check: Check
    read: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class LinearMap:
    """One or several linear maps of equal shape, read from the layer's weights at each use.

    `run` maps vectors of `shape` (maps, *inputs), float32, to (maps, *outputs), without a bias. `upper` returns upper
    bounds of the norms, (maps,) float64.
    """

    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    upper: Callable[[], Tensor]


@dataclass(frozen=True)
class Constant:
    """A layer's Lipschitz constant: `of` computes it, (), from the norms of `maps` in order, (maps,) each."""

    maps: tuple[LinearMap, ...]
    of: Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Kind:
    """The declaration of one layer.

    `parts` says which layers it contains: "" for none, "body" for one that is the constructor's first argument, "sequence"
    for any number. `constant` is the Lipschitz constant, or a function of the layer and an input (1, *shape) whose shape
    alone counts; None if training has none. `make` builds the layer: its constructor, unless `known` was given another.
    """

    layer: type[nn.Module]
    arguments: Mapping[str, Argument]
    parts: str
    constant: float | Callable[[Any, Tensor], float | Constant] | None
    make: Callable[..., nn.Module]


BY_NAME: dict[str, Kind] = {}
BY_TYPE: dict[type[nn.Module], Kind] = {}


def known(
    parts: str = "",
    /,
    *,
    constant: float | Callable[[Any, Tensor], float | Constant] | None = None,
    make: Callable[..., nn.Module] | None = None,
    **arguments: Check | Argument,
) -> Callable[[Layer], Layer]:
    """Decorate a layer's class to declare it. A bare check is of the attribute with the argument's name. `make` builds the
    layer from its arguments, where its constructor does not.
    """
    full = {
        name: argument if isinstance(argument, Argument) else Argument(argument, attrgetter(name))
        for name, argument in arguments.items()
    }

    def register(layer: Layer) -> Layer:
        if layer.__name__ in BY_NAME:
            raise ValueError(f"two layers are called {layer.__name__}, and descriptions know them by name")
        BY_NAME[layer.__name__] = BY_TYPE[layer] = Kind(layer, full, parts, constant, make or layer)
        return layer

    return register


def whole(least: int, most: int = LARGEST_SIZE) -> Check:
    """Return a check of an argument: a whole number from `least` to `most`."""

    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"should be a whole number from {least} to {most}")
        return value

    return check


def wholes(least: int, most: int = LARGEST_SIZE, *, many: int | None = None) -> Check:
    """Return a check of an argument: a list of `many` whole numbers, or of 1 to LONGEST of them if `many` is None."""
    entry = whole(least, most)

    def check(value: Any) -> tuple[int, ...]:
        if type(value) is not list or not 1 <= len(value) <= LONGEST or (many and len(value) != many):
            raise ValueError(f"should be a list of {many or f'1 to {LONGEST}'} whole numbers")
        return tuple(entry(part) for part in value)

    return check


def number(value: Any) -> float:
    """Check a finite number that float32 holds."""
    if type(value) not in (int, float) or not abs(value) <= LARGEST_NUMBER:  # a NaN too
        raise ValueError("should be a finite number that float32 holds")
    return value


def positive(value: Any) -> float:
    if not number(value) >= SMALLEST_NUMBER:
        raise ValueError("should be positive, and at least 2^-126, float32's smallest")
    return value


def checked(name: str, check: Check, value: Any) -> Any:
    """Return what a check returns; its ValueError names the argument and the value."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{name} {shown(value)} {error}") from None


def truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("should be true or false")
    return value


def one_of(*options: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or value not in options:
            raise ValueError(f"should be one of {', '.join(options)}")
        return value

    return check


def side(parameter: str, axis: int) -> Argument:
    """Declare a size that is the length of a parameter's axis."""
    return Argument(whole(1), lambda layer: attrgetter(parameter)(layer).shape[axis])


def at_least(least: float, attribute: str) -> Argument:
    """Declare a number that the layer rounds to float32, which may fall below the least that its constructor takes."""
    return Argument(positive, lambda layer: max(attrgetter(attribute)(layer), least))


BIAS = Argument(truth, lambda layer: layer.bias is not None)
PAIR = wholes(1, 1024, many=2)


def shown(value: Any) -> str:
    """Return an untrusted value in a few characters, without line breaks."""
    if type(value) is int and value.bit_length() > 100:
        return "of more than 30 digits"  # Python refuses to print thousands of digits
    return " ".join(reprlib.repr(value).split())[:60]


def layer_constants(layers: Iterable[nn.Module], x: Tensor) -> list[Constant]:
    """Return the constants of layers in order; the first layer gets inputs of the shape of x (1, *shape).

    Raises:
        BenchmarkError: the exact type of a layer has no constant.
    """
    constants = []
    with torch.no_grad():
        for layer in layers:
            constants.append(_constant(layer, x))
            x = layer(x.clone())  # an activation may work in place
    return constants


def _constant(layer: nn.Module, x: Tensor) -> Constant:
    name, kind = type(layer).__name__, BY_TYPE.get(type(layer))
    if name == "LayerNorm":
        raise BenchmarkError(
            "LayerNorm has a global Lipschitz constant of up to 1/sqrt(eps), too large to train with; use LayerProject"
        )
    if name in DOT_PRODUCTS:
        raise BenchmarkError(f"{name} has no global Lipschitz constant (Kim et al. 2021); use L2Attention")
    if kind is None or kind.constant is None:
        raise BenchmarkError(f"no global Lipschitz constant is known in training for the layer {name}")
    value = kind.constant(layer, x) if callable(kind.constant) else float(kind.constant)
    return value if isinstance(value, Constant) else Constant((), lambda norms: torch.tensor(value))


DOT_PRODUCTS = (
    "SelfAttention", "ResidualAttention", "ReleasedL2Attention", "DotProductWindowAttention", "MultiheadAttention",
)  # fmt: skip


def matrices(read: Callable[[], Tensor]) -> LinearMap:
    """Return the maps v -> v M for matrices M (maps, rows, columns) that are read at each use."""
    return LinearMap(
        lambda v: (v[:, None] @ read().float())[:, 0],
        tuple(read().shape[:2]),
        lambda: torch.linalg.matrix_norm(read().detach().double(), ord=2),
    )


def linear_constant(layer: Any, x: Tensor) -> Constant:
    """Return the norm of a layer's `weight` (outputs, inputs), which acts on each token."""
    return Constant((matrices(lambda: layer.weight.mT[None]),), lambda norms: norms[0][0])


def _convolution_constant(layer: nn.Conv2d, x: Tensor) -> Constant:
    check_convolution(layer)
    height, width = x.shape[2:]
    convolution = LinearMap(
        lambda v: layer._conv_forward(v, layer.weight.float(), None),
        tuple(x.shape),
        lambda: convolution_upper(layer, height, width)[None],
    )
    return Constant((convolution,), lambda norms: norms[0][0])


def _sequence_constant(layer: nn.Sequential, x: Tensor) -> Constant:
    parts = layer_constants(layer, x)

    def constant(norms: Sequence[Tensor]) -> Tensor:
        left = iter(norms)
        return product([part.of(list(islice(left, len(part.maps)))) for part in parts])

    return Constant(tuple(linear_map for part in parts for linear_map in part.maps), constant)


def product(constants: Sequence[Tensor]) -> Tensor:
    """Return the product, (), on the device of the constants."""
    return math.prod(constants, start=torch.ones(()))


def _padding(value: Any) -> Any:
    return one_of("same", "valid")(value) if type(value) is str else wholes(0, 64, many=2)(value)


# PyTorch's own layers
known("sequence", constant=_sequence_constant)(nn.Sequential)
known(in_features=whole(1), out_features=whole(1), bias=BIAS, constant=linear_constant)(nn.Linear)
known(
    in_channels=whole(1), out_channels=whole(1), kernel_size=PAIR, stride=PAIR, padding=_padding, dilation=PAIR,
    groups=whole(1), bias=BIAS, padding_mode=one_of("zeros", "reflect", "replicate", "circular"),
    constant=_convolution_constant,
)(nn.Conv2d)  # fmt: skip
known(inplace=truth, constant=1.0)(nn.ReLU)
known(negative_slope=number, inplace=truth)(nn.LeakyReLU)
known(approximate=one_of("none", "tanh"), constant=lambda layer, _: GELU_SLOPE[layer.approximate])(nn.GELU)
known()(nn.Tanh)
known()(nn.Sigmoid)
known(beta=number, threshold=number)(nn.Softplus)
known(normalized_shape=wholes(1), eps=number, elementwise_affine=truth, bias=BIAS)(nn.LayerNorm)
known(start_dim=whole(-16, 16), end_dim=whole(-16, 16), constant=1.0)(nn.Flatten)
known(constant=1.0)(nn.Identity)
known(p=number, inplace=truth)(nn.Dropout)
