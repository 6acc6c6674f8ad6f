"""Cross-entropy under a constraint on each layer's norm: projection after each step (Gouk, Frank, Pfahringer and Cree
2021).

W <- W min(1, cap / |W|) for the weight of every linear layer and convolution, those inside attention too. They take |W|
from a power iteration, which lies below it, so that the cap is met only nearly. Here it comes from singular values:
after each step the norm of a float32 weight is at most the cap, rounding included. That of a convolution is its
matrix's where that is small, else a bound of it (layers/convolution_matrices.py), so that it ends below the cap. The
price is singular values of all layers a step, which networks for small images can pay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.layers.convolution_matrices import check_convolution, convolution_upper
from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import TrainingAttack, frozen
from benchmark.training.parameters import NotNegative, Share
from benchmark.training.standard import Standard

# Rounding the entries to float32 moves the norm by at most |E|_F <= 2^-24 |W|_F <= 2^-24 sqrt(rank) |W|, that of a kernel
# by 2^-24 sqrt(taps channels) |W|: less than this up to 25,000 of either.
INSIDE = 1 - 1e-5


class Projected(Standard):
    def __init__(self, attack: TrainingAttack | None, *, norm: NotNegative, label_smoothing: Share = 0.0) -> None:
        """
        Args:
            norm: spectral, that no layer's weight may exceed; 0 for the norms that training starts from, as after a
                step of `prepare` that has lowered them.
        """
        super().__init__(label_smoothing=label_smoothing)
        self.norm = norm

    def attach(self, model: nn.Module, images: Tensor) -> nn.Module:
        """The norm that each layer may have, in a buffer `values`: (layers,) float64."""
        found = (part for part in model.modules() if type(part) in (nn.Linear, nn.Conv2d))
        self.layers = [part for part in found if isinstance(part, nn.Linear | nn.Conv2d)]
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
        """() float64, at least the norm of the weight."""
        if isinstance(layer, nn.Conv2d):
            return convolution_upper(layer, *self.sides[layer])
        return torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2)


def _sides(model: nn.Module, layers: list[nn.Conv2d], image: Tensor) -> dict[nn.Module, tuple[int, int]]:
    """Height and width of what each convolution is given."""
    found: dict[nn.Module, tuple[int, int]] = {}

    def seen(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        found[layer] = given[0].shape[-2], given[0].shape[-1]

    for layer in layers:
        check_convolution(layer)
    hooks = [layer.register_forward_pre_hook(seen) for layer in layers]
    try:
        with frozen(model), torch.no_grad():
            model(image.clone())
    finally:
        for hook in hooks:
            hook.remove()
    if len(found) < len(layers):
        raise BenchmarkError("projected: the model has an nn.Conv2d that images do not pass, so its norm is not known")
    return found


objective = Projected
