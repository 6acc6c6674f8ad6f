"""Reader of Hugging Face's parquet layout: <path>/train*.parquet and <path>/test*.parquet (or validation*).

Each is one file, or all shards (-00000-of-00002). A row is an image. Columns: `img` or `image`, a struct {bytes, path} with
an encoded image, and `label` (or `fine_label`), an integer.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmark.data.image_folder import opened
from benchmark.data.images import Images
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.data import DataSpec

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label", "labels")


def read(spec: DataSpec) -> dict[str, Images]:
    """Return the pools "train" and "test".

    Raises:
        BenchmarkError: a missing or unreadable file or shard, other columns, or a row that does not decode; with the sha256.
    """
    root = Path(spec.path or "data")
    return {"train": _read(root, ("train",), spec), "test": _read(root, ("test", "validation"), spec)}


def _read(root: Path, prefixes: tuple[str, ...], spec: DataSpec) -> Images:
    matches = (sorted(root.glob(f"{prefix}*.parquet")) for prefix in prefixes)
    paths = next(filter(None, matches), None)
    if paths is None:
        raise BenchmarkError(f"no {prefixes[0]}*.parquet in {root}; put the data set's parquet files there")
    shards = [f"-{i:05}-of-{len(paths):05}" in path.name for i, path in enumerate(paths)]
    if not all(shards) and (len(paths) > 1 or "-of-" in paths[0].name):
        raise BenchmarkError(f"{paths[0]}: keep one file, or all shards of one set, in {root}")
    pixels, labels = [], []
    for path in paths:
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise BenchmarkError(
                f"{path} is no readable parquet file (sha256 {files.sha256_file(path)}): {error}; "
                "replace it with the data set's own file"
            ) from None
        images, classes = _column(table, IMAGE_COLUMNS, path), _column(table, LABEL_COLUMNS, path)
        if not len(classes) or classes.null_count or not pa.types.is_integer(classes.type):
            raise BenchmarkError(f"{path}: {len(classes)} labels ({classes.type}) are not an integer a row; replace it")
        labels.append(classes.to_numpy())
        for row, cell in enumerate(images):
            struct = cell.as_py()
            data = struct.get("bytes") if isinstance(struct, dict) else None
            if not isinstance(data, bytes):
                raise BenchmarkError(f"{path}: row {row} has no encoded image in `bytes`; write it there")
            pixels.append(opened(io.BytesIO(data), spec, f"{path}: row {row}", path))
    return Images(np.stack(pixels), np.concatenate(labels).astype(np.int64))


def _column(table: pa.Table, names: tuple[str, ...], path: Path) -> pa.ChunkedArray:
    for name in names:
        if name in table.column_names:
            return table.column(name)
    raise BenchmarkError(f"{path} has no column {' or '.join(names)}; it has {', '.join(table.column_names)}")
