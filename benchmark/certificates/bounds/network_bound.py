"""How far a network's margins can fall within a radius of n images; its layers are known and run in float64.

Let the image move by xi, ||xi|| <= e, layer k's input by D_k, f_k(x_k + D) = f_k(x_k) + J_k D + R_k(D), and let the layer
as float32 runs it add a rounding of norm at most t_k (rounding.py), which the bounds below carry along like any other move.

Composing (Havens et al. 2024, section 3): ||D_(k+1)|| <= bound_k(||D_k||) + t_k, so that at the head the margin over rival
j falls by at most ||w_y - w_j|| ||D_K||, and by the rounding of its two logits.

Margin gradient: with a_k the gradient of the nominal margin at layer k's input (a_K = w_y - w_j, a_k = J_k^T a_(k+1)),
by induction from the head back to any layer i the margin changes by exactly <a_i, D_i> + sum_(k >= i) <a_(k+1), R_k(D_k)>
and the roundings. So it falls by at most max |<a_i, D_i>| + sum_(k >= i) (along_k + ||a_(k+1)|| t_k), along_k the
`remainder_along` of layer k. Every i is tried, and the smallest bound counts, per rival; i = K is composing.

Relaxations: nothing in this needs the nominal Jacobian. A layer may put another linear map in its place, chosen for the
rival, with <a_(k+1), f_k(x_k + D) - f_k(x_k)> >= <a_k, D> - taken_k (`LayerBound.relax_for_rival`), as CROWN chooses slopes
(Zhang et al. 2018). So may the layers before (`LayerBound.choose_relaxation`).

Perturbations: D_k = L_k xi + rest, L_k the product of the maps that the layers before k chose, ||rest|| <= rho_k,
rho_(k+1) = ||J_k|| rho_k + remainder_k + t_k, the remainders being those of the maps chosen. (||D_k|| <= ||L_k|| e + rho_k
would gain under 1% and cost as much as all the rest.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import torch
from torch import nn

from benchmark.layers.lipschitz import NormalisedHead
from benchmark.runtime.errors import BenchmarkError

from .checked_copy import HEADS
from .layer_bound import UP, LayerBound, PerturbationSet, exact_layer_bound, or_infinite, vjp
from .rounding import FLOAT64, LARGEST, TINY, gamma, size


@dataclass(frozen=True)
class Prefix:
    """The leading linear layers: how many, and their Jacobian (directions, 1, *shape), the same for all images."""

    layers: int
    columns: torch.Tensor


def linear_prefix(layer_bounds: list[LayerBound], image: torch.Tensor) -> Prefix:
    """Return a network's leading linear layers, given the bounds of all, for images shaped like `image` (1, c, h, w)."""
    columns = torch.eye(image.numel(), dtype=torch.float64, device=image.device).reshape(-1, *image.shape)
    linear = list(takewhile(lambda part: type(part) is LayerBound, layer_bounds))
    linear = linear[: len(layer_bounds) - 1]  # the head reads an output, so one layer at least stays
    for layer_bound in linear:
        columns = _narrow(layer_bound.jvp(columns))
    return Prefix(len(linear), columns)


def _narrow(columns: torch.Tensor) -> torch.Tensor:
    """Return L no wider than it is tall, with the same L L^T, which alone matters."""
    flat = columns.flatten(2).permute(1, 2, 0)  # (n, outputs, directions)
    if flat.shape[1] >= flat.shape[2]:
        return columns
    flat = torch.linalg.qr(flat.mT, mode="r").R.mT
    return flat.permute(2, 0, 1).reshape(flat.shape[2], *columns.shape[1:])


@dataclass
class NetworkBound:
    """What composing and the margin gradient need of a network around n images; costly parts are computed on first use."""

    layers: nn.Sequential  # float64, frozen, without the head
    activations: list[torch.Tensor]  # the images and each layer's output
    layer_bounds: list[LayerBound]
    labels: torch.Tensor  # (n,)
    difference: torch.Tensor  # w_y - w_j: (n, classes, width)
    margins: torch.Tensor  # logit_y - logit_j: (n, classes)
    head: torch.Tensor  # rounding of the two logits: coefficients of 1 and of ||D_K||, (2, n, classes)

    @cached_property
    def relaxation_radius(self) -> torch.Tensor:
        """Radii (n,) for which layers choose their relaxations; set them before `columns` is first used."""
        return torch.zeros_like(self.margins[:, 0])

    @cached_property
    def rival_margins(self) -> torch.Tensor:
        """Margins (n, classes), infinite for the label itself; an image is certified where each exceeds its `margin_drop`."""
        return self.margins.scatter(1, self.labels[:, None], torch.inf)

    @cached_property
    def difference_norms(self) -> torch.Tensor:
        """||w_y - w_j||: (n, classes), 0 for the label itself."""
        return torch.linalg.vector_norm(self.difference, dim=-1) * UP

    @cached_property
    def gradients(self) -> list[torch.Tensor]:
        """a_k at the image and at each layer's output: (n, classes, *shape)."""
        with torch.enable_grad():
            run = [self.activations[0].detach().requires_grad_()]
            for layer in self.layers:
                run.append(layer(run[-1]))
            parts = [
                torch.autograd.grad((run[-1] * self.difference[:, rival]).sum(), run, retain_graph=True)
                for rival in range(self.difference.shape[1])
            ]
        return [torch.stack(part, dim=1) for part in zip(*parts, strict=True)]

    @cached_property
    def prefix(self) -> Prefix:
        return linear_prefix(self.layer_bounds, self.activations[0][:1])

    @cached_property
    def columns(self) -> list[torch.Tensor | None]:
        """L_k at each layer's input, (directions, n, *shape), for relaxations chosen at `relaxation_radius`; None at the
        input of a leading linear layer.
        """
        perturbations, _, _ = self._perturbations(self.relaxation_radius, None)
        return [None if perturbation is None else perturbation.columns for perturbation in perturbations]

    def composed(self, radius: torch.Tensor, *, quick: bool = False) -> torch.Tensor:
        """Return how far each margin can fall within `radius` (n,) by composing: (n, classes), infinite where unknown."""
        delta = radius
        for part in self.layer_bounds:
            delta = (part.quick_bound(delta) if quick else part.bound(delta)) + part.rounding_in_range(delta)
        return or_infinite(self._at_the_head(delta))

    def margin_drop(self, radius: torch.Tensor, rivals: torch.Tensor | None = None, *, effort: str = "all") -> torch.Tensor:
        """Return upper bounds of how far each margin can fall: the smaller of composing and the margin gradient.

        Args:
            radius: (n,) float64.
            rivals: (n, r) class indices, to look at these alone.
            effort: "all"; "each" bounds remainders element by element, at the nominal Jacobian; "none" leaves remainders
                out, so that the result is no bound.

        Returns:
            (n, classes), or (n, r).
        """
        perturbations, roundings, last = self._perturbations(radius, self.columns)
        least = or_infinite(_of(self._at_the_head(last), rivals))
        later = _of(self.head_rounding(last), rivals)
        a = _of(self.difference, rivals)
        for index in reversed(range(self.prefix.layers, len(self.layer_bounds))):  # linear layers have no remainder
            layer_bound, perturbation = self.layer_bounds[index], perturbations[index]
            assert perturbation is not None
            sizes = torch.linalg.vector_norm(a.flatten(2), dim=2)
            relaxed = layer_bound.relax_for_rival(a, perturbation) if effort == "all" else None
            if relaxed is not None:
                taken, a = relaxed
            elif effort == "all":
                taken = layer_bound.remainder_along(a, perturbation)
                a = vjp(self.layers[index], self.activations[index], a)
            else:
                taken = torch.zeros_like(later)
                if effort == "each":
                    taken = layer_bound.remainder_along_elementwise(a, perturbation)
                a = _of(self.gradients[index], rivals)
            later = later + taken + sizes * roundings[index][:, None] * UP
            least = torch.fmin(least, (self._first_order(a, perturbation) + later) * UP)  # passes over NaN
        return least

    def _perturbations(
        self, radius: torch.Tensor, columns: list[torch.Tensor | None] | None
    ) -> tuple[list[PerturbationSet | None], list[torch.Tensor], torch.Tensor]:
        """Return each layer's perturbation set (None for leading linear layers), each layer's rounding, and ||D_K||.

        Without `columns`, layers choose their relaxations here, and columns are pushed through these.
        """
        delta, rho, pushed = radius, torch.zeros_like(radius), self.prefix.columns
        pushed = pushed.expand(-1, len(radius), *pushed.shape[2:])
        perturbations: list[PerturbationSet | None] = []
        roundings = []
        for index, layer_bound in enumerate(self.layer_bounds):
            perturbation, rounding = None, layer_bound.rounding_in_range(delta)
            if index >= self.prefix.layers:
                current = pushed if columns is None else columns[index]
                assert current is not None
                perturbation = PerturbationSet(current, radius, rho, delta)
            perturbations.append(perturbation)
            roundings.append(rounding)
            rho = layer_bound.jacobian_norm * rho + rounding
            if perturbation is not None:
                if columns is None:
                    layer_bound.choose_relaxation(perturbation)
                    pushed = _narrow(layer_bound.jvp(pushed))
                rho = rho + layer_bound.remainder(perturbation)
            rho, delta = rho * UP, layer_bound.bound(delta) + rounding
        return perturbations, roundings, delta

    def _at_the_head(self, delta: torch.Tensor) -> torch.Tensor:
        return (self.difference_norms * delta[:, None] + self.head_rounding(delta)) * UP

    def head_rounding(self, delta: torch.Tensor) -> torch.Tensor:
        """Return what the head's rounding takes from each margin, its input moving by `delta` (n,): (n, classes)."""
        fits = (size(self.activations[-1]) + delta <= LARGEST)[:, None]
        return torch.where(fits, (self.head[0] + self.head[1] * delta[:, None]) * FLOAT64, torch.inf)

    def _first_order(self, gradients: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """Return an upper bound of <a, D> over the perturbations D of one layer's input: (n, rivals)."""
        a = gradients.flatten(2)
        sizes = torch.linalg.vector_norm(a, dim=2)
        directions = perturbation.columns.flatten(2).permute(1, 0, 2)  # (n or 1, directions, size)
        through = torch.linalg.vector_norm(a @ directions.mT, dim=2)
        split = through * perturbation.radius[:, None] + sizes * perturbation.rho[:, None]
        return torch.fmin(split, sizes * perturbation.delta[:, None]) * (1 + 1e-9)  # each bounds it by itself


def _of(values: torch.Tensor, rivals: torch.Tensor | None) -> torch.Tensor:
    """Return the chosen rivals of (n, classes, ...): (n, r, ...)."""
    if rivals is None:
        return values
    return values[torch.arange(len(values), device=values.device)[:, None], rivals]


@torch.no_grad()
def bound_network(
    network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, *, prefix: Prefix | None = None
) -> NetworkBound:
    """Return the bounds of a `checked_copy`, as float32 runs it, around `images` (n, c, h, w), labels (n,).

    Args:
        prefix: the prefix of an earlier call for the same network, to save its computation.

    Raises:
        BenchmarkError: a layer without a declared bound (named).
    """
    head, layers = network[-1], network[:-1]
    assert isinstance(head, HEADS)
    activations, layer_bounds = [images.double()], []
    for layer in layers:
        layer_bounds.append(exact_layer_bound(layer, activations[-1]))
        activations.append(layer(activations[-1]))
    last = activations[-1]
    if last.ndim != 2:
        raise BenchmarkError(f"the head needs one vector an image; the layer before it gives {tuple(last.shape)}")
    logits, weight = head(last), head.weight
    error = gamma(weight.shape[1] + 3)  # of one logit: error (||w|| (||x|| + delta) + |b|)
    # upper bounds of the norms of the head's rows: (classes,)
    normalised = isinstance(head, NormalisedHead)
    sizes = torch.ones_like(head.bias) if normalised else torch.linalg.vector_norm(weight, dim=1) * UP
    both = sizes[labels][:, None] + sizes[None]
    offsets = torch.zeros_like(sizes) if head.bias is None else head.bias.abs()
    biases = offsets[labels][:, None] + offsets[None] + both * torch.linalg.vector_norm(last, dim=1)[:, None]
    bounded = NetworkBound(
        layers,
        activations,
        layer_bounds,
        labels,
        difference=weight[labels][:, None] - weight[None],
        margins=logits.gather(1, labels[:, None]) - logits,
        head=torch.stack([error * biases + TINY, error * both]) * UP,
    )
    if prefix is not None:
        bounded.prefix = prefix
    return bounded
