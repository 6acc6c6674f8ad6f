"""Cross-entropy with a projection of each layer's norm after each step (Gouk, Frank, Pfahringer and Cree 2021).

W <- W min(1, cap / |W|) for the weight of every linear layer and convolution, also inside attention. The authors take |W|
from a power iteration, which is too low, so they nearly meet the cap. Here |W| comes from singular values: after each step
the norm of a float32 weight is at most the cap, rounding included. For a large convolution |W| is a bound
(layers/convolution_matrices.py), so it ends below the cap. Each step costs the singular values of all layers, which is
feasible for small images.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from benchmark.layers.convolution_matrices import check_convolution, convolution_upper
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import NotNegative, Share, TrainingAttack, frozen
from benchmark.training.standard import Standard

# Rounding the entries to float32 moves the norm by at most |E|_F <= 2^-24 |W|_F <= 2^-24 sqrt(rank) |W|, that of a kernel
# by 2^-24 sqrt(taps channels) |W|: less than this up to 25,000 of either.
INSIDE = 1 - 1e-5


class Projected(Standard):
    def __init__(self, attack: TrainingAttack | None, *, norm: NotNegative, label_smoothing: Share = 0.0) -> None:
        """
        Args:
            norm: the largest spectral norm of a layer's weight; 0 for its norm at the start, as after a step of `prepare`
                that lowered it.
        """
        super().__init__(label_smoothing=label_smoothing)
        self.norm = norm

    def attach(self, model: nn.Module, images: Tensor) -> nn.Module:
        """Return the largest norm of each layer, in a buffer `values`: (layers,) float64."""
        plain = (part for part in model.modules() if type(part) in (nn.Linear, nn.Conv2d))
        self.layers = [part for part in plain if isinstance(part, nn.Linear | nn.Conv2d)]
        if not self.layers:
            raise BenchmarkError(f"{type(model).__name__} has no nn.Linear or nn.Conv2d that projection could hold")
        self.sides = _sides(model, [part for part in self.layers if isinstance(part, nn.Conv2d)], images[:1])
        norms = [self._norm(layer) for layer in self.layers]
        caps = torch.stack([torch.full_like(norm, self.norm) if self.norm else norm for norm in norms])
        self.caps = nn.Module()
        self.caps.register_buffer("values", caps)
        return self.caps

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        for layer, cap in zip(self.layers, self.caps.get_buffer("values"), strict=True):
            norm = self._norm(layer)
            layer.weight.mul_(torch.where(norm > cap, cap / norm * INSIDE, 1.0).to(layer.weight))

    def _norm(self, layer: nn.Linear | nn.Conv2d) -> Tensor:
        """Return an upper bound of the norm of the weight, () float64."""
        if isinstance(layer, nn.Conv2d):
            return convolution_upper(layer, *self.sides[layer])
        return torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2)


def _sides(model: nn.Module, layers: list[nn.Conv2d], image: Tensor) -> dict[nn.Module, tuple[int, int]]:
    """Return height and width of each convolution's input."""
    sides: dict[nn.Module, tuple[int, int]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sides[layer] = inputs[0].shape[-2], inputs[0].shape[-1]

    with ExitStack() as hooks, frozen(model), torch.no_grad():
        for layer in layers:
            check_convolution(layer)
            hooks.enter_context(layer.register_forward_pre_hook(note))
        model(image.clone())
    if len(sides) < len(layers):
        raise BenchmarkError("projected: the model has an nn.Conv2d that images do not pass, so its norm is not known")
    return sides


objective = Projected
