"""L2 attention in the windows of Swin (Liu et al. 2021): CertViT's stand-in for Swin's attention (Gupta & Verma 2023)."""

from __future__ import annotations

from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import WindowAttention


class L2WindowAttention(WindowAttention):
    """In a window, P_h = softmax over j of -||x_i W_Q,h - x_j W_Q,h||^2 / s + B_h,ij, and the output is concat over heads of
    P_h X A_h W_V,h, times W_O, as in `L2Attention`, which is the `content`: (n, side^2, width) to the same.

    Weights across a masked border are at most e^(max_j (B_ij - B_ii) - 100).

    Args:
        side, window, shift: as of `WindowAttention`.

    Raises:
        ValueError: heads do not divide the width, or as of `WindowAttention`.
    """

    content: L2Attention

    def __init__(self, width: int, heads: int, *, side: int, window: int, shift: int = 0) -> None:
        super().__init__(L2Attention(width, heads), side=side, window=window, shift=shift)
