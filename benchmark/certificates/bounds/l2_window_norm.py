"""Global l2 Lipschitz bounds of windowed L2 attention with a position bias (layers/attention_l2_window.py), derived here.

As in l2_attention_norm.py, head h is g(Z) of a window, Z = X W_Q / sqrt(s), times W_Q^T W_V / sqrt(s), with g(Z) = P Z, but
P_ij = softmax_j(B_ij - t_ij), t_ij = |u_ij|^2, u_ij = z_j - z_i, for N tokens. B does not move with Z, so the derivative is
the one without it: in a direction dZ row i of Dg is, m_i = sum_j P_ij u_ij, V_i = sum_j P_ij (u_ij - m_i) u_ij^T,
  sum_j P_ij dz_j  -  2 sum_j P_ij (u_ij - m_i) <u_ij, dz_j>  +  2 V_i dz_i.
P has no positive kernel any more. What is left of t_ii = 0: with b_ij = B_ij - B_ii and a row's sum D_i divided by e^(B_ii),
  P_ij = e^(b_ij - t_ij) / D_i,   D_i >= 1 + e^(b_ij - t_ij) for each j != i.
Let phi(x) = x e^(x+1), which increases, so that x = phi^-1(e^v) is where x + log x + 1 = v.
  1. ||V_i|| <= tr V_i <= sum_j P_ij t_ij <= c_i = phi^-1(sum_(j != i) e^(b_ij)). That is sum_(j != i) e^(b_ij) (t_ij - c_i)
     e^(-t_ij) <= c_i, and (t - c) e^(-t) <= e^(-c-1). So the last term has norm at most 2 max_i c_i.
  2. For j != i, P_ij <= 1 / (1 + e^(t_ij - b_ij)) <= 1 / (1 + e^(-b_ij)). Columns of P sum to at most
     C = 1 + max_j sum_(i != j) 1 / (1 + e^(-b_ij)) <= N, rows to 1: the first term has norm at most sqrt(C).
  3. For j != i, P_ij t_ij <= t_ij / (1 + e^(t_ij - b_ij)) <= h_ij = phi^-1(e^(b_ij)): the largest is where
     (t - 1) e^(t - 1) = e^(b_ij - 1), and is t - 1.
  4. |sum_j P_ij (u_ij - m_i) <u_ij, dz_j>|^2 <= ||V_i|| sum_j P_ij t_ij |dz_j|^2 (Cauchy-Schwarz along each direction): the
     middle term, all rows, is at most 2 sqrt(T), T = max_j sum_(i != j) c_i h_ij.
So g is L-Lipschitz, L = sqrt(C) + 2 max_i c_i + 2 sqrt(T), an L_h for each head. With beta = max b and c =
phi^-1((N - 1) e^beta), c_i <= c, C <= N and h_ij <= c_i, so that L <= sqrt(N) + 2 c (1 + sqrt(N)), which is simpler.

Each of c_i, C and h_ij grows with every b_ij. A mask that is 0 on the diagonal and negative elsewhere only lowers them, so L
holds for masked windows too, whatever the mask. Rolling and cutting reorder tokens, windows act apart on tokens of their
own, and every token is in one: the layer's constant is the largest of its windows', that is, a window's without a mask.
"""

from __future__ import annotations

import copy
import math

import torch

from benchmark.certificates.bounds.l2_attention_norm import l2_attention_norm_upper
from benchmark.certificates.bounds.layer_bound import UP
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.runtime.errors import BenchmarkError

LARGEST_BIAS = 1e5  # of |B|, up to which SLACK covers the rounding
SLACK = 1e-9  # added to each b_ij; for float64's rounding of it, of the logarithm of a row's sum, and of phi^-1


def phi_inverse_of_exp(v: torch.Tensor) -> torch.Tensor:
    """An upper bound of the x >= 0 with x e^(x+1) = e^v, within 1e-9 of it, relatively, for v up to 1e6: any shape.

    In logarithms, since e^v overflows: l = log x solves e^l + l + 1 = v, whose left side increases. l <= v - 1; and
    x <= max(v - 1, 1), since x + log x + 1 is at least v there. Below -600, where x < e^-600, that of -600 stands.
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
    """L of the module's docstring for each B: (heads, tokens, tokens) to (heads,) float64.

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
    """An upper bound of the l2 Lipschitz constant of `layer` over all inputs.

    Guarantee: never below the true constant. In l2_attention_norm.py's forms W_V,h stands once in each head's factor, so
    W_V,h times L_h, with 1 in place of the constant of unbiased attention, gives them for heads of different L_h. The
    product rounds each entry once, within what those forms allow for the products that follow.

    Raises:
        TypeError: `layer` is not exactly an L2WindowAttention, or its content not exactly an L2Attention.
    """
    if type(layer) is not L2WindowAttention:
        raise TypeError(f"{type(layer).__name__} is no L2WindowAttention; a bound is known for that layer alone")
    scaled = copy.deepcopy(layer.content).double().requires_grad_(False)
    rows = window_mixing_constants(layer.bias()).repeat_interleave(len(scaled.value.weight) // scaled.heads)
    scaled.value.weight.mul_(rows[:, None])
    return l2_attention_norm_upper(scaled, 1) * UP  # on one token attention mixes nothing: its constant is 1


def checked_window(layer: L2WindowAttention, x: torch.Tensor) -> None:
    """
    Raises:
        BenchmarkError: what the proofs of bounds leave out: other shapes, linear biases, a bias too large, a mask that helps.
    """
    content = layer.content
    if x.ndim != 3 or x.shape[1] != layer.side**2:
        raise BenchmarkError(
            f"L2WindowAttention needs {layer.side}x{layer.side} tokens; it is given shape {tuple(x.shape)}"
        )
    if type(content) is not L2Attention:
        raise BenchmarkError(f"a bound of windows of {type(content).__name__} is not known; use L2Attention")
    if any(linear.bias is not None for linear in (content.query, content.value, content.output)):
        raise BenchmarkError(
            "L2WindowAttention has linear biases, which its bound leaves out; the certificate is refused"
        )
    if not bool((layer.bias_table.abs() <= LARGEST_BIAS).all()):
        raise BenchmarkError(f"L2WindowAttention has a position bias that is not finite or above {LARGEST_BIAS:g}")
    if bool((layer.mask > 0).any() or layer.mask.diagonal(dim1=1, dim2=2).any()):
        raise BenchmarkError(
            "L2WindowAttention's mask raises scores, or hides tokens from themselves; use one that lowers"
        )
