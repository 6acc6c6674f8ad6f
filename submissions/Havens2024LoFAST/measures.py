"""What the studies of this submission measure of a trained network; each returns curves over `x`.

Certified accuracy by the published bound, by each improvement on it in turn, and what PGD leaves; how much of a margin the
bounds let go; and the first attention layer alone: its bounds against ascent, its parts, and its weights perturbed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.attacks.replaced_attention import mean_patterns, predictions_with_patterns
from benchmark.certificates import crown, local
from benchmark.certificates.bounds.attention_ascent import attention_ascent, sphere_ascent
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.sensitivity import AttentionSensitivity, attention_sensitivity
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.certificates.published import AT_ONCE, Published
from benchmark.certificates.unsound_paper_formula import specformer_constant
from benchmark.layers.attention import ResidualAttention
from benchmark.specs.threat import ThreatModel

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Curves = dict[str, list[float]]
IN_TURN = {
    "Theorem 1": {},
    "tight attention": {"attention": True},
    "local projection": {"attention": True, "projection": True},
    "own rivals": {"attention": True, "projection": True, "rivals": True},
}


def certified_by(
    model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, seed: int, radii: Sequence[float]
) -> Curves:
    """Certified accuracy at each l2 radius (pixels) on the same weights: the published bound, with this project's
    improvements added one after another, the last being the margin gradient; and what PGD of 40 steps leaves.
    """
    network, curves = checked_copy(model), {name: [0.0] * len(radii) for name in IN_TURN}
    for part in _right(network, images, labels):
        bound = Published(network, bound_network(network, images[part], labels[part]))
        for (place, radius), (name, options) in itertools.product(enumerate(radii), IN_TURN.items()):
            held = bound.bounded.rival_margins > bound.margin_drop(
                torch.full((len(part),), radius, dtype=torch.float64), **options
            )
            curves[name][place] += int(held.all(1).sum()) / len(labels)
    found = [local.certified_at(model, images, labels, radius) for radius in radii]
    left = [_left_by_pgd(model, images, labels, radius, seed) for radius in radii]
    if any((certified & ~stands).any() for certified, stands in zip(found, left, strict=True)):
        raise ValueError("PGD breaks an image inside its certified radius; the certificate is wrong")
    curves["margin gradient"] = [float(certified.double().mean()) for certified in found]
    curves["PGD leaves"] = [float(stands.double().mean()) for stands in left]
    return {"x": list(radii), **curves}


def _left_by_pgd(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, radius: float, seed: int, steps: int = 40
) -> torch.Tensor:
    """(n,) bool: right when clean and after PGD; an image counts as moved only within the radius by float64."""
    moved = pgd.attack(
        model, images, labels, ThreatModel(norm="L2", eps=radius), seed=seed, steps=steps, step_size=radius / 8
    )
    inside = (moved.double() - images.double()).flatten(1).norm(dim=1) <= radius
    return (model(images).argmax(1) == labels) & ((model(moved).argmax(1) == labels) | ~inside)


def certified_at(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    radii: Sequence[float],
    by_crown: bool = False,
) -> Curves:
    """Certified accuracy at each l2 radius (pixels, increasing) on the same weights: the published bound, this project's,
    and, if `by_crown`, CROWN and the published bound with CROWN on what that left (Table 2).

    CROWN is not asked at a radius about an image that it did not certify at the one before. Raises ValueError where PGD
    of 50 steps breaks what one of them certified.
    """
    asked, curves = local.correct(checked_copy(model), images, labels), dict[str, list[float]]()
    for radius, lofast in zip(radii, _published_at(model, images, labels, radii), strict=True):
        found = {"LoFAST": lofast, "this project's": local.certified_at(model, images, labels, radius)}
        if by_crown:
            crowned = torch.zeros_like(lofast)
            if len(asked):
                crowned[asked] = crown.certified_at(model, images[asked], labels[asked], radius)
            asked = crowned.nonzero()[:, 0]
            found |= {"CROWN": crowned, "LoFAST, then CROWN": lofast | crowned}
        tried = torch.stack([*found.values()]).any(0).nonzero()[:, 0]
        stands = _left_by_pgd(model, images[tried], labels[tried], radius, seed, steps=50) if len(tried) else tried
        for name, held in found.items():
            if (held[tried] & ~stands).any():
                raise ValueError(f"PGD breaks an image that {name} certified at l2 {radius:g}; that is wrong")
            curves.setdefault(name, []).append(float(held.double().mean()))
    return {"x": list(radii), **curves}


def _right(network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor) -> Sequence[torch.Tensor]:
    """Places of the images that are right, in parts; none if no image is."""
    right = local.correct(network, images, labels)
    return right.split(AT_ONCE) if len(right) else ()


def _published_at(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, radii: Sequence[float]) -> torch.Tensor:
    """(k, n) bool: certified at each of `radii` by the published bound."""
    network, verdict = checked_copy(model), torch.zeros(len(radii), len(labels), dtype=torch.bool)
    for part in _right(network, images, labels):
        bound = Published(network, bound_network(network, images[part], labels[part]))
        for place, radius in enumerate(radii):
            fall = bound.margin_drop(torch.full((len(part),), radius, dtype=torch.float64))
            verdict[place, part] = (bound.bounded.rival_margins > fall).all(1)
    return verdict


def margin_lost(
    model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, seed: int, radii: Sequence[float]
) -> Curves:
    """By how much the nearest rival's margin can fall at most, mean over the images that are right, in logits: by
    composing norms; by the better of that and the margin gradient; and by the gradient's linear part at the nominal slopes.
    """
    network = checked_copy(model)
    right = local.correct(network, images, labels)
    if not len(right):
        raise ValueError("the network gets no image right, so no margin can fall")
    lost: dict[str, list[list[torch.Tensor]]] = {
        name: [[] for _ in radii] for name in ("composing", "margin gradient", "linear part")
    }
    for _, bounded in local.tight_bounds(network, images, labels, right):
        rival = bounded.rival_margins.argmin(1, keepdim=True)
        for place, radius in enumerate(radii):
            at = torch.full((len(rival),), radius, dtype=torch.float64)
            lost["composing"][place].append(bounded.composed(at).gather(1, rival))
            lost["margin gradient"][place].append(bounded.margin_drop(at, rival))
            lost["linear part"][place].append(bounded.margin_drop(at, rival, effort="none"))
    return {"x": list(radii), **{name: [float(torch.cat(part).mean()) for part in curve] for name, curve in lost.items()}}


def first_attention(model: nn.Sequential, images: torch.Tensor) -> tuple[torch.Tensor, Weights]:
    """The input X (n, tokens, d) of the first attention layer, float64, and its W_Q, W_K, W_V, W_O by head."""
    network = copy.deepcopy(model).double()
    index = next(i for i, part in enumerate(network) if isinstance(part, ResidualAttention))
    layer = network[index]
    assert isinstance(layer, ResidualAttention)
    return network[:index](images.double()).detach(), layer.head_weights()


def scaled(x: torch.Tensor, norm: float) -> torch.Tensor:
    """Inputs of spectral norm `norm`; unchanged for 0."""
    return x * (norm / torch.linalg.matrix_norm(x, ord=2))[:, None, None] if norm else x


def layer_bounds(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    radii: Sequence[float],
    count: int = 10,
    norm: float = 0.0,
) -> Curves:
    """Bounds of ||F(X') - F(X)||_F of the first residual attention layer at each radius in token space, mean over the
    inputs that `count` images make there, beside the largest that ascent finds.

    SpecFormer's is Theorem 4.3 as printed, with W_O and the residual; it is no bound where ||X||_F + radius < 1.
    """
    x, weights = first_attention(model, images[:count])
    x = scaled(x, norm)
    bounds = attention_sensitivity(x, *weights)
    by_xi = replace(bounds, m=xi(x, weights))
    curves: Curves = {}
    for radius in radii:
        at = torch.full((len(x),), radius, dtype=torch.float64)
        found = {
            "ascent": attention_ascent(x, *weights, radius),
            "this project": bounds.bound(at),
            "Theorem 1": bounds.bound(at, "paper"),
            "Theorem 1 with xi": by_xi.bound(at, "paper"),
            "naive": bounds.bound(at, "naive"),
            "SpecFormer": specformer(x, weights, radius),
        }
        if not (found["ascent"] <= found["this project"] * (1 + 1e-9)).all():
            raise ValueError(f"ascent exceeds the bound of an attention layer at radius {radius:g}; it is wrong")
        for name, value in found.items():
            curves.setdefault(name, []).append(float(value.mean()))
    return {"x": list(radii), **curves}


def xi(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """(26) by head, ||B X^T|| + ||X B||, B = W_Q W_K^T: (n, heads), at least ||M||."""
    B = weights[0] @ weights[1].mT
    return spectral_norm_upper(B @ x.mT[:, None]) + spectral_norm_upper(x[:, None] @ B)


def specformer(x: torch.Tensor, weights: Weights, radius: float) -> torch.Tensor:
    """radius (1 + sum over heads of Theorem 4.3's constant times ||W_O||): (n,)."""
    w_q, w_k, w_v, w_o = weights
    heads = [specformer_constant(x, *(w[h] for w in (w_q, w_k, w_v)), radius).value for h in range(len(w_q))]
    return radius * (1 + torch.stack(heads, 1) @ spectral_norm_upper(w_o))


def single_head(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    radii: Sequence[float],
    part: str,
    count: int = 10,
    norm: float = 0.0,
) -> Curves:
    """Of the layer's first head, mean over inputs: part "attention", ||P(X') - P(X)||_F, or part "values", ||X' W_V W_O||.

    Raises:
        ValueError: another part.
    """
    x, weights = first_attention(model, images[:count])
    x, (w_q, w_k, w_v, w_o) = scaled(x, norm), tuple(w[:1] for w in weights)
    bounds, by_xi = attention_sensitivity(x, w_q, w_k, w_v, w_o), xi(x, (w_q, w_k, w_v, w_o))
    B, A = (w_q @ w_k.mT)[0], (w_v @ w_o)[0]

    def scores(z: torch.Tensor) -> torch.Tensor:
        return torch.softmax(z @ B @ z.mT / bounds.scale, -1)

    P, curves = scores(x), dict[str, list[float]]()
    for radius in radii:
        rest = float(bounds.b) * radius
        if part == "attention":
            moved = sphere_ascent(lambda z: (scores(z) - P).flatten(1).norm(dim=1), x, radius)
            reach = {"this project": bounds.m_centred / 2, "exact M": bounds.m, "xi": by_xi}
            rests = {"this project": rest / 2, "exact M": rest, "xi": rest}
            found = {name: radius * (m[:, 0] + rests[name]) / bounds.scale for name, m in reach.items()}
        elif part == "values":
            moved = sphere_ascent(lambda z: torch.linalg.matrix_norm(z @ A, ord=2), x, radius)
            own = torch.linalg.matrix_norm(x, ord=2) * bounds.summed.a[0]
            found = {"(18)": bounds.summed.x[:, 0] + radius * bounds.summed.a[0], "naive": own + radius * bounds.summed.a[0]}
        else:
            raise ValueError(f"part {part!r} should be attention or values")
        for name, value in ({"ascent": moved} | found).items():
            curves.setdefault(name, []).append(float(value.mean()))
    return {"x": list(radii), **curves}


def perturbed(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    sizes: Sequence[float],
    radius: float = 0.1,
    samples: int = 10,
    count: int = 5,
    bound: str = "paper",
) -> Curves:
    """The bound of the first attention layer at `radius` when one of W_Q, W_K, W_V, W_O and X is moved by Gaussian noise
    of `sizes` times its own Frobenius norm, the others fixed: mean over samples and inputs.
    """
    x, weights = first_attention(model, images[:count])
    generator = torch.Generator().manual_seed(seed)
    at, parts = torch.full((len(x),), radius, dtype=torch.float64), [*weights, x]
    curves: Curves = {name: [] for name in ("W_Q", "W_K", "W_V", "W_O", "X")}
    for size, (place, name) in itertools.product(sizes, enumerate(curves)):
        total = 0.0
        for _ in range(samples if size else 1):
            noise = torch.randn(parts[place].shape, dtype=torch.float64, generator=generator)
            own = [1, 2] if name == "X" else [0, 1, 2]
            noise *= size * _length(parts[place], own) / _length(noise, own)
            moved = [part + noise if k == place else part for k, part in enumerate(parts)]
            total += float(_bounds(moved).bound(at, bound).mean())
        curves[name].append(total / (samples if size else 1))
    return {"x": list(sizes), **curves}


def pattern_use(
    model: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    seed: int,
    training: tuple[torch.Tensor, torch.Tensor],
    count: int = 1000,
    batch_size: int = 200,
) -> dict[str, float]:
    """Return the accuracy with attention's mean patterns over the first `count` training images, and with those of the image
    before in its batch, in the place of its own (attacks/replaced_attention.py).
    """
    means = mean_patterns(model, training[0][:count], batch_size)
    replaced = {"mean pattern": means, "another image's": None}
    return {
        name: float((predictions_with_patterns(given, model, images, batch_size) == labels).double().mean())
        for name, given in replaced.items()
    }


def _length(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=axes, keepdim=True)


def _bounds(parts: list[torch.Tensor]) -> AttentionSensitivity:
    return attention_sensitivity(parts[4], *parts[:4])
