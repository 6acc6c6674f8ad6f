"""The `Step` of an SLL block: ReLU kinks element by element or as one quadratic form."""

from __future__ import annotations

import torch

from benchmark.certificates.rounding import FLOAT64, TINY, UNIT32, gamma, size
from benchmark.certificates.spectral import psd_norm_upper, spectral_norm_upper
from benchmark.certificates.step import UP, Reach, Step
from benchmark.layers.lipschitz import SLLBlock


class SLLStep(Step):
    """x - 2 W T^-1 relu(W^T x + b). Neuron u of token t with pre-activation z moves by D_tu; its remainder is
    0 <= relu(z + D) - relu(z) - 1[z > 0] D <= max(|D| - |z|, 0), and it hurts a margin only where alpha = 2 (a W) / T > 0.

    Summed over neurons, element by element with each |D_tu| at its largest; or quadratically, all neurons sharing one
    budget: max(|D| - |z|, 0) <= D^2 / (4 t) + t - |z| for every t >= |z|, t = max(|z|, SHARE |D|max), so that the sum is
    at most (radius ||diag(sqrt(alpha / 4t)) Z|| + rho ||diag(...) W^T||)^2 + sum alpha (t - |z|), Z = W^T L.

    Rounding, v = |x| |W| + |b| and r = relu(z) / T: the inner sum errs by e, |e| <= gamma(d + 1) v, which acts through
    2 W T^-1; the quotient and the outer sum err by gamma(hidden + 10) 2 (r + e / T) |W|^T, the subtraction by u (|x| + that).
    """

    SHARE = 0.35

    def __init__(self, layer: SLLBlock, x: torch.Tensor) -> None:
        self.weight, self.scale = layer.weight, layer.scale
        self.z = x @ layer.weight + layer.bias
        lam = spectral_norm_upper(layer.weight / layer.scale.sqrt()) ** 2
        self.gain = (1 + 4 * lam * (lam - 1).clamp(min=0)).sqrt() * UP  # 1 when T >= W^T W, as it should be
        self.back = spectral_norm_upper(2 * layer.weight / layer.scale)
        self.lengths = torch.linalg.vector_norm(layer.weight, dim=0)
        self._met: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        absolute = layer.weight.abs()
        self.size, self.inner = size(x), size(x.abs() @ absolute + layer.bias.abs())
        self.inner_gain = spectral_norm_upper(absolute)
        self.outer = size(2 * (self.z.clamp(min=0) / layer.scale) @ absolute.mT)
        self.outer_gain = spectral_norm_upper(2 * absolute / layer.scale)
        self.forth = spectral_norm_upper(layer.weight)
        self.gammas = gamma(layer.weight.shape[0] + 1), gamma(layer.weight.shape[1] + 10)

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inner = self.gammas[0] * (self.inner + delta * self.inner_gain)
        outer = self.outer + (delta * self.forth + inner) * self.outer_gain
        return (self.back * inner + self.gammas[1] * outer + UNIT32 * (self.size + delta + outer)) * FLOAT64 + TINY

    def push(self, columns: torch.Tensor) -> torch.Tensor:
        n, tokens, width, p = (columns.shape[k] for k in (1, 2, 3, 0))
        back = -2 * self.weight * ((self.z > 0) / self.scale)[:, :, None]  # (n, tokens, width, hidden)
        moved = torch.baddbmm(
            columns.permute(1, 2, 3, 0).reshape(n * tokens, width, p),
            back.flatten(0, 1),
            self._rows(columns)[0].flatten(0, 1),
        )
        return moved.reshape(n, tokens, width, p).permute(3, 0, 1, 2)

    def _rows(self, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Z (n, tokens, hidden, directions) and its row norms (n, tokens, hidden), computed once for the same columns."""
        if self._met is None or self._met[0] is not columns:
            rows = self.weight.mT @ columns.permute(1, 2, 3, 0)
            self._met = (columns, rows, torch.linalg.vector_norm(rows, dim=-1))
        return self._met[1:]

    def _largest(self, reach: Reach) -> torch.Tensor:
        """|D_tu| at most: (n, tokens, hidden)."""
        through = reach.radius[:, None, None] * self._rows(reach.columns)[1] + reach.rho[:, None, None] * self.lengths
        return torch.minimum(through, reach.delta[:, None, None] * self.lengths) * UP

    def remainder(self, reach: Reach) -> torch.Tensor:
        over = (self._largest(reach) - self.z.abs()).clamp(min=0)
        return torch.minimum((1 + self.gain) * reach.delta, self.back * over.flatten(1).norm(dim=1) * UP)

    def along_each(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        alpha, largest, bend = self._kinks(a, reach)
        return (alpha * (largest - bend).clamp(min=0)).sum(2) * (1 + 1e-9)

    def _kinks(self, a: torch.Tensor, reach: Reach) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """alpha of the neurons that can kink (n, rivals, tokens * hidden), |D|max and |z| (n, 1, tokens * hidden)."""
        largest, bend = self._largest(reach).flatten(1)[:, None], self.z.abs().flatten(1)[:, None]
        alpha = (2 * (a @ self.weight) / self.scale).flatten(2).clamp(min=0)
        return alpha * (largest > bend), largest, bend

    def along(self, a: torch.Tensor, reach: Reach) -> torch.Tensor:
        alpha, largest, bend = self._kinks(a, reach)
        reached = (largest > bend)[:, 0]
        kept = reached.to(torch.int8).topk(max(1, int(reached.sum(1).max())), dim=1).indices  # all that can kink
        rows = self._rows(reach.columns)[0].flatten(1, 2)
        rows = rows.gather(1, kept[..., None].expand(-1, -1, rows.shape[2]))
        t = torch.maximum(bend, self.SHARE * largest).clamp(min=1e-300)
        weight = alpha / (4 * t)
        own = (weight.unflatten(2, self.z.shape[1:]) * self.lengths**2).sum(-1).amax(-1).sqrt()  # >= ||diag(...) W^T||
        root = weight.gather(2, kept[:, None].expand(-1, alpha.shape[1], -1)).sqrt()
        if rows.shape[1] > rows.shape[2]:
            scaled = root[..., None] * rows[:, None]
            form = scaled.mT @ scaled
        else:
            form = root[..., None] * (rows @ rows.mT)[:, None] * root[..., None, :]
        move = reach.radius[:, None] * psd_norm_upper(form).sqrt() + reach.rho[:, None] * own
        together = move**2 + (alpha * (t - bend)).sum(2)
        return torch.minimum(self.along_each(a, reach), together * (1 + 1e-9))
