"""Global l2 Lipschitz bounds of scaled cosine similarity attention (layers/scaled_cosine.py), after Qi et al. 2023.

Head h is nu P V^, P = softmax(tau Q^ K^^T) by rows, the rows of Q^, K^, V^ being n(y) = y / sqrt(|y|^2 + eps) of those of
X W_Q,h, X W_K,h, X W_V,h. N tokens; nu and tau stand for their absolute values, since a sign moves into Q^ or W_O.
  n. Dn(y) = (I - n n^T) / s, s = sqrt(|y|^2 + eps): eigenvalues 1/s across y and eps/s^3 <= 1/s along it. So n is
     1/sqrt(eps)-Lipschitz, and |n| < 1.
In a direction (dQ^, dK^, dV^), with m_i = sum_j P_ij v_j, row i of the derivative of P V^ is
  sum_j P_ij dv_j  +  tau C_i dq_i  +  tau sum_j P_ij (v_j - m_i) <q_i, dk_j>,   C_i = sum_j P_ij (v_j - m_i) k_j^T.
  v. The rows of P sum to 1. Scores lie in [-tau, tau], so P_ij <= 1 / (1 + (N - 1) e^(-2 tau)), and columns sum to at most
     c = N / (1 + (N - 1) e^(-2 tau)) <= N. So ||P|| <= sqrt(c), and the first term's norm is at most sqrt(c) ||dV^||_F.
  q. <a, C_i b> is the covariance of <a, v> and <b, k> under row i, at most the root of E<a, v>^2 E<b, k>^2 <= 1 for unit a
     and b. Rows are independent: at most tau ||dQ^||_F.
  k. Along a unit a, the third term is at most tau (E<a, v - m_i>^2 E<q_i, dk_j>^2)^(1/2) <= tau (sum_j P_ij |dk_j|^2)^(1/2).
     Over all rows at most tau sqrt(c) ||dK^||_F.
With one token P = 1, and q and k vanish. Through n, ||dQ^||_F <= eps^(-1/2) ||dX W_Q,h||_F, and so on. So a head has
  L_h = nu eps^(-1/2) (sqrt(c) ||W_V,h|| + tau ||W_Q,h|| + tau sqrt(c) ||W_K,h||),
and the layer, whose heads' outputs stand side by side before W_O, ||W_O|| sqrt(sum_h L_h^2).

(42) of Hu et al. 2024, 2 N nu eps^(-1/2) (||W_V|| + tau (N - 1) ||W_K|| + tau (1 - 1/N) ||W_Q||), is for one head without
W_O. It is sound: each of its terms is at least that of L_h for N >= 2, and for N = 1 two of ours vanish.
"""

from __future__ import annotations

import math
from typing import Literal

from benchmark.certificates.bounds.layer_bound import UP
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.scaled_cosine import ScaledCosineAttention


def column_sum(tokens: int, tau: float) -> float:
    """c of the module's docstring: what a column of softmax weights sums to at most, scores being within +-|tau|."""
    return tokens / (1 + (tokens - 1) * math.exp(-2 * abs(tau))) * UP


def scaled_cosine_norm_upper(
    layer: ScaledCosineAttention, tokens: int, method: Literal["tight", "qi"] = "tight"
) -> float:
    """An upper bound of the l2 Lipschitz constant of `layer` on `tokens` tokens, over all inputs.

    Guarantee: never below the true constant, in real arithmetic. With L_h of the module's docstring the least of
      a. ||W_O|| sqrt(sum_h L_h^2);
      b. sum_h L_h ||W_O,h||;
      c. ||W_O|| nu eps^(-1/2) (sqrt(c) ||W_V|| + tau ||W_Q|| + tau sqrt(c) ||W_K||), all heads' columns side by side: term by
         term, sum_h ||dX W_Q,h||_F^2 = ||dX W_Q||_F^2.

    Args:
        method: "tight", or "qi" for a. with (42) in place of L_h.

    Raises:
        TypeError: `layer` is not exactly a ScaledCosineAttention.
        ValueError: no token.
    """
    if type(layer) is not ScaledCosineAttention:
        raise TypeError(f"{type(layer).__name__} is no ScaledCosineAttention; a bound is known for that layer alone")
    if tokens < 1:
        raise ValueError(f"{tokens} tokens; at least one is needed")
    nu, tau = abs(float(layer.nu.detach())), abs(float(layer.tau.detach()))
    query, key, value, output = (weight.detach().double() for weight in layer.head_weights())
    after = float(spectral_norm_upper(output.flatten(0, 1)))
    q, k, v = (spectral_norm_upper(weight) for weight in (query, key, value))
    if method == "qi":
        published = 2 * tokens * (v + tau * (tokens - 1) * (k + q / tokens))
        return nu / math.sqrt(layer.eps) * float(published.norm()) * after * UP
    root, tau = math.sqrt(column_sum(tokens, tau)), tau if tokens > 1 else 0.0
    heads = root * v + tau * (q + root * k)
    whole = [
        float(spectral_norm_upper(weight.transpose(0, 1).flatten(1))) for weight in (query, key, value)
    ]  # all heads' columns: (width, width)
    together = root * whole[2] + tau * (whole[0] + root * whole[1])
    least = min(float(heads.norm()) * after, float((heads * spectral_norm_upper(output)).sum()), together * after)
    return nu / math.sqrt(layer.eps) * least * UP
