"""The `LayerBound` of windowed L2 attention: that of L2 attention with the offsets of its scores, window by window."""

from __future__ import annotations

from functools import cached_property

import torch

from benchmark.certificates.bounds.dispatch import layer_bound
from benchmark.certificates.bounds.l2_attention import L2AttentionBound, L2AttentionRounding
from benchmark.certificates.bounds.l2_window_norm import checked_window, l2_window_norm_upper, window_mixing_constants
from benchmark.certificates.bounds.layer_bound import LayerBound, PerturbationSet
from benchmark.layers.attention_window import L2WindowAttention


class L2WindowBound(LayerBound):
    """The Jacobian is block diagonal, a block for each window, so its norm is the largest of theirs. If the image moves by at
    most delta and window w by delta_w, delta_w^2 summing to delta^2 at most, window w's output moves by at most
    bound_w(delta) delta_w / delta, and its remainder is at most remainder_w(delta) delta_w / delta: both come from bounds of
    derivatives over the whole ball, times delta_w, or from delta_w^2 <= delta delta_w. So the largest window counts too.
    """

    def __init__(self, layer: L2WindowAttention, x: torch.Tensor) -> None:
        self.layer, self.x = layer, x
        cut, offsets = layer.windows(x), layer.offsets()
        self.count = (layer.side // layer.window) ** 2  # windows of an image
        offsets = offsets.expand(self.count, -1, -1, -1).repeat(len(x), 1, 1, 1)
        self.apart = L2AttentionBound(layer.content, cut, offsets=offsets, everywhere=l2_window_norm_upper(layer))
        self.everywhere = self.apart.everywhere

    def _each(self, delta: torch.Tensor) -> torch.Tensor:
        return delta.repeat_interleave(self.count)

    def _largest(self, of_windows: torch.Tensor) -> torch.Tensor:
        return of_windows.unflatten(0, (len(self.x), self.count)).amax(1)

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        return self._largest(self.apart.jacobian_norm)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        cut = self.layer.windows(columns.flatten(0, 1)).unflatten(0, (len(columns), -1))
        return self.layer.together(self.apart.jvp(cut).flatten(0, 1)).unflatten(0, columns.shape[:2])

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self.everywhere * delta

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self._largest(self.apart.bound(self._each(delta)))

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        each = (self._each(part) for part in (perturbation.radius, perturbation.rho, perturbation.delta))
        return self._largest(self.apart.remainder(PerturbationSet(perturbation.columns, *each)))

    @cached_property
    def _rounding(self) -> L2WindowRounding:  # type: ignore[override]
        return L2WindowRounding(self.layer, self.x)


class L2WindowRounding(L2AttentionRounding):
    """With N the tokens of a window and norms over those of all windows, which are at least each window's: the bounds are
    linear in the norms of values and of what is lost of Y, with factors that are the same for all windows.
    """

    def __init__(self, layer: L2WindowAttention, x: torch.Tensor) -> None:
        super().__init__(layer.content, x)
        self.tokens, self.mixing = layer.window**2, window_mixing_constants(layer.bias())
        self.offset = float(layer.offsets().detach().abs().max())


@layer_bound.register
def _(layer: L2WindowAttention, x: torch.Tensor) -> LayerBound:
    checked_window(layer, x)
    return L2WindowBound(layer, x)
