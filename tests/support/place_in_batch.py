"""Equality of rows that stood at other places of a batch, as far as this processor's products allow it."""

from __future__ import annotations

from functools import cache

import torch


@cache
def products_keep_rows() -> bool:
    """Whether a float32 product rounds a row alike wherever it stands. MKL's kernels for processors without AVX2 (and so
    MKL_CBWR=COMPATIBLE) sum the last rows in another order: nothing above them can be exact there.
    """
    # sums of whole multiples of quicker.ALIGNED, the only ones that the engine makes products of itself
    stream = torch.Generator().manual_seed(0)
    for inner, outer in ((12, 8), (36, 8), (64, 96), (96, 10)):
        rows, weight = torch.randn(240, inner, generator=stream), torch.randn(outer, inner, generator=stream)
        whole = rows @ weight.mT
        for count in (8, 9, 17, 33, 240):
            some = torch.randperm(240, generator=stream)[:count]
            if not torch.equal(rows[some] @ weight.mT, whole[some]):
                return False
    return True


def assert_same_rows(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To the bit, or where products themselves differ by place, to what float32 sums of a hundred terms may differ by."""
    slack = 0.0 if products_keep_rows() else 1e-5
    torch.testing.assert_close(found, expected, rtol=slack, atol=slack)
