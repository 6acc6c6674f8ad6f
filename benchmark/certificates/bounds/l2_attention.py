"""Bounds of L2 attention, alone and in windows: global constants, and around a nominal input the Jacobian and a curvature.

Global, after Kim et al. 2021 and tighter. Head h is G(X W_Q) W_Q^T W_V / s with G(Y) = P Y, P_ij = softmax_j(-|y_i - y_j|^2
/ s). Y = sqrt(s) Z takes s out of P, so G has the constant of g(Z) = P Z, P_ij = softmax_j(-|z_i - z_j|^2), whatever s is:
L(N) of layers/attention_l2.py, which has the proof.

Windows, derived here, in that proof's names: head h is as above for Z of a window, N tokens, but P_ij = softmax_j(B_ij -
t_ij). B does not move with Z, so Dg has the same three terms, and V_i and the middle term the same bounds by moments of t_ij.
P has no positive kernel any more. What is left of t_ii = 0: with b_ij = B_ij - B_ii and a row's sum D_i divided by e^(B_ii),
  P_ij = e^(b_ij - t_ij) / D_i,   D_i >= 1 + e^(b_ij - t_ij) for each j != i.
As phi increases, x = phi^-1(e^v) is where x + log x + 1 = v.
  1. sum_j P_ij t_ij <= c_i = phi^-1(sum_(j != i) e^(b_ij)), that is sum_(j != i) e^(b_ij) (t_ij - c_i) e^(-t_ij) <= c_i, by
     (t - c) e^(-t) <= e^(-c-1). So the last term has norm at most 2 max_i c_i.
  2. For j != i, P_ij <= 1 / (1 + e^(t_ij - b_ij)) <= 1 / (1 + e^(-b_ij)). Columns of P sum to at most
     C = 1 + max_j sum_(i != j) 1 / (1 + e^(-b_ij)) <= N, rows to 1: the first term has norm at most sqrt(C).
  3. For j != i, P_ij t_ij <= t_ij / (1 + e^(t_ij - b_ij)) <= h_ij = phi^-1(e^(b_ij)): the largest is where
     (t - 1) e^(t - 1) = e^(b_ij - 1), and is t - 1. So the middle term, all rows, is at most 2 sqrt(T),
     T = max_j sum_(i != j) c_i h_ij.
So g is L-Lipschitz, L = sqrt(C) + 2 max_i c_i + 2 sqrt(T), an L_h for each head. With beta = max b and c =
phi^-1((N - 1) e^beta), c_i <= c, C <= N and h_ij <= c_i, so that L <= sqrt(N) + 2 c (1 + sqrt(N)), which is simpler.

Each of c_i, C and h_ij grows with every b_ij. A mask that is 0 on the diagonal and negative elsewhere only lowers them, so L
holds for masked windows too, whatever the mask. Rolling and cutting reorder tokens, windows act apart on tokens of their
own, and every token is in one: the layer's constant is the largest of its windows', that is, a window's without a mask.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch

from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention, mixing_constant
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import (
    REFUSED,
    UP,
    LayerBound,
    PerturbationSet,
    jacobian_norms,
    layer_bound,
    needs_axes,
    needs_grid,
    unbiased,
)
from .rounding import EXPONENTIAL, UNIT32, Rounding, gamma, in_room, linear_rounding, size
from .spectral import UNIT, spectral_norm_upper

FORMED = 1024  # up to this many entries the Jacobian is formed for its norm
LARGEST_BIAS = 1e5  # of |B|, up to which SLACK covers the rounding
SLACK = 1e-9  # added to each b_ij; for float64's rounding of it, of the logarithm of a row's sum, and of phi^-1


def l2_attention_norm_upper(layer: L2Attention, tokens: int) -> float:
    """Return an upper bound of the l2 Lipschitz constant of `layer` on `tokens` tokens, over all inputs.

    Guarantee: never below the true constant. With K the mixing constant, s = sqrt(width / heads), the least of
      kim:  K/s sqrt(sum_h ||W_Q,h||^4 ||W_V,h||^2) ||W_O||, the theorem's form. Fourth power: A_h holds W_Q twice more;
      a.    K/s sqrt(sum_h ||W_Q,h||^2 ||W_Q,h^T W_V,h||^2) ||W_O||;
      b.    K/s ||W_Q|| ||stacked M_h||, M_h = W_Q,h^T W_V,h W_O,h: the heads' changes dX W_Q,h are dX W_Q together;
      c.    K/s sum_h ||W_Q,h|| ||M_h||.

    Raises:
        TypeError: `layer` is not exactly an L2Attention; attention without A_h is not Lipschitz.
    """
    if type(layer) is not L2Attention:
        raise TypeError(f"{type(layer).__name__} is no L2Attention; a bound is known for that layer alone")
    query, value, output = (weight.detach().double() for weight in layer.head_weights())
    scale = math.sqrt(query.shape[2])
    sizes, whole = spectral_norm_upper(query), float(spectral_norm_upper(output.flatten(0, 1)))
    published = float((sizes**4 * spectral_norm_upper(value) ** 2).sum().sqrt()) * whole
    inner, inner_off = _product(query.mT, value, torch.zeros_like(sizes))
    joined, joined_off = _product(inner, output, inner_off)
    by_head = spectral_norm_upper(joined) + joined_off
    stacked = float(spectral_norm_upper(joined.flatten(0, 1))) + float(torch.linalg.vector_norm(joined_off))
    together = float(spectral_norm_upper(query.transpose(0, 1).flatten(1)))
    forms = (
        published,
        float((sizes * (spectral_norm_upper(inner) + inner_off)).norm()) * whole,
        together * stacked,
        float((sizes * by_head).sum()),
    )
    return mixing_constant(tokens) / scale * min(forms) * UP


def _product(left: torch.Tensor, right: torch.Tensor, off: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left @ right and a bound (heads,) of the norm of its rounding, `left` being off by `off` (heads,)."""
    sizes = [torch.linalg.matrix_norm(matrix) for matrix in (left, right)]
    return left @ right, (2 * left.shape[-1] * UNIT * sizes[0] + off) * sizes[1] * (1 + 1e-9)


def phi_inverse_of_exp(v: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of the x >= 0 with x e^(x+1) = e^v, within 1e-9 of it, relatively, for v up to 1e6: any shape.

    In logarithms, since e^v overflows: l = log x solves e^l + l + 1 = v, whose left side increases. l <= v - 1; and
    x <= max(v - 1, 1), since x + log x + 1 is at least v there. Below -600, where x < e^-600, the bound is that of -600.
    """
    v = v.double().clamp(min=-600.0) + SLACK  # the sum is computed to 1e-15 of e^l + |l| + 1
    high = v - 1
    low = high - high.clamp(min=1.0)
    for _ in range(80):
        middle = (low + high) / 2
        above = middle.exp() + middle + 1 >= v
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high.exp() * UP


def window_mixing_constants(bias: torch.Tensor) -> torch.Tensor:
    """Return L of the module's docstring for each B: (heads, tokens, tokens) to (heads,) float64.

    Guarantee: never below the Lipschitz constant of Z -> softmax(B_ij - |z_i - z_j|^2) Z, nor below that with a mask.

    Raises:
        ValueError: a bias that is not finite, or larger than LARGEST_BIAS.
    """
    bias = bias.detach().double()
    if not bool((bias.abs() <= LARGEST_BIAS).all()):
        raise ValueError(f"a position bias is not finite or above {LARGEST_BIAS:g}")
    gaps = bias - bias.diagonal(dim1=1, dim2=2)[..., None] + SLACK
    gaps = gaps.masked_fill(torch.eye(bias.shape[-1], dtype=torch.bool, device=bias.device), -math.inf)
    rows, pairs = phi_inverse_of_exp(gaps.logsumexp(-1)), phi_inverse_of_exp(gaps)  # c_i (heads, N), h_ij
    column = 1 + gaps.sigmoid().sum(1).amax(-1)
    weighted = (rows[..., None] * pairs).sum(1).amax(-1)
    return (column.sqrt() + 2 * rows.amax(-1) + 2 * weighted.sqrt()) * UP


def l2_window_norm_upper(layer: L2WindowAttention) -> float:
    """Return an upper bound of the l2 Lipschitz constant of `layer` over all inputs.

    Guarantee: never below the true constant. `l2_attention_norm_upper`'s forms have W_V,h once in each head's factor. So they
    hold for heads of different L_h, with L_h W_V,h for W_V,h and 1 for the constant of unbiased attention. The product rounds
    each entry once, within what those forms allow for the products that follow.

    Raises:
        TypeError: `layer` is not exactly an L2WindowAttention, or its content not exactly an L2Attention.
    """
    if type(layer) is not L2WindowAttention:
        raise TypeError(f"{type(layer).__name__} is no L2WindowAttention; a bound is known for that layer alone")
    scaled = copy.deepcopy(layer.content).double().requires_grad_(False)
    rows = window_mixing_constants(layer.bias()).repeat_interleave(len(scaled.value.weight) // scaled.heads)
    scaled.value.weight.mul_(rows[:, None])
    return l2_attention_norm_upper(scaled, 1) * UP  # on one token attention mixes nothing: its constant is 1


@layer_bound.register(L2Attention)
class L2AttentionBound(LayerBound):
    """As in the module's docstring, head h is sqrt(s) g(Z) W_Q^T W_V / s, Z = X W_Q / sqrt(s), and row i of g is z_i + m_i,
    m_i = sum_j P_ij u_ij. Let the z move by at most e together, v_ij = dz_j - dz_i, |v_ij| <= sqrt(2) e. Over that ball
    |u_ij| <= u+ = |u_ij| + sqrt(2) e, exponents move by at most b_ij = 2 sqrt(2) e |u_ij| + 2 e^2, so that
    P_ij <= p_ij = min(1, P_ij e^b_ij / sum_k P_ik e^-b_ik), and |m_i| <= c_i = sum_j p_ij u+_ij.
    With E_j = -|u_j|^2, dE_j = -2 <u_j, v_j> and means under P_i, the second derivative of m_i is
      2 mean((dE - mean dE) v)  -  2 mean((u - m) |v|^2)  +  mean((u - m)(dE - mean dE)^2),
    of norm at most sum_j q_ij |v_ij|^2, q = p (4 u+^2 / k + k + 2 (u+ + c) + 8 u+^2 (u+ + 3 c)) for any k_i > 0: for the
    first, 2 sqrt(mean dE^2 mean |v|^2); for the last, (dE - mean dE)^2 <= 2 dE^2 + 2 mean dE^2 and mean |u - m| <= 2 c.
    Since |v_ij|^2 <= 2 |dz_i|^2 + 2 |dz_j|^2, all rows together are convex in the |dz_k|^2, so that one token's moving is
    worst: at most e^2 max_k ||2 (sum_j q_kj) e_k + 2 q_.k||. The remainder is half of that. `offsets` (n, heads, tokens,
    tokens), added to the scores, do not move and stand in P alone: nothing else of this changes.

    Args:
        everywhere: a global constant of the layer, needed with offsets, where unbiased attention's does not hold.
    """

    def __init__(
        self, layer: L2Attention, x: torch.Tensor, *, offsets: torch.Tensor | None = None, everywhere: float | None = None
    ) -> None:
        needs_axes(layer, x, 3)
        unbiased(layer, layer.query, layer.value, layer.output)
        self.layer, self.x = layer, x
        query, value, output = (weight.double() for weight in layer.head_weights())
        scale = math.sqrt(query.shape[2])
        assert (offsets is None) == (everywhere is None)
        self.everywhere = l2_attention_norm_upper(layer, x.shape[1]) if everywhere is None else everywhere
        inner = query.mT @ value @ output  # M_h; rounding is far below the 1e-9 added, unless M_h itself is rounding
        floor = 1e-12 * query.flatten(1).norm(dim=1) * value.flatten(1).norm(dim=1) * output.flatten(1).norm(dim=1)
        self.after = (spectral_norm_upper(inner) * (1 + 1e-9) + floor) / math.sqrt(scale)  # sqrt(s) M_h / s: (heads,)
        stacked = spectral_norm_upper(inner.flatten(0, 1)) * (1 + 1e-9) + floor.norm()
        self.after_all = stacked / math.sqrt(scale)
        self.before = spectral_norm_upper(query) / math.sqrt(scale) * UP
        self.query, self.inner, self.scale = query, query.mT @ value / scale, scale
        self.y = torch.einsum("nic,hcd->nhid", x, query)
        z = self.y / math.sqrt(scale)
        squares = ((z[:, :, :, None] - z[:, :, None]) ** 2).sum(-1)
        self.p, self.u = (-squares if offsets is None else offsets - squares).softmax(-1), squares.sqrt()

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        if self.x[0].numel() > FORMED:
            return self.x.new_full((len(self.x),), self.everywhere)
        return jacobian_norms(self._derivative, self.x, self.everywhere)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return self._derivative(columns, slice(None))

    def _derivative(self, columns: torch.Tensor, images: slice) -> torch.Tensor:
        """Return J columns (directions, n, tokens, width) around the nominal inputs `images`."""
        p, y = self.p[images], self.y[images]
        dy = torch.einsum("pnic,hcd->pnhid", columns, self.query)
        scores = 2 * (dy @ y.mT + y @ dy.mT - (y * dy).sum(-1)[..., None, :]) / self.scale
        dp = p * (scores - (p * scores).sum(-1, keepdim=True))
        mixed = (dp @ y + p @ dy) @ self.inner
        return mixed.transpose(2, 3).flatten(3) @ self.layer.output.weight.mT

    def _bend(self, delta: torch.Tensor) -> torch.Tensor:
        """Return a bound of ||F(x + D) - F(x) - J D|| for ||D|| <= delta: (n,)."""
        e = (delta[:, None] * self.before)[..., None, None]  # (n, heads, 1, 1)
        shift = 2 * math.sqrt(2) * e * self.u + 2 * e**2
        shift = shift - torch.diag_embed(shift.diagonal(dim1=-2, dim2=-1))  # a token and itself do not part
        low = (self.p * torch.exp(-shift)).sum(-1, keepdim=True)
        grown = (self.p * (1 + 1e-9) + 1e-300) * torch.exp(shift) / low  # what rounding or underflow may have taken
        p = torch.nan_to_num(grown, nan=1.0).clamp(max=1.0)
        u = (self.u + math.sqrt(2) * e) * (1 + 1e-9)
        apart = 1 - torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        p = p * apart
        c = (p * u).sum(-1, keepdim=True)
        k = 2 * (p * u**2).sum(-1, keepdim=True).sqrt().clamp(min=1e-6)
        q = p * (4 * u**2 / k + k + 2 * (u + c) + 8 * u**2 * (u + 3 * c))
        worst = 2 * (q + torch.diag_embed(q.sum(-1)))  # column k: what the move of token k alone gives
        half = e[..., 0, 0] ** 2 * torch.linalg.vector_norm(worst, dim=-2).amax(-1) / 2
        least = torch.minimum((half * self.after).sum(1), half.norm(dim=1) * self.after_all) * (1 + 1e-9)
        return torch.nan_to_num(least, nan=math.inf)

    @cached_property
    def _rounding(self) -> Rounding:  # type: ignore[override]
        return l2_rounding(self.layer, self.x, self.x.shape[1], mixing_constant(self.x.shape[1]), 0.0)

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self.everywhere * delta

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.minimum(self.everywhere * delta, (self.jacobian_norm * delta + self._bend(delta)) * UP)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        moved = (self.everywhere + self.jacobian_norm) * perturbation.delta
        return torch.minimum(moved, self._bend(perturbation.delta)) * UP


def l2_rounding(layer: L2Attention, x: torch.Tensor, tokens: int, mixing: float | torch.Tensor, offset: float) -> Rounding:
    """Return the rounding of L2 attention. Per head, Y = x W_Q, I = W_Q^T W_V / s, scores
    (2 Y Y^T - squares) / s, values Y I, norms over all tokens.

    Y moves by dY as a linear layer; G is L(N)-Lipschitz, so exact attention of the moved Y is off by L(N) dY ||I||. From
    there scores err by gamma(d_h + 6) (2 + sqrt N) ||Y||^2 / s, the logarithm of a weight by 6 u max |S| + 2 EXPONENTIAL with
    |S| <= 3 ||Y||^2 / s, softmax is 1/2-Lipschitz, values err by gamma(d_h + d + 8) ||Y|| A, where
    A = || |W_Q|^T |W_V| || / s >= ||I||; the mixed values and the output as in `attention_rounding`. An `offset` of the
    scores enters max |S|, and rounds when it is made and when it is added; what the sum rounds of S is one of d_h + 6.

    Range (rounding.py), Y' being Y + dY: scores sum to at most 3 ||Y'||^2 before their division by s, values to
    ||Y'|| A s, what is mixed to m = 2 sqrt(N) ||Y'|| A, since rows of what is computed of P sum to less than 2, the output
    to m || |W_O| ||.

    Args:
        tokens: N, of a window. Norms over all windows are at least each window's, and the bounds are linear in the norms of
            values and of dY, with factors that are the same for all windows.
        mixing: L(N), or one for each head.
        offset: the largest absolute number that is added to a score.
    """
    query, value, _ = (weight.double() for weight in layer.head_weights())
    width, inner, root = x.shape[2], query.shape[2], math.sqrt(tokens)
    scale = math.sqrt(inner)
    linears = [linear_rounding(x, head.mT) for head in query]
    sizes = torch.stack([size(x @ head) for head in query], dim=1)  # (n, heads)
    norms = spectral_norm_upper(query)
    absolute = spectral_norm_upper(query.abs().mT @ value.abs()) / scale * UP
    after, after_absolute = (spectral_norm_upper(weight) for weight in (layer.output.weight, layer.output.weight.abs()))

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        dy = torch.stack([linear(delta) for linear in linears], dim=1)
        y = sizes + delta[:, None] * norms + dy
        ds = gamma(inner + 6) * (2 + root) * y**2 / scale
        logarithm = 6 * UNIT32 * 3 * y**2 / scale + 2 * EXPONENTIAL + 9 * UNIT32 * offset
        sums = gamma(2 * tokens + 6)
        dp = (ds + tokens * logarithm) / 2 + sums * root
        v = y * absolute
        dv = gamma(inner + width + 8) * v
        dm = dp * (v + dv) + root * dv + sums * (root + dp) * (v + dv) + mixing * dy * absolute
        moved, mixed = (torch.linalg.vector_norm(part, dim=1) for part in (dm, root * v + dm))
        out = moved * after + gamma(width + 3) * mixed * after_absolute
        values = 2 * root * torch.linalg.vector_norm(v + dv, dim=1) * (scale + after_absolute)
        widest = torch.maximum(3 * y.amax(1) ** 2 + offset, values)
        return in_room(out, widest)

    return rounding


@layer_bound.register(L2WindowAttention)
class L2WindowBound(LayerBound):
    """The Jacobian is block diagonal, a block for each window, so its norm is the largest of theirs. If the image moves by at
    most delta and window w by delta_w, delta_w^2 summing to delta^2 at most, window w's output moves by at most
    bound_w(delta) delta_w / delta, and its remainder is at most remainder_w(delta) delta_w / delta: both come from bounds of
    derivatives over the whole ball, times delta_w, or from delta_w^2 <= delta delta_w. So the largest window counts too.
    """

    def __init__(self, layer: L2WindowAttention, x: torch.Tensor) -> None:
        _check_window(layer, x)
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
    def _rounding(self) -> Rounding:  # type: ignore[override]
        layer = self.layer
        offset = float(layer.offsets().detach().abs().max())
        return l2_rounding(layer.content, self.x, layer.window**2, window_mixing_constants(layer.bias()), offset)


def _check_window(layer: L2WindowAttention, x: torch.Tensor) -> None:
    """Raise a BenchmarkError for what the proofs exclude: shapes, linear biases, too large a bias, a raising mask."""
    content = layer.content
    needs_grid(layer, x, layer.side)
    if type(content) is not L2Attention:
        raise BenchmarkError(f"a bound of windows of {type(content).__name__} is not known; use L2Attention")
    unbiased(layer, content.query, content.value, content.output)
    if not bool((layer.bias_table.abs() <= LARGEST_BIAS).all()):
        raise BenchmarkError(f"L2WindowAttention has a position bias that is not finite or above {LARGEST_BIAS:g}")
    if bool((layer.mask > 0).any() or layer.mask.diagonal(dim1=1, dim2=2).any()):
        raise BenchmarkError("L2WindowAttention's mask raises scores, or hides tokens from themselves; use one that lowers")


REFUSED[ReleasedL2Attention] = "L2 attention without A_h (CertViT's released code) is not Lipschitz; use L2Attention"
