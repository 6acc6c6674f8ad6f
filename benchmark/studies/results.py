"""Collect the results of a study's networks: study.json, and the evidence of every image in verdicts.parquet."""

from __future__ import annotations

import shutil
from typing import Any

from benchmark.records.study import CellResult, Run, StudyResult
from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import to_json
from benchmark.specs.rows import Row
from benchmark.studies.grids import Grid


def write(grid: Grid) -> None:
    """Write the study's result beside the folders of its networks. Remove the folders of networks that it no longer has.

    Raise a BenchmarkError for a curve whose places `x` differ between networks.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = grid.networks()
    for path in grid.folder.iterdir():
        if path.is_dir() and path not in [row.folder for row in rows]:
            shutil.rmtree(path)
    tables = []
    for row in rows:
        table, network = pq.read_table(row.folder / "measure" / "evidence.parquet")[: grid.images], row.network
        assert network is not None
        n = len(table)
        columns = {"cell": [network.cell] * n, "seed": [network.seed] * n, "image": range(n)}
        for place, (name, values) in enumerate(columns.items()):
            table = table.add_column(place, name, pa.array(values))
        tables.append(table)
    verdicts = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(tables, promote_options="default"), verdicts)
    files.write(grid.folder / "verdicts.parquet", verdicts.getvalue().to_pybytes())
    files.write(grid.folder / "study.json", to_json(_result(grid, rows)))


def run_of(row: Row) -> Run:
    """Return the results of one network."""
    assert row.network is not None
    trained, measured = _fields(row, "train"), _fields(row, "measure")
    return Run(
        cell=row.network.cell,
        seed=row.network.seed,
        training=trained["training"],
        weights=trained["sha256"]["weights"],
        **{name: measured[name] for name in ("parameters", "values", "verdicts", "points")},
    )


def _result(grid: Grid, rows: list[Row]) -> StudyResult:
    x: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    packages: dict[str, str] = {}
    codes: dict[str, str] = {}
    for row in rows:
        measured = _fields(row, "measure")
        for label, places in measured["x"].items():
            if x.setdefault(label, places) != places:
                raise BenchmarkError(f"{grid.file}: the curve {label!r} has other places 'x' in {row.name}")
        left_out |= measured["left_out"]
        packages |= measured["packages"]
        for name in ("train", "measure"):
            codes |= files.read_json(row.inputs / f"{name}.json")["code"]
    about = files.read_json(rows[0].folder / "measure" / "stage.json")
    data = files.read_json(rows[0].data / "data.json")["sha256"]
    return StudyResult(
        submission=grid.submission.name,
        name=grid.name,
        track=grid.track.name,
        track_version=grid.track.version,
        variant=grid.study.variant,
        n=grid.images,
        cells=tuple(
            CellResult(
                **cell.model_dump(), settings=grid.cells[cell.name].model_dump(mode="json", exclude={"adaptive"})
            )
            for cell in grid.study.grid()
        ),
        measures=grid.study.measures,
        runs=tuple(map(run_of, rows)),
        x=x,
        sha256={f"data {split}": digest for split, digest in data.items()}
        | {"code": code.combined(codes), "verdicts": files.sha256_file(grid.folder / "verdicts.parquet")},
        left_out=left_out,
        environment=about["environment"] | packages,
    )


def _fields(row: Row, step: str) -> dict[str, Any]:
    fields: dict[str, Any] = files.read_json(row.folder / step / "fields.json")
    return fields
