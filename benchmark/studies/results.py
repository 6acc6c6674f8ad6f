"""Collect the results of a study: from its networks in work/, and for `rvb publish` with its claims, figure and findings.

work/ has study.json, and the evidence of every image in verdicts.parquet.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from benchmark.records.finding import Finding
from benchmark.records.study import CellResult, PublishedStudy, Run, StudyResult
from benchmark.records.study_points import point_labels
from benchmark.runtime import code, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import one_environment
from benchmark.sandbox.submitted import Hear, run
from benchmark.specs import methods, submissions
from benchmark.specs.base import to_json
from benchmark.specs.rows import Row
from benchmark.specs.study import is_named
from benchmark.specs.submission import VariantOnTrack
from benchmark.studies.grids import Grid

SECONDS = 600.0  # that findings may take


def write(grid: Grid) -> None:
    """Write the study's result beside the folders of its networks. Remove the folders of networks that it no longer has.

    Raise a BenchmarkError for a curve whose places `x` differ between networks.
    """
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
    stages = {f"{row.name} {step}": row.folder / step / "stage.json" for row in rows for step in ("train", "measure")}
    environments = {part: files.read_json(stage)["environment"] for part, stage in stages.items()}
    data = files.read_json(rows[0].data / "data.json")["sha256"]
    return StudyResult(
        submission=grid.submission.name,
        name=grid.name,
        track=grid.track.name,
        track_version=grid.track.version,
        variant=grid.study.variant,
        n=grid.images,
        cells=tuple(
            CellResult(**cell.model_dump(), settings=grid.cells[cell.name].model_dump(mode="json", exclude={"adaptive"}))
            for cell in grid.study.grid()
        ),
        measures=grid.study.measures,
        runs=tuple(map(run_of, rows)),
        x=x,
        sha256={f"data {split}": digest for split, digest in data.items()}
        | {"code": code.combined(codes), "verdicts": files.sha256_file(grid.folder / "verdicts.parquet")},
        left_out=left_out,
        environment=one_environment(environments) | packages,
    )


def _fields(row: Row, step: str) -> dict[str, Any]:
    fields: dict[str, Any] = files.read_json(row.folder / step / "fields.json")
    return fields


def collect_study(grid: Grid) -> PublishedStudy:
    """Return the results in work/ under the study's present title, claims and figure, with its findings.

    Raise a BenchmarkError where there are no results yet, where they are of other cells, seeds, measures, images or settings
    than the study asks for now, or where its findings are not valid.
    """
    path, again = grid.folder / "study.json", f"run `{grid.command}`"
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; {again}")
    result = files.read_model(path, StudyResult, again)
    if changed := changed_settings(result, grid):
        raise BenchmarkError(f"{path} is of other settings than {grid.file} has now ({', '.join(changed)}); {again}")
    published = PublishedStudy(study=grid.study, result=result)
    _check_figure(grid, published)
    if not grid.study.findings:
        return published
    path = submissions.FOLDER / grid.submission.name / "findings.py"
    sha256 = code.digests(path)[path.as_posix()]
    return published.model_copy(update={"findings": _findings(grid, result), "findings_code": sha256})


def changed_settings(result: StudyResult, grid: Grid) -> list[str]:
    """Return the settings of a result that the study no longer asks for, such as "cells"; nothing where all are the same."""
    cells = {cell.name: cell.settings for cell in result.cells}
    same = {
        "track version": result.track_version == grid.track.version,
        "images": result.n == grid.images,
        "seeds": {run.seed for run in result.runs} == {*grid.study.seeds},
        "cells": cells.keys() == grid.cells.keys() and all(_same(cells[name], grid.cells[name]) for name in cells),
        "measures": result.measures == grid.study.measures,
    }
    return [name for name, equal in same.items() if not equal]


def _same(before: Mapping[str, object], now: VariantOnTrack) -> bool:
    """Compare validated settings: a setting that did not exist when the cell was trained has its default."""
    try:
        return VariantOnTrack.model_validate(before) == now.model_copy(update={"adaptive": ()})
    except ValidationError:
        return False


def _check_figure(grid: Grid, study: PublishedStudy) -> None:
    """Raise a BenchmarkError for points that are not drawn by a scatter, and for a scatter of anything else."""
    figure, points, left_out = grid.study.figure, point_labels(study), study.result.left_out
    if figure is None:
        return
    numbers = {label for run in study.result.runs for label in run.values}
    scatter, place = figure.draw == "scatter", f"{grid.file}: figure: {figure.draw} of"
    for asked in figure.measures or (None,):  # None: all that fit
        has_points, has_numbers = (
            any(asked is None or is_named(label, (asked,)) for label in labels) for labels in (points, numbers)
        )
        what = repr(asked) if asked else "what is measured" if scatter else ", ".join(points)
        gone = left_out if asked is None else asked.partition(": ")[0] in left_out
        if scatter and not has_points and not gone:
            raise BenchmarkError(f"{place} {what}, which has no points; those with points: {', '.join(points) or 'none'}")
        if not scatter and has_points and not has_numbers:
            raise BenchmarkError(f"{place} {what}, which are points, no numbers; use `draw: scatter`")


def _findings(grid: Grid, result: StudyResult) -> tuple[Finding, ...]:
    """Return what the submission's function concludes from the numbers and from the images' verdicts behind them."""
    path = grid.folder / "verdicts.parquet"
    if not path.exists() or files.sha256_file(path) != result.sha256["verdicts"]:
        raise BenchmarkError(f"{path} is missing or is not of {grid.folder / 'study.json'}; run `{grid.command}`")
    verdicts, name, findings = pq.read_table(path), grid.study.findings, list[Finding]()

    def work(send: Hear) -> None:
        returned = getattr(methods.module(grid.submission.name, "findings"), name)(result, verdicts)
        if not isinstance(returned, list | tuple) or not returned or not all(isinstance(f, Finding) for f in returned):
            raise BenchmarkError(f"{grid.file}: findings: {name} must return a list of Finding, at least one")
        for finding in returned:
            send(finding.model_dump(mode="json"))

    def hear(message: dict[str, Any]) -> None:
        try:
            findings.append(Finding.model_validate(message))
        except ValidationError as error:
            raise BenchmarkError(f"{grid.file}: findings: {name} gives no Finding ({error.errors()[0]['msg']})") from None

    run(work, hear, grid.submission.name, seconds=SECONDS)
    return tuple(findings)
