"""How many images of a comparison may go the wrong way before the indicator fails."""

from __future__ import annotations

ALLOWED_SHARE = 0.01  # of all images


def allowance(n: int) -> float:
    """Images, of n, that a weaker attack may break and a stronger one leave: one, or 1%, whichever is more.

    Both attacks see the same images, so the choice of images adds no noise. What is left is the random start and float32
    rounding, which decide images whose margin is nearly 0. On the three first rows of the digits track, none of
    them masked, every such count was 0 of 100.
    """
    return max(1.0, ALLOWED_SHARE * n)
