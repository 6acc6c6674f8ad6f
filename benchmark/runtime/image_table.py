"""What is known of images as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


def image_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """A line an image; a column (m,) shorter than others (n,) speaks of the first images, and has nulls after those."""
    import pyarrow as pa

    known = {name: pa.array(values) for name, values in columns.items()}
    lines = max(map(len, known.values()))
    return pa.table({n: pa.concat_arrays([v, pa.nulls(lines - len(v), v.type)]) for n, v in known.items()})
