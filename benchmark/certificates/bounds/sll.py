"""Bounds of SLL blocks; activations' remainders are bounded element by element or as one quadratic form."""

from __future__ import annotations

import torch

from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import UP, LayerBound, PerturbationSet, layer_bound, needs_axes, within
from .rounding import ROOM, UNIT32, covered, gamma, size
from .spectral import psd_norm_upper, spectral_norm_upper


@layer_bound.register(SLLBlock)
class SLLBound(LayerBound):
    """The bound of an SLL residual block, x - 2 W T^-1 relu(W^T x + b).

    Neuron u of token t with pre-activation z moves by D_tu. Its remainder is
    0 <= relu(z + D) - relu(z) - 1[z > 0] D <= max(|D| - |z|, 0). It lowers a margin only where alpha = 2 (a W) / T > 0.

    Sums over neurons are bounded in two ways. Element by element: each |D_tu| at its largest, m. Quadratically: all neurons
    share one budget. The remainder is at most c D^2 + o for |D| <= m, so the sum is at most
    (radius ||diag(sqrt(alpha c)) Z|| + rho ||diag(sqrt(alpha c)) W^T||)^2 + sum alpha o, Z = W^T L. Up to m = 2 |z|,
    (|D| - |z|)+ / D^2 grows with |D|, so c = (m - |z|) / m^2 and o = 0; beyond, c = 1 / (4 t) and o = t - |z| for every
    t >= |z|, here t = max(|z|, OFFSET_FRACTION m).

    Jacobian: J = I - 2 W T^-1 S W^T, 0 <= S <= I, and W^T W <= lam T, so J^T J <= I + 4 (lam - 1) W T^-1 S W^T for lam >= 1.

    Rounding, v = |x| |W| + |b| and r = relu(z) / T: the inner sum errs by e, |e| <= gamma(d + 1) v, which acts through
    2 W T^-1; the quotient and the outer sum err by gamma(hidden + 14) 2 (r + e / T) |W|^T, the subtraction by u (|x| + that).

    Range (rounding.py): T is at least 1e-30 and |w|^2, w a neuron's column, so 2 |z| / T is at most 2e7 / |w| + 2e37 for |w|
    above 1e-15 and 4e37 below, where float32 ends at 3.4e38; times W it is at most 4e7 for each neuron, or 4e22. T itself has
    to be below ROOM, or float32 would divide by infinity.
    """

    OFFSET_FRACTION = 0.35  # of the largest move m: the least t in `_parabola`
    RIVAL_FRACTION = 1.0  # the same in `relax_for_rival`

    def __init__(self, layer: SLLBlock, x: torch.Tensor) -> None:
        needs_axes(layer, x, 3)
        self.weight, self.scale = layer.weight, layer.scale
        if not (self.scale <= ROOM).all():  # a NaN too
            name = type(layer).__name__
            raise BenchmarkError(f"{name} with log_q this uneven divides by more than {ROOM:g}, or by NaN")
        self.z = x @ layer.weight + layer.bias
        self.slopes = self._slopes(layer)
        self.chosen_slopes = self.slopes  # those that `jvp` applies
        self.lam = lam = spectral_norm_upper(layer.weight / layer.scale.sqrt()) ** 2
        self.jacobian_norm = (1 + 4 * lam * (lam - 1).clamp(min=0)).sqrt() * UP  # 1 when T >= W^T W, as it should be
        self.everywhere = float(self.jacobian_norm)
        self.back = spectral_norm_upper(2 * layer.weight / layer.scale)
        self.lengths = torch.linalg.vector_norm(layer.weight, dim=0)
        self._met: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        absolute = layer.weight.abs()
        self.size, self.inner = size(x), size(x.abs() @ absolute + layer.bias.abs())
        self.inner_gain = spectral_norm_upper(absolute)
        self.outer = size(2 * (layer.active(self.z) / layer.scale) @ absolute.mT)
        self.outer_gain = spectral_norm_upper(2 * absolute / layer.scale)
        self.forth = spectral_norm_upper(layer.weight)
        self.gammas = gamma(layer.weight.shape[0] + 1), gamma(layer.weight.shape[1] + 14)

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inner = self.gammas[0] * (self.inner + delta * self.inner_gain)
        outer = self.outer + (delta * self.forth + inner) * self.outer_gain
        return covered(self.back * inner + self.gammas[1] * outer + UNIT32 * (self.size + delta + outer))

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        n, tokens, width, p = (columns.shape[k] for k in (1, 2, 3, 0))
        back = -2 * self.weight * (self.chosen_slopes / self.scale)[:, :, None]  # (n, tokens, width, hidden)
        moved = torch.baddbmm(
            columns.permute(1, 2, 3, 0).reshape(n * tokens, width, p),
            back.flatten(0, 1),
            self._rows(columns)[0].flatten(0, 1),
        )
        return moved.reshape(n, tokens, width, p).permute(3, 0, 1, 2)

    def _rows(self, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Z (n, tokens, hidden, directions) and its row norms (n, tokens, hidden), cached for the same columns."""
        if self._met is None or self._met[0] is not columns:
            rows = self.weight.mT @ columns.permute(1, 2, 3, 0)
            self._met = (columns, rows, torch.linalg.vector_norm(rows, dim=-1))
        return self._met[1:]

    def _largest(self, perturbation: PerturbationSet) -> torch.Tensor:
        """Return the largest |D_tu|: (n, tokens, hidden)."""
        through = (
            perturbation.radius[:, None, None] * self._rows(perturbation.columns)[1]
            + perturbation.rho[:, None, None] * self.lengths
        )
        return torch.minimum(through, perturbation.delta[:, None, None] * self.lengths) * UP

    def _slopes(self, layer: SLLBlock) -> torch.Tensor:
        """Return the activation's slopes at z."""
        return (self.z > 0).double()

    def _missed(self, most: torch.Tensor) -> torch.Tensor:
        """Return the largest remainder of each neuron for |D| <= most (n, tokens, hidden); 0 where it is linear."""
        return (most - self.z.abs()).clamp(min=0)

    def _parabola(self, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return c and o where `_missed` is above 0: (n, tokens, hidden) each."""
        bend = self.z.abs()
        t = torch.maximum(bend, self.OFFSET_FRACTION * most).clamp(min=1e-300)
        near = most < 2 * bend
        return torch.where(near, (most - bend).clamp(min=0) / most.clamp(min=1e-150) ** 2, 1 / (4 * t)), t - bend

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """The smaller of a bound element by element and one where neurons share a budget. A neuron's remainder is at most
        k |D| (`_ratio`), and ||2 W T^-1 R|| <= 2 ||W T^-1/2|| (sum k^2 D^2 / T)^1/2.
        """
        most = self._largest(perturbation)
        ratio = self._ratio(most)
        apart = self.back * (ratio * most).flatten(1).norm(dim=1)
        weight = ratio**2 / self.scale
        together = 2 * (self.lam * self._squares(weight.flatten(1)[:, None], perturbation)[:, 0]).sqrt()
        return torch.minimum((1 + self.jacobian_norm) * perturbation.delta, torch.minimum(apart, together) * (1 + 1e-9))

    def choose_relaxation(self, perturbation: PerturbationSet) -> None:
        """Choose slopes s in [0, 1] for `jvp` that halve a neuron's largest remainder over `perturbation`, compared with the
        nominal slopes: s = 1/2 + z / (2 m) where m > |z|.
        """
        most = torch.maximum(self._largest(perturbation), self.z.abs()).clamp(min=1e-300)
        self.chosen_slopes = (0.5 + self.z / (2 * most)).clamp(0, 1)

    def _ratio(self, most: torch.Tensor) -> torch.Tensor:
        """Return k with |relu(z + D) - relu(z) - s D| <= k |D| for |D| <= m, s the chosen slopes: (n, tokens, hidden).

        While z + D stays on z's side of the kink, the left side is (1 - s) |D| for z > 0 and s |D| otherwise. Beyond the
        kink its ratio to |D| changes by at most 1 - |z| / m more.
        """
        before = torch.where(self.z > 0, 1 - self.chosen_slopes, self.chosen_slopes)
        beyond = 1 - before - self.z.abs() / most.clamp(min=1e-300)
        return torch.maximum(before, beyond)

    def remainder_along_elementwise(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        missed = self._missed(self._largest(perturbation)).flatten(1)[:, None]
        return (self._against(a) * missed).sum(2) * (1 + 1e-9)

    def _against(self, a: torch.Tensor) -> torch.Tensor:
        """Return alpha where positive, else 0: (n, rivals, tokens * hidden)."""
        return (2 * (a @ self.weight) / self.scale).flatten(2).clamp(min=0)

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        most = self._largest(perturbation)
        square, offset = (part.flatten(1)[:, None] for part in self._parabola(most))
        missed, alpha = self._missed(most).flatten(1)[:, None], self._against(a)
        reached = alpha * (missed > 0)
        together = self._squares(reached * square, perturbation) + (reached * offset).sum(2)
        return torch.minimum((alpha * missed).sum(2), together) * (1 + 1e-9)

    def _squares(self, weight: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        """Return a bound of sum weight D^2, for weights >= 0 (n, rivals, tokens * hidden): (n, rivals)."""
        counted = (weight > 0).any(1)
        kept = counted.to(torch.int8).topk(max(1, int(counted.sum(1).max())), dim=1).indices
        rows = self._rows(perturbation.columns)[0].flatten(1, 2)
        rows = rows.gather(1, kept[..., None].expand(-1, -1, rows.shape[2]))
        each = weight.unflatten(2, self.z.shape[1:])  # ||diag(...) W^T||^2 is at most its trace, and lam max(weight T)
        rest = torch.minimum((each * self.lengths**2).sum(-1), (each * self.scale).amax(-1) * self.lam)
        rest = rest.amax(-1).sqrt() * UP
        root = weight.gather(2, kept[:, None].expand(-1, weight.shape[1], -1)).sqrt()
        if rows.shape[1] > rows.shape[2]:
            scaled = root[..., None] * rows[:, None]
            form = scaled.mT @ scaled
        else:
            form = root[..., None] * (rows @ rows.mT)[:, None] * root[..., None, :]
        return (perturbation.radius[:, None] * psd_norm_upper(form).sqrt() + perturbation.rho[:, None] * rest) ** 2

    def relax_for_rival(self, a: torch.Tensor, perturbation: PerturbationSet) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Choose slopes for each rival. Where alpha > 0, |y| <= y^2 / (2 t) + t / 2 at y = z + D gives, for every t > 0,
        relu(z + D) = (y + |y|) / 2 <= relu(z) + s D + D^2 / (4 t) + o, s = 1/2 + z / (2 t), o = (t - |z|)^2 / (4 t): a fourth
        of `_parabola`'s offset or less at the same square, t = max(|z|, RIVAL_FRACTION m). Where m < 2 |z| the nominal
        slope with o = 0 stays; so it does where alpha <= 0, because relu lies above its tangent.
        """
        most, bend = self._largest(perturbation), self.z.abs()
        alpha = 2 * (a @ self.weight) / self.scale  # (n, rivals, tokens, hidden)
        t, near = torch.maximum(bend, self.RIVAL_FRACTION * most).clamp(min=1e-300), most < 2 * bend
        slopes = torch.where(near, self.slopes, (0.5 + self.z / (2 * t)).clamp(0, 1))
        square = torch.where(near, (most - bend).clamp(min=0) / most.clamp(min=1e-150) ** 2, 1 / (4 * t)) * UP
        offset = torch.where(near, 0.0, (t - bend) ** 2 / (4 * t)) * UP
        back = a - (alpha * torch.where(alpha > 0, slopes[:, None], self.slopes[:, None])) @ self.weight.mT
        alpha = alpha.clamp(min=0).flatten(2)
        weight = alpha * square.flatten(1)[:, None]
        squares = torch.minimum(self._squares(weight, perturbation), (weight * most.flatten(1)[:, None] ** 2).sum(2))
        return (squares + (alpha * offset.flatten(1)[:, None]).sum(2)) * (1 + 1e-9), back


@layer_bound.register(SmoothSLLBlock)
class SmoothSLLBound(SLLBound):
    """f(z) = (z + h)^2 / (4 h) within |z| < h, max(z, 0) elsewhere, in place of the ReLU; g = (|z| - h)+.

    f is convex, so the remainder R is no less than 0 and hurts where alpha > 0 alone. |f'(z + t D) - f'(z)| is at most
    min((t |D| - g)+ / (2 h), 1): f' is 1 / (2 h)-Lipschitz, constant until the move is longer than g, and in [0, 1]. So
      R <= phi((|D| - g)+), phi(v) = v^2 / (4 h) up to v = 2 h and v - h beyond.
    As a parabola c D^2 + o for |D| <= m: phi(v) <= v^2 / (4 h) and (|D| - g)+ / |D| grows with |D|, so
    c = ((m - g) / m)^2 / (4 h), o = 0; or, as for the ReLU with g + h for |z|, c = 1 / (4 t), o = t - (g + h), t >= g + h.
    (phi(v) lies below D^2 / (4 t) + t - (g + h): beyond v = 2 h by |D| <= D^2 / (4 t) + t; at
    t = g + h and |D| in [g, g + 2 h] because D^2 h - (|D| - g)^2 (g + h) is concave there and not negative at both ends;
    and D^2 / (4 t) + t grows with t while |D| <= 2 t.) Whichever c is less, if it comes without an offset.

    Rounding: f in float32 adds two errors of the sum (it is squared), one of the square, one of the quotient.
    """

    def __init__(self, layer: SmoothSLLBlock, x: torch.Tensor) -> None:
        within(layer, 0.99e-6, 1e6, bend=layer.bend)
        self.bend = layer.bend
        super().__init__(layer, x)
        self.idle = (self.z.abs() - self.bend).clamp(min=0)

    def _slopes(self, layer: SLLBlock) -> torch.Tensor:
        return ((self.z + self.bend) / (2 * self.bend)).clamp(0, 1)

    def _missed(self, most: torch.Tensor) -> torch.Tensor:
        over = (most - self.idle).clamp(min=0)
        return torch.where(over < 2 * self.bend, over**2 / (4 * self.bend), over - self.bend) * UP

    def _parabola(self, most: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bend = self.idle + self.bend
        curved = ((most - self.idle).clamp(min=0) / most.clamp(min=1e-300)) ** 2 / (4 * self.bend)
        t = torch.maximum(bend, self.OFFSET_FRACTION * most)
        kinked = curved > 1 / (4 * t)
        return torch.where(kinked, 1 / (4 * t), curved) * UP, torch.where(kinked, t - bend, 0.0)

    def choose_relaxation(self, perturbation: PerturbationSet) -> None:
        """Keep the nominal slopes."""

    def _ratio(self, most: torch.Tensor) -> torch.Tensor:
        """As phi is convex and phi(0) = 0, a neuron's remainder over |D| grows with |D|."""
        return self._missed(most) / most.clamp(min=1e-300)

    def relax_for_rival(self, a: torch.Tensor, perturbation: PerturbationSet) -> None:
        """Return None: the nominal slopes stay."""

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """Also R <= c m |D| with the curved c, so all neurons together miss at most max(c m) ||W|| delta."""
        most = self._largest(perturbation)
        curved = (most - self.idle).clamp(min=0) ** 2 / most.clamp(min=1e-300) / (4 * self.bend)
        together = self.back * self.forth * curved.flatten(1).amax(1) * perturbation.delta * UP
        return torch.minimum(super().remainder(perturbation), together)
