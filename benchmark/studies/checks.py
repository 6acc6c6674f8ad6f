"""Check that what a study names exists: the cells of its claims, its measures, its findings."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, near_miss
from benchmark.specs import submissions
from benchmark.specs.components import ATTENTION
from benchmark.specs.study import BUILTIN, MeasureSpec
from benchmark.specs.submission import VariantOnTrack
from benchmark.specs.threat import CertificateSpec
from benchmark.specs.training import radius_problem

if TYPE_CHECKING:
    from benchmark.studies.grids import Grid

FILLED = ("attention", "training")  # keyword-only parameters of measures beside `seed` that studies do not set


def options(submission: str) -> set[str] | None:
    """Return the options of a method's build, read from its source; None where it takes any."""
    file = submissions.FOLDER / submission / "method.py"
    build = _functions(file).get("build")
    if build is None:
        raise BenchmarkError(f"{file} must define build(data, **model) returning a torch module")
    options = build.args
    return None if options.kwarg else {option.arg for option in [*options.args[1:], *options.kwonlyargs]}


def _functions(file: Path) -> dict[str, ast.FunctionDef]:
    """Return the public functions of a file, by name; none where there is no file."""
    return _read_functions(file, files.version(file)) if file.exists() else {}


@cache
def _read_functions(file: Path, _version: tuple[int, ...]) -> dict[str, ast.FunctionDef]:
    try:
        body = ast.parse(file.read_text()).body
    except SyntaxError as error:
        raise BenchmarkError(f"{file}, line {error.lineno}: {error.msg}") from None
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


def measure_files(submission: str, measure: str) -> set[Path]:
    """Return the file of a measure that is a function, and the one that finds attention weights if it takes them."""
    file = _measures_file(submission)
    return {file, ATTENTION} if "attention" in filled(submission, measure) else {file}


def filled(submission: str, measure: str) -> set[str]:
    """Return which of FILLED a measure that is a function takes."""
    function = _functions(_measures_file(submission))[measure]
    return {*FILLED} & {parameter.arg for parameter in function.args.kwonlyargs}


def _measures_file(submission: str) -> Path:
    return submissions.FOLDER / submission / "measures.py"


def certificate_of(settings: VariantOnTrack, measure: MeasureSpec) -> CertificateSpec:
    """Return the certificate that a measure of radii uses for these settings. Raise a BenchmarkError where there is none."""
    spec = CertificateSpec(name=measure.certificate) if measure.certificate else settings.certificate
    if spec is None:
        raise BenchmarkError("declares no certificate; name one in the measure")
    return spec.model_copy(update={"parameters": {**spec.parameters, **measure.parameters}})


def check(grid: Grid) -> None:
    """Raise a BenchmarkError for a cell, measure, function or number of images that a study names and that does not exist."""
    study, labels = grid.study, [measure.label for measure in grid.study.measures]
    for cell in study.claims:
        if cell not in grid.cells:
            raise BenchmarkError(f"{grid.file}: claims: no cell {cell!r}{near_miss(cell, grid.cells)}")
    named = [(f"claims of {cell!r}", label) for cell, claimed in study.claims.items() for label in claimed]
    named += [("shares", label) for label in study.shares]
    named += [("figure", label) for label in (study.figure.measures if study.figure else ())]
    for place, label in named:
        if label.partition(": ")[0] not in labels:
            raise BenchmarkError(f"{grid.file}: {place}: no measure {label!r}{near_miss(label, labels)}")
    numbers = [measure.label for measure in study.measures if not measure.is_function]
    drawn = (study.figure.measures or labels) if study.figure and study.figure.draw == "scatter" else ()
    if drawn and all(label in numbers for label in drawn):
        raise BenchmarkError(
            f"{grid.file}: figure: scatter draws points; {', '.join(drawn)} {'give' if len(drawn) > 1 else 'gives'} numbers; "
            "draw bars, or name a measure of your own that returns points"
        )
    file, name = submissions.FOLDER / grid.submission.name / "findings.py", study.findings
    if name and name not in _functions(file):
        near = near_miss(name, _functions(file))
        raise BenchmarkError(f"{grid.file}: findings: no function {name!r}; {_where(file)}{near}")
    for measure in study.measures:
        _check_measure(grid, measure)
    if (most := grid.track.data.test) and grid.images > most:
        raise BenchmarkError(f"{grid.file}: images {grid.images} are more than the {most} test images of {study.track}")


def _where(file: Path) -> str:
    return f"{file} has none" if file.exists() else f"there is no {file}"


def _check_measure(grid: Grid, measure: MeasureSpec) -> None:
    place = f"{grid.file}: measure {measure.label!r}"
    if measure.images and measure.images > grid.images:
        raise BenchmarkError(f"{place}: images {measure.images} are more than the {grid.images} of the study")
    if measure.attack:
        submissions.check_part("attacks", measure.attack.attack, place)
        if wrong := radius_problem(measure.attack, grid.track.data.shape):
            raise BenchmarkError(f"{place}: {wrong}")
    elif measure.measure == "certified":
        for name, settings in grid.cells.items():
            if measure.of(name):
                try:
                    certificate = certificate_of(settings, measure)
                except BenchmarkError as error:
                    raise BenchmarkError(f"{place}: cell {name!r} {error}") from None
                submissions.check_part("certificates", certificate.name, place)
    elif measure.is_function:
        file = _measures_file(grid.submission.name)
        names = _functions(file)
        if measure.measure not in names:
            near = near_miss(measure.measure, [*BUILTIN, *names])
            raise BenchmarkError(f"{place}: no measure of that name; {_where(file)}{near}")
