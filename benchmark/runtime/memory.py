"""GPU memory: its peak, and work that is halved when it does not fit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmark.runtime.errors import out_of_memory


def peak() -> int:
    """Return the peak bytes of all GPUs that this process has reserved; 0 if it uses none."""
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count()))


def halved(call: Callable[[slice], torch.Tensor], rows: slice, least: int) -> torch.Tensor:
    """Return `call(rows)`, one row of a result for each; if memory does not suffice, of both halves, recursively.

    Args:
        least: rows that are not halved further.

    Raises:
        Exception: whatever `call` raises for another reason, or for `least` rows or fewer.
    """
    count = rows.stop - rows.start
    try:
        return call(rows)
    except Exception as error:
        if count <= least or not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # outside of the handler, which holds what the failed call had
    middle = rows.start + max(least, -(-count // 2))
    parts = (slice(rows.start, middle), slice(middle, rows.stop))
    return torch.cat([halved(call, part, least) for part in parts if part.start < part.stop])
