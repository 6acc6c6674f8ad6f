"""Global l2 Lipschitz bounds of L2 attention (layers/attention_l2.py), after Kim et al. 2021 and tighter.

Head h is G(X W_Q) W_Q^T W_V / s with G(Y) = P Y, P_ij = softmax_j(-|y_i - y_j|^2 / s). Y = sqrt(s) Z takes s out of P,
so G has the constant of g(Z) = P Z, P_ij = softmax_j(-|z_i - z_j|^2), whatever s is: L(N) of
layers/attention_l2_constant.py, which has the proof.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from benchmark.certificates.bounds.spectral import UNIT, spectral_norm_upper
from benchmark.layers.attention_l2 import L2Attention, kim_constant, mixing_constant

UP = 1 + 1e-12


def l2_attention_norm_upper(layer: L2Attention, tokens: int, method: Literal["tight", "kim"] = "tight") -> float:
    """An upper bound of the l2 Lipschitz constant of `layer` on `tokens` tokens, over all inputs.

    Guarantee: never below the true constant. With K the mixing constant, s = sqrt(width / heads), the least of
      kim:  K/s sqrt(sum_h ||W_Q,h||^4 ||W_V,h||^2) ||W_O||, the theorem's form. Fourth power: A_h holds W_Q twice more;
      a.    K/s sqrt(sum_h ||W_Q,h||^2 ||W_Q,h^T W_V,h||^2) ||W_O||;
      b.    K/s ||W_Q|| ||stacked M_h||, M_h = W_Q,h^T W_V,h W_O,h: the heads' changes dX W_Q,h are dX W_Q together;
      c.    K/s sum_h ||W_Q,h|| ||M_h||.

    Args:
        method: "tight", or "kim" for the theorem's form with Kim et al.'s K alone.

    Raises:
        TypeError: `layer` is not exactly an L2Attention; without A_h attention is not Lipschitz.
    """
    if type(layer) is not L2Attention:
        raise TypeError(f"{type(layer).__name__} is no L2Attention; a bound is known for that layer alone")
    query, value, output = (weight.detach().double() for weight in layer.head_weights())
    scale = math.sqrt(query.shape[2])
    sizes, whole = spectral_norm_upper(query), float(spectral_norm_upper(output.flatten(0, 1)))
    published = float((sizes**4 * spectral_norm_upper(value) ** 2).sum().sqrt()) * whole
    if method == "kim":
        return kim_constant(tokens) / scale * published * UP
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
    """left @ right and a bound of the norm of what rounding did to it, `left` being off by `off` already: (heads,)."""
    sizes = [torch.linalg.matrix_norm(matrix) for matrix in (left, right)]
    return left @ right, (2 * left.shape[-1] * UNIT * sizes[0] + off) * sizes[1] * (1 + 1e-9)
