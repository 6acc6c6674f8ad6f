"""How many images of a comparison may go the wrong way before it counts as a sign."""

from __future__ import annotations

SHARE = 0.01


def allowance(n: int) -> float:
    """Images, of n, that a weaker attack may break and a stronger one leave: one, or 1%, whichever is more.

    Both attacks see the same images, so the noise of drawing images cancels; what is left is the luck of a start and
    float32 rounding, which decide images whose margin is all but 0. On the three first rows of the digits track, none of
    them masked, every such count was 0 of 100.
    """
    return max(1.0, SHARE * n)
