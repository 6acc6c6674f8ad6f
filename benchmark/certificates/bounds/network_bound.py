"""A network of known layers, run in float64 around n images, and how far its margins can fall within a radius.

Let the image move by xi, ||xi|| <= e, layer k's input by D_k, f_k(x_k + D) = f_k(x_k) + J_k D + R_k(D), and let the layer
that float32 runs add a rounding of norm at most t_k (rounding.py), which the bounds below carry along like any other move.

Composing (Havens et al. 2024, section 3): ||D_(k+1)|| <= bound_k(||D_k||) + t_k, so that at the head the margin over rival
j falls by at most ||w_y - w_j|| ||D_K||, and by the rounding of its two logits.

Margin gradient: with a_k the gradient of the nominal margin at layer k's input (a_K = w_y - w_j, a_k = J_k^T a_(k+1)),
by induction from the head back to any layer i the margin changes by exactly <a_i, D_i> + sum_(k >= i) <a_(k+1), R_k(D_k)>
and the roundings. So it falls by at most max |<a_i, D_i>| + sum_(k >= i) (along_k + ||a_(k+1)|| t_k). Every i is tried and
the least fall counts, per rival; i = K is composing. Nothing in this needs the nominal Jacobian: a layer may put another
linearisation in its place, chosen for the rival, with <a_(k+1), f_k(x_k + D) - f_k(x_k)> >= <a_k, D> - taken_k
(`Step.lean`), as CROWN chooses slopes (Zhang et al. 2018). On the way to D_k too (`Step.settle`): L_k is made of what the
layers chose, and the remainders that make up rho_k are those of that choice. Here D_k =
L_k xi + rest, L_k the Jacobian so far, ||rest|| <= rho_k,
rho_(k+1) = ||J_k|| rho_k + remainder_k + t_k. (||D_k|| <= ||L_k|| e + rho_k
would gain under 1% and cost as much as all the rest.)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from benchmark.certificates.bounds.dispatch import exact_step
from benchmark.certificates.bounds.layer_bound import UP, Reach, Step
from benchmark.certificates.bounds.rounding import FLOAT64, LARGEST, TINY, gamma, size
from benchmark.layers.derived import hold
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError


@dataclass(frozen=True)
class Prefix:
    """The leading linear layers: how many, and their Jacobian (directions, 1, *shape), the same for all images."""

    layers: int
    columns: torch.Tensor


def linear_prefix(steps: list[Step], image: torch.Tensor) -> Prefix:
    """Of a network's steps, for images like `image` (1, c, h, w)."""
    now = torch.eye(image.numel(), dtype=torch.float64, device=image.device).reshape(-1, *image.shape)
    layers = next((k for k, step in enumerate(steps) if type(step) is not Step), len(steps))
    layers = min(layers, len(steps) - 1)  # the head reads an output, so one layer at least stays
    for step in steps[:layers]:
        now = _narrow(step.push(now))
    return Prefix(layers, now)


def _narrow(columns: torch.Tensor) -> torch.Tensor:
    """Only L L^T matters, so L is kept no wider than it is tall."""
    flat = columns.flatten(2).permute(1, 2, 0)  # (n, outputs, directions)
    if flat.shape[1] >= flat.shape[2]:
        return columns
    flat = torch.linalg.qr(flat.mT, mode="r").R.mT
    return flat.permute(2, 0, 1).reshape(flat.shape[2], *columns.shape[1:])


@dataclass
class Trace:
    """What both ways need of a network around n images; the dear parts are computed when first asked for."""

    layers: nn.Sequential  # float64, frozen, without the head
    activations: list[torch.Tensor]  # the images and each layer's output
    steps: list[Step]
    labels: torch.Tensor  # (n,)
    difference: torch.Tensor  # w_y - w_j: (n, classes, width)
    margins: torch.Tensor  # logit_y - logit_j: (n, classes)
    head: torch.Tensor  # rounding of the two logits: coefficients of 1 and of ||D_K||, (2, n, classes)
    float32: bool = True  # whether the network that runs is the float32 one, or the real-number one

    @cached_property
    def around(self) -> torch.Tensor:
        """The radius that layers settle on: (n,). To be set before `columns` is asked for, by whoever knows it."""
        return torch.zeros_like(self.margins[:, 0])

    @cached_property
    def lead(self) -> torch.Tensor:
        """The margins, infinite for the label itself: what must exceed the fall."""
        return self.margins.scatter(1, self.labels[:, None], torch.inf)

    @cached_property
    def rivals(self) -> torch.Tensor:
        """||w_y - w_j||: (n, classes), 0 for the label itself."""
        return torch.linalg.vector_norm(self.difference, dim=-1) * UP

    @cached_property
    def gradients(self) -> list[torch.Tensor]:
        """a_k at the image and at each step's output: (n, classes, *shape)."""
        with torch.enable_grad():
            run = [self.activations[0].detach().requires_grad_()]
            for layer in self.layers:
                run.append(layer(run[-1]))
            parts = [
                torch.autograd.grad((run[-1] * self.difference[:, rival]).sum(), run, retain_graph=True)
                for rival in range(self.difference.shape[1])
            ]
        return [torch.stack(part, dim=1) for part in zip(*parts, strict=True)]

    def take(self, rows: torch.Tensor) -> Trace:
        """Around the images `rows`, with what is dear and already computed of them."""
        activations = [activation[rows] for activation in self.activations]
        steps = [exact_step(layer, x) for layer, x in zip(self.layers, activations, strict=False)]
        for step, earlier in zip(steps, self.steps, strict=True):
            step.take_over(earlier, rows)
        parts = (self.labels[rows], self.difference[rows], self.margins[rows], self.head[:, rows])
        taken = Trace(self.layers, activations, steps, *parts, self.float32)
        if "prefix" in vars(self):
            taken.prefix = self.prefix
        return taken

    @cached_property
    def prefix(self) -> Prefix:
        return linear_prefix(self.steps, self.activations[0][:1])

    @cached_property
    def columns(self) -> list[torch.Tensor | None]:
        """L_k at each step's input, settled for `around`: (directions, n, *shape); None before the last linear one."""
        n, now = len(self.margins), self.prefix.columns
        now = now.expand(-1, n, *now.shape[2:])
        columns: list[torch.Tensor | None] = [None] * self.prefix.layers
        delta, rho = self.around, torch.zeros_like(self.around)
        for index, step in enumerate(self.steps):
            rounding = self.rounding(index, delta)
            rho, before = step.gain * rho + rounding, rho
            if index >= self.prefix.layers:
                reach = Reach(now, self.around, before, delta)
                step.settle(reach)
                columns.append(now)
                rho, now = rho + step.remainder(reach), _narrow(step.push(now))
            rho, delta = rho * UP, step.bound(delta) + rounding
        return columns

    def rounding(self, index: int, delta: torch.Tensor) -> torch.Tensor:
        return self.steps[index].runs(delta) if self.float32 else torch.zeros_like(delta)

    def composed(self, radius: torch.Tensor, *, quick: bool = False) -> torch.Tensor:
        """How far each margin can fall within `radius` (n,), by composing alone: (n, classes)."""
        delta = radius
        for index, step in enumerate(self.steps):
            delta = (step.quick_bound(delta) if quick else step.bound(delta)) + self.rounding(index, delta)
        return self._at_the_head(delta)

    def falls(self, radius: torch.Tensor, rivals: torch.Tensor | None = None, *, effort: str = "all") -> torch.Tensor:
        """The same, the better of both ways.

        Args:
            radius: (n,) float64.
            rivals: (n, r) class indices, to look at these alone.
            effort: "all"; "each" bounds remainders element by element, at nominal slopes; "none", no bound, leaves them out.

        Returns:
            (n, classes), or (n, r), upper bounds.
        """
        reaches, roundings, last = self._reaches(radius)
        least = _of(self._at_the_head(last), rivals)
        later = _of(self.head_rounding(last), rivals)
        a = _of(self.difference, rivals)
        for index in range(len(self.steps) - 1, self.prefix.layers - 1, -1):  # the leading linear layers miss nothing
            step, reach = self.steps[index], reaches[index]
            assert reach is not None
            sizes = torch.linalg.vector_norm(a.flatten(2), dim=2)
            leaning = step.lean(a, reach) if effort == "all" else None
            if leaning is not None:
                part, a = leaning
            elif effort == "all":
                part, a = step.along(a, reach), self._pull(index, a)
            else:
                part = step.along_each(a, reach) if effort == "each" else torch.zeros_like(later)
                a = _of(self.gradients[index], rivals)
            later = later + part + sizes * roundings[index][:, None] * UP
            least = torch.minimum(least, (self._first_order(a, reach) + later) * UP)
        return least

    def _reaches(self, radius: torch.Tensor) -> tuple[list[Reach | None], list[torch.Tensor], torch.Tensor]:
        """What is known of each step's input change and rounding, and ||D_K||; None before the last leading linear layer."""
        delta, rho = radius, torch.zeros_like(radius)
        reaches: list[Reach | None] = []
        roundings = []
        for index, step in enumerate(self.steps):
            columns, rounding = self.columns[index], self.rounding(index, delta)
            reaches.append(None if columns is None else Reach(columns, radius, rho, delta))
            roundings.append(rounding)
            rho = step.gain * rho + rounding
            if (reach := reaches[-1]) is not None:
                rho = rho + step.remainder(reach)
            rho, delta = rho * UP, step.bound(delta) + rounding
        return reaches, roundings, delta

    def _pull(self, index: int, a: torch.Tensor) -> torch.Tensor:
        """J^T a of one layer: (n, rivals, *output) to (n, rivals, *input)."""
        with torch.enable_grad():
            x = self.activations[index].detach().requires_grad_()
            y = self.layers[index](x)
            parts = [torch.autograd.grad(y, x, part, retain_graph=True)[0] for part in a.unbind(1)]
        return torch.stack(parts, dim=1)

    def _at_the_head(self, delta: torch.Tensor) -> torch.Tensor:
        return (self.rivals * delta[:, None] + self.head_rounding(delta)) * UP

    def head_rounding(self, delta: torch.Tensor) -> torch.Tensor:
        """What rounding takes from each margin at the head, whose input moves by `delta` (n,): (n, classes)."""
        if not self.float32:
            return torch.zeros_like(self.margins)
        fits = (size(self.activations[-1]) + delta <= LARGEST)[:, None]
        return torch.where(fits, (self.head[0] + self.head[1] * delta[:, None]) * FLOAT64, torch.inf)

    def _first_order(self, gradients: torch.Tensor, reach: Reach) -> torch.Tensor:
        """<a, D> at the input of a step is at most this: (n, rivals)."""
        a = gradients.flatten(2)
        sizes = torch.linalg.vector_norm(a, dim=2)
        directions = reach.columns.flatten(2).permute(1, 0, 2)  # (n or 1, directions, size)
        through = torch.linalg.vector_norm(a @ directions.mT, dim=2)
        split = through * reach.radius[:, None] + sizes * reach.rho[:, None]
        return torch.minimum(split, sizes * reach.delta[:, None]) * (1 + 1e-9)


def _of(values: torch.Tensor, rivals: torch.Tensor | None) -> torch.Tensor:
    """The chosen rivals of (n, classes, ...): (n, r, ...)."""
    if rivals is None:
        return values
    return values[torch.arange(len(values), device=values.device)[:, None], rivals]


def checked_copy(model: nn.Module) -> nn.Sequential:
    """The float64 copy of a model that the local certificate can speak for.

    Raises:
        BenchmarkError: it is no plain sequence ending in a NormalisedHead, or a hook could change what a layer returns.
    """
    if type(model) is not nn.Sequential or type(model[-1]) is not NormalisedHead:
        raise BenchmarkError("the local certificate needs a plain nn.Sequential that ends in a NormalisedHead")
    refuse_hooks(model)
    if any(isinstance(layer, OrthogonalLinear) and layer.training for layer in model.modules()):
        raise BenchmarkError("the model is in training mode, where OrthogonalLinear rounds more; call its eval()")
    network = copy.deepcopy(model).double().eval().requires_grad_(False)
    hold(network)
    return network


def refuse_hooks(model: nn.Module) -> None:
    """
    Raises:
        BenchmarkError: a hook, or a forward put on one instance, can change what a layer returns behind its bound.
    """
    for module in model.modules():
        if "forward" in vars(module):
            raise BenchmarkError(
                f"a layer {type(module).__name__} has a forward of its own; the certificate is refused"
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise BenchmarkError(
                f"the layer {type(module).__name__} carries a forward hook; the certificate is refused"
            )


@torch.no_grad()
def trace(
    network: nn.Sequential,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    float32: bool = True,
    prefix: Prefix | None = None,
) -> Trace:
    """Runs a `checked_copy` around `images` (n, c, h, w), labels (n,); `prefix` is an earlier trace's of the same network.

    Raises:
        BenchmarkError: a layer without a declared bound (named).
    """
    head, layers = network[-1], network[:-1]
    assert isinstance(head, NormalisedHead)
    activations, steps = [images.double()], []
    for layer in layers:
        steps.append(exact_step(layer, activations[-1]))
        activations.append(layer(activations[-1]))
    last = activations[-1]
    if last.ndim != 2:
        raise BenchmarkError(f"the head needs one vector an image; the layer before it gives {tuple(last.shape)}")
    logits, weight = head(last), head.weight
    error = gamma(weight.shape[1] + 3)  # of one logit: error (||x|| + delta + |b|), rows having norm 1
    lengths = torch.linalg.vector_norm(last, dim=1)[:, None]
    biases = head.bias.abs()[labels][:, None] + head.bias.abs()[None] + 2 * lengths
    traced = Trace(
        layers=layers,
        activations=activations,
        steps=steps,
        labels=labels,
        difference=weight[labels][:, None] - weight[None],
        margins=logits.gather(1, labels[:, None]) - logits,
        head=torch.stack([error * biases + TINY, torch.full_like(biases, 2 * error)]) * UP,
        float32=float32,
    )
    if prefix is not None:
        traced.prefix = prefix
    return traced
