"""Small networks that can be certified, and what a careless or hostile owner may do to one: `mutated`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from ball_search import breaks
from torch import nn

from benchmark.certificates import box_lipschitz, lipschitz, local, published
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.derived import DerivedWeight, cache_weights
from benchmark.layers.description import describe, rebuild
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError

Mutation = tuple[str, int, int]  # which, where, how
Mutate = Callable[[nn.Sequential, int, int], object]


def attends() -> list[nn.Module]:
    mixed = (LayerProject(1.0), ResidualAttention(4, 2, qk_norm=2.0, vo_norm=0.5), SLLBlock(4, 6))
    return [Normalise(), Patchify(2), BoundedLinear(4, 4), Positions(4, 4), *mixed, MeanPool(), NormalisedHead(4, 3)]


def vit() -> list[nn.Module]:
    mlp = Residual(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)))
    mixed = (Residual(nn.Sequential(nn.LayerNorm(4), SelfAttention(4, 2, scale=0.5))), mlp)
    return [Patchify(2), nn.Linear(4, 4), ClassToken(4), Positions(5, 4), *mixed, TakeToken(), nn.Linear(4, 3)]


def distances() -> list[nn.Module]:
    mixed = (LayerProject(2.0), Residual(L2Attention(4, 2)), SmoothSLLBlock(4, 6, bend=0.1))
    return [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 4), *mixed, MeanPool(), NormalisedHead(4, 3)]


def cosines() -> list[nn.Module]:
    mixed = WeightedResidual(nn.Sequential(CenterNorm(4), ScaledCosineAttention(4, 2, eps=0.1)), 4)
    window = L2WindowAttention(4, 2, side=2, window=1, shift=0)
    return [Patchify(2), nn.Linear(4, 4), mixed, window, nn.Flatten(), nn.Linear(16, 3)]


def convolves() -> list[nn.Module]:
    first = (nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 4, stride=2, padding=1), ClippedReLU((4, 2, 2)))
    return [*first, nn.Flatten(), nn.Linear(16, 3)]


def bends() -> list[nn.Module]:
    first = (nn.Flatten(), nn.Linear(16, 6), nn.Softplus(), nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5))
    return [*first, nn.LeakyReLU(0.1), nn.Linear(5, 4), nn.Sigmoid(), nn.GELU(approximate="tanh"), nn.Linear(4, 3)]


def bounded() -> list[nn.Module]:
    return [Normalise(), nn.Flatten(), BoundedLinear(16, 6), nn.ReLU(), BoundedLinear(6, 3, norm=2.0)]


def mixes() -> list[nn.Module]:
    mixed = (Residual(BoundedTokenConvolution(4, (3,), norm=0.5)), TokenConvolution(4, (1, 3)), nn.GELU())
    return [Resize(8), Patchify(4), nn.Linear(16, 4), *mixed, MeanPool(), nn.Linear(4, 3)]


BASES: list[tuple[ModuleType, Callable[[], list[nn.Module]]]] = [
    (local, attends), (published, attends), (local, vit), (local, distances), (lipschitz, distances), (local, cosines),
    (lipschitz, cosines), (local, convolves), (box_lipschitz, convolves), (lipschitz, convolves), (local, bends),
    (local, mixes), (lipschitz, mixes), (lipschitz, bounded),
]  # fmt: skip
CASES = 2 * len(BASES)
IMAGES = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def base(which: int) -> tuple[ModuleType, nn.Sequential]:
    """A certificate and a network that it takes: with random logits, whose margins are wide, or, from len(BASES) on, with
    logits around 0.
    """
    module, layers = BASES[which % len(BASES)]
    torch.manual_seed(which)
    model = nn.Sequential(*layers()).eval().requires_grad_(False)
    if which >= len(BASES):
        model[-1].bias.sub_(model(IMAGES).mean(0))
    return module, model


NUMBERS = (0, -1, 1, 2, 3, 0.5, -0.5, -0.0, 100, 20, *(float(f"1e{power}") for power in (-3, -7, -12, -40, -300)))
NUMBERS += tuple(float(f"1e{power}") for power in (5, 7, 8, 12, 19, 38, 300))
WORDS = ("none", "tanh", "same")
SET = (
    "std", "mean", "radius", "norm", "eps", "beta", "threshold", "negative_slope", "bend", "factor", "scale", "index",
)  # fmt: skip
METHODS = ("forward", "derive", "active", "mixed", "windows", "factor")
ODD = (*NUMBERS, math.nan, math.inf, -math.inf, True, False, None, *WORDS, [0] * 9, (2, 2), (1, 0), slice(0, 2))
SIZES = (0.0, 1e-45, 1e-40, 1e-30, 1e-20, 1e-7, 0.1, 3.0, 30.0, 1e3, 1e5, 1e6, 9e6, 1e8, 1e19, 1e30, 3e38)
SIZES += (math.inf, math.nan, -1.0)
LAYERS: list[Callable[[], nn.Module]] = [
    *(lambda t=t: nn.Softplus(threshold=t) for t in (-5, 0, 1, 80, 88, 100, 1e4, math.inf, math.nan)),
    *(lambda b=b: nn.Softplus(beta=b) for b in (-1, 0, 1e-6, 1e-3, 1e3, 1e9, math.nan)),
    *(lambda s=s: nn.LeakyReLU(s) for s in (-1e9, -3, 0, 1, 1.5, math.nan)),
    *(lambda s=s: Normalise(0.1, s) for s in (1e-45, 1e-30, 1e-7, 1e-3, 1e5, 1e30)),
    *(lambda m=m: Normalise(m, 1.0) for m in (1e38, -1e6, 1e-40)),
    *(lambda p=p: nn.Dropout(p) for p in (0.0, 0.5, 1.0)),
    *(lambda d=d: nn.Flatten(*d) for d in ((0,), (1, 1), (-1,), (1, 2), (2, 3))),
    lambda: nn.ReLU(inplace=True), nn.ReLU, nn.Identity, nn.Softmax, nn.Tanh, nn.SiLU,
    lambda: LayerProject(1e-9), lambda: LayerProject(1e-6), lambda: LayerProject(1e-3), lambda: LayerProject(1e20),
    lambda: nn.Sequential(), lambda: nn.Sequential(nn.Identity(), nn.Sequential(nn.Tanh())),
    lambda: Residual(nn.ReLU(inplace=True)), lambda: Residual(Residual(nn.Tanh())), lambda: Residual(nn.Identity()),
]  # fmt: skip


def pick(choices, which: int):
    return choices[which % len(choices)]


def any_module(model: nn.Sequential, place: int) -> nn.Module:
    return pick(list(model.modules()), place)


def any_parameter(model: nn.Sequential, place: int) -> nn.Parameter:
    return pick(list(model.parameters()), place)


def attribute(model: nn.Sequential, place: int, how: int) -> None:
    """A plain attribute of a layer set to something else."""
    plain = (int, float, str, tuple, list, type(None))
    own = [
        (layer, name)
        for layer in model.modules()
        for name, value in vars(layer).items()
        if isinstance(value, plain) and not name.startswith("_") and name != "training"
    ]
    layer, name = pick(own, place)
    setattr(layer, name, pick(ODD, how))


def number(model: nn.Sequential, place: int, how: int) -> None:
    """A number that a bound depends on, set after construction."""
    own = [(layer, name) for layer in model.modules() for name in SET if name in vars(layer)]
    if own:
        layer, name = pick(own, place)
        setattr(layer, name, pick(ODD, how))


def one_weight(model: nn.Sequential, place: int, how: int) -> None:
    any_parameter(model, place).view(-1)[how % any_parameter(model, place).numel()] = pick(SIZES, how)


def sizes_of_all(model: nn.Sequential, place: int, how: int) -> None:
    """Layer by layer up and down, so that logits stay ordinary while what is between them does not."""
    scale = pick((1e-12, 1e-6, 1e-3, 1e3, 1e6), how)
    for index, parameter in enumerate(model.parameters()):
        parameter.mul_(scale if (index + place) % 2 else 1 / scale)


def dependent_rows(model: nn.Sequential, place: int, how: int) -> None:
    parameter = any_parameter(model, place)
    if parameter.ndim > 1 and len(parameter) > 1:
        parameter[1] = parameter[0] * (1 + pick((0.0, 1e-7, 1e-5), how))


def dtype(model: nn.Sequential, place: int, how: int) -> None:
    kind = pick((torch.float64, torch.float16, torch.bfloat16), how)
    any_module(model, place).to(kind) if place % 2 else model.to(kind)


SCALES = (1.0, -1.0, 0.5, 1 + 1e-6, 2.0, 1e20)


def with_hook(make: Callable[[float], Callable[..., object]], kind: str = "forward_hook") -> Mutate:
    """A hook of one module, made of a scale."""
    return lambda model, place, how: getattr(any_module(model, place), f"register_{kind}")(make(pick(SCALES, how)))


def in_place(scale: float) -> Callable[..., None]:
    def hook(_module: nn.Module, _given: object, output: torch.Tensor) -> None:
        output.mul_(scale)

    return hook


def method(model: nn.Sequential, place: int, how: int) -> None:
    """A method replaced on the instance."""
    layer = any_module(model, place)
    names = [name for name in METHODS if callable(getattr(layer, name, None))]
    name, scale = pick(names, how // len(SCALES)), pick(SCALES, how)
    honest = getattr(layer, name)
    setattr(layer, name, lambda *given: honest(*given) * scale)


def compiled_call(model: nn.Sequential, place: int, how: int) -> None:
    layer = any_module(model, place)
    layer._compiled_call_impl = lambda x: layer.forward(x) * pick(SCALES, how)


def subclass(model: nn.Sequential, place: int, how: int) -> None:
    layer = any_module(model, place)
    kind, scale = type(layer), pick(SCALES, how)
    layer.__class__ = type(kind.__name__, (kind,), {"forward": lambda self, x: kind.forward(self, x) * scale})


def swap(model: nn.Sequential, place: int, how: int) -> None:
    one, other = place % len(model), how % len(model)
    model[one], model[other] = model[other], model[one]


def amplified(model: nn.Sequential, place: int, how: int) -> None:
    """An odd layer that sees large numbers, between a scaling and its inverse."""
    scale = pick((3.0, 30.0, 60.0, 100.0, 150.0, 200.0, 300.0, 500.0, 3e3, 1e5, 1e9, 1e15), place // len(model))
    inside = (Normalise(0.0, 1 / scale), pick(LAYERS, how)(), Normalise(0.0, scale))
    for layer in reversed(inside):
        model.insert(place % len(model), layer)


def replace(model: nn.Sequential, place: int, how: int) -> None:
    """A part of a layer replaced by another module."""
    layer = any_module(model, place)
    if layer._modules:
        name = pick(sorted(layer._modules), how)
        layer._modules[name] = pick([nn.Identity(), pick(LAYERS, how)(), pick(list(model.modules()), how), None], how)


def token(model: nn.Sequential, place: int, how: int) -> None:
    """Another pooling, where there is one."""
    index = pick([0, -1, 3, 7, [0] * 100, [0, 0], True, slice(0, 1), torch.tensor([0, 0]), None], how)
    for at, layer in enumerate(model):
        if isinstance(layer, MeanPool | TakeToken):
            model[at] = TakeToken(index)
            if isinstance(index, list):
                model[at + 1], head = nn.Flatten(), nn.Linear(4 * len(index), 3).requires_grad_(False)
                head.weight.copy_(head.weight[:, :4].repeat(1, len(index)))  # what is repeated adds up
                head.bias.copy_(-nn.Sequential(*model, head)(IMAGES).mean(0))
                model.append(head)


def attention(model: nn.Sequential, place: int, how: int) -> None:
    huge = ((share * 1e19, 1e-20) for share in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0))
    norms = pick([*huge, (1e11, 1e-11), (1e9, 1e-9), (1e-20, 1e19), (30.0, 30.0)], how)
    made = [ResidualAttention(4, 2, qk_norm=norms[0], vo_norm=norms[1]), SelfAttention(4, 2, scale=norms[0])]
    cosine = ScaledCosineAttention(4, 1, eps=pick([1e-12, 1e-6, 1e6], how), tau=1e4)
    made += [Residual(cosine), Residual(L2Attention(4, 4))]
    for at, layer in enumerate(model):
        if isinstance(layer, ResidualAttention | Residual | WeightedResidual | L2WindowAttention):
            model[at] = pick(made, place).eval().requires_grad_(False)


def convolution(model: nn.Sequential, place: int, how: int) -> None:
    options = [
        {"padding": 1, "padding_mode": "circular"}, {"padding": 1, "padding_mode": "reflect"}, {"padding": 2, "dilation": 2},
        {"padding": "same"}, {"padding": 3}, {"stride": 3, "padding": 1}, {"stride": 5, "padding": 5}, {"padding": 0}, {"bias": False, "padding": 1},
    ]  # fmt: skip
    if isinstance(model[0], nn.Conv2d):
        model[0] = nn.Conv2d(1, 3, 3, **pick(options, how)).requires_grad_(False)
        model[2] = nn.Conv2d(3, 4, pick((1, 2, 4), place), stride=2, padding=pick((0, 1), place)).requires_grad_(False)


def forged_cache(model: nn.Sequential, place: int, how: int) -> None:
    cache_weights(model)
    for layer in model.modules():
        if isinstance(layer, DerivedWeight) and layer._cached is not None:
            settings, made_of, weight = layer._cached
            layer._cached = (settings, made_of, weight * pick(SCALES, how))


class Loud(torch.Tensor):
    """Takes part in each operation with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.nn.functional.linear else result


def loud_parameter(model: nn.Sequential, place: int, how: int) -> None:
    owners = [(layer, name) for layer in model.modules() for name, _ in layer.named_parameters(recurse=False)]
    layer, name = pick(owners, place)
    kept = layer._parameters[name].detach()
    loud = kept.as_subclass(Loud) if how % 2 else kept.expand_as(kept)
    layer._parameters[name] = nn.Parameter(loud, requires_grad=False)


def extra(model: nn.Sequential, place: int, how: int) -> None:
    layer = any_module(model, place)
    if how % 2:
        layer.register_buffer("more", torch.ones(3))
    else:
        layer.register_parameter("bias", nn.Parameter(torch.ones(4)))


def mode(model: nn.Sequential, place: int, how: int) -> None:
    any_module(model, place).train()
    any_module(model, place).requires_grad_(bool(how % 2))


def strides(model: nn.Sequential, place: int, how: int) -> None:
    parameter = any_parameter(model, place)
    if parameter.ndim == 2:
        parameter.data = parameter.data.mT.contiguous().mT
    if parameter.ndim == 4:
        parameter.data = parameter.data.to(memory_format=torch.channels_last)


MUTATIONS: dict[str, Mutate] = {
    mutation.__name__: mutation
    for mutation in (
        attribute, number, amplified, one_weight, sizes_of_all, dependent_rows, dtype, method, compiled_call, subclass,
        swap, replace, token, attention, convolution, forged_cache, loud_parameter, extra, mode, strides,
    )
}  # fmt: skip
MUTATIONS |= {
    "all_weights": lambda model, place, how: any_parameter(model, place).mul_(pick(SIZES, how)),
    "hook": with_hook(lambda scale: lambda _module, _given, output: output * scale),
    "looking_hook": with_hook(lambda scale: lambda *_: None),
    "hook_in_place": with_hook(in_place),
    "pre_hook": with_hook(lambda scale: lambda _module, given: (given[0] * scale,), "forward_pre_hook"),
    "insert": lambda model, place, how: model.insert(place % len(model), pick(LAYERS, how)()),
    "repeat": lambda model, place, how: model.insert(how % len(model), model[place % len(model)]),
}


UNBEARABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@torch.no_grad()
def mutated(which: int, mutations: list[Mutation]) -> tuple[ModuleType, nn.Sequential]:
    """A base network after some mutations; those that the network cannot bear by themselves are passed over."""
    module, model = base(which)
    for name, place, how in mutations:
        try:
            MUTATIONS[name](model, place, how)
        except UNBEARABLE:
            continue
    return module, model


@dataclass(frozen=True)
class Outcome:
    """`end` is "does not run" (the network itself raises), "refused" or "accepted"; then how many images were attacked, and the
    radii of those that the original object, in float32, gives another class within.
    """

    end: str
    attacked: int = 0
    false: tuple[float, ...] = ()


def predicted(model: nn.Module) -> torch.Tensor | None:
    """The classes that a mutated network gives the images, or None where it does not run."""
    try:
        with torch.no_grad():
            return model(IMAGES.clone()).float().nan_to_num().argmax(1)
    except Exception:  # whatever a broken network raises
        return None


def trial(which: int, mutations: list[Mutation]) -> Outcome:
    """Return what comes of certifying a mutated network. Raise its exception where a refusal is no BenchmarkError."""
    certificate, model = mutated(which, mutations)
    labels = predicted(model)
    if labels is None:
        return Outcome("does not run")
    try:
        certificate.float32_gap(model, IMAGES, labels)
        radii = certificate.certify(model, IMAGES, labels, precision=0.05)
    except BenchmarkError:
        return Outcome("refused")
    network = rebuild(*describe(model)).double()
    cases = zip(IMAGES, labels.tolist(), radii.tolist(), strict=True)
    certified = [(image, label, radius) for image, label, radius in cases if radius > 0]
    false = tuple(radius for image, label, radius in certified if breaks(model, network, image, label, radius))
    return Outcome("accepted", len(certified), false)
