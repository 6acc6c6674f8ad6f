"""Work that does not fit into a device's memory, done in halves."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmark.runtime.errors import out_of_memory


def peak() -> int:
    """Bytes of all GPUs that this process has held at most; 0 where it uses none."""
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count()))


def halved(call: Callable[[slice], torch.Tensor], rows: slice, least: int) -> torch.Tensor:
    """`call(rows)`, one row of a result for each; where memory does not suffice, of the two halves, and of theirs.

    Args:
        least: rows that are not halved any more.

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
