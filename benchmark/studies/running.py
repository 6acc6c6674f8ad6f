"""A study at work: every cell trained with every seed, and measured.

A (cell, seed) that is finished stays finished when the process is killed; training and attacks go on from their own
checkpoints.
"""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save
from torch import nn

from benchmark.data.images import load_split
from benchmark.evaluation.certified_radii import certified_radii
from benchmark.loading import methods
from benchmark.loading.fitting import check_recipe, fit
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.loading.starting import Start
from benchmark.loading.trained import evaluation_images, tensors
from benchmark.results.study import CellResult, Run, StudyResult
from benchmark.runtime import arithmetic, files, scratch
from benchmark.runtime.environment import environment
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.image_table import image_table
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.base import to_json
from benchmark.specs.certificate import CertificateSpec
from benchmark.specs.run import RunSettings
from benchmark.specs.study import BUILTIN, MeasureSpec
from benchmark.specs.submission import VariantOnTrack
from benchmark.studies import checks, measures
from benchmark.studies.grids import Grid, recipe
from benchmark.studies.held import row_of, run_held
from benchmark.studies.measures import Measure, Measured


def run_study(grid: Grid, planned: Mapping[str, Any], code: str) -> None:
    """Trains and measures what is not done yet; writes the study's folder and, beside it, the seconds that it took.

    Args:
        planned: the settings that were planned, and what it reads.
        code: sha256 of its code.

    Raises:
        BenchmarkError: networks, recipes or measures that do not fit; all of these before anything is trained.
    """
    settings = run_settings()
    packages, left_out = measures.versions(grid.study.measures)
    inputs = {
        **planned,
        "data": files.read_json(grid.data / "data.json"),
        "starts": [_weights(start) for start in grid.starts],
        "code": code,
        "torch": torch.__version__,
        "arithmetic": arithmetic.in_force(),
        "packages": packages,
        "left_out": left_out,
    }
    with scratch.locked(f"{grid.track.name}/studies/{grid.id}", inputs) as folder:
        run = partial(_checked_run, grid, settings, folder, inputs)
        seconds = run_held(grid, folder, settings.devices, run)
        _check_plain(folder / "out", grid)
        files.put_folder(folder / "out", grid.folder)
        files.write_json(grid.folder.parent / "times" / f"{grid.id}.json", seconds)


def _check_plain(out: Path, grid: Grid) -> None:
    """
    Raises:
        BenchmarkError: there is no such folder, or in it is something else than a study's files. The study's code wrote it:
            a link could lead to anybody's files, and a name could be a label.
    """
    weights = {f"weights/{cell}-{seed}.safetensors" for cell in range(len(grid.cells)) for seed in grid.study.seeds}
    plain, folders = {"study.json", "verdicts.parquet", *weights}, {".", "weights"}

    def is_known(name: str, path: Path) -> bool:
        if path.is_symlink():
            return False
        return path.is_dir() if name in folders else path.is_file() and (name in plain or files.is_aside(path))

    found = {path.relative_to(out).as_posix(): path for path in (out, *out.rglob("*"))}
    odd = [name for name, path in found.items() if not is_known(name, path)]
    if odd:
        what = f"{odd[0]}, which is no plain file of a study's" if out.exists() else "no folder of results"
        raise BenchmarkError(f"{grid.file}: its code left {' '.join(what.split())[:100]}; nothing of it is kept")


def _checked_run(
    grid: Grid, settings: RunSettings, folder: Path, inputs: dict[str, Any], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    device = set_up(settings.evaluate.device)
    measuring = _Measuring(grid, settings, _functions(grid), device)
    _check(measuring)
    return _run(measuring, folder, inputs, say)


def _weights(path: Path) -> str:
    """sha256 of the weights that cells start from."""
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; run `rvb repro` on its track to train that row")
    return files.sha256_file(path)


def _functions(grid: Grid) -> dict[str, Measure]:
    """The functions of measures by name: of the submission's own measures.py, or of benchmark/measures."""
    name = grid.submission.name
    asked = {measure.measure for measure in grid.study.measures} - {*BUILTIN}
    own = {measure for measure in asked if checks.own_measure(name, measure)}
    module = methods.module(name, "measures") if own else None
    # by name, so that a study's code is followed to the measures that it asks for alone
    others = {one: importlib.import_module(f"benchmark.measures.{one}").measure for one in asked - own}
    return others | {one: getattr(module, one) for one in own}


def _check(measuring: _Measuring) -> None:
    """Builds each network and recipe once, so that the last of a hundred cells does not fail after hours."""
    grid = measuring.grid
    for cell, settings in grid.cells.items():
        try:
            model = methods.build_model(grid.submission, settings, grid.track)
            check_recipe(recipe(settings))
            taken = {part for function in measuring.functions.values() for part in measures.parts_taken(function)}
            if "blocks" in taken:
                _finding("blocks").check_blocks(grid.submission.name, model, grid.track.data.shape)
            if "attention" in taken:
                _finding("attention").attention(grid.submission.name, model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{grid.file}: cell {cell!r}: {error}") from None
    for measure in grid.study.measures:
        if function := measuring.functions.get(measure.measure):
            measures.check_parameters(function, measure.parameters, f"{grid.file}: measure {measure.label!r}")


def _finding(part: str) -> ModuleType:
    """What finds a model's blocks or attention; by name, since studies without such a measure do not depend on it."""
    return importlib.import_module(f"benchmark.loading.{part}")


def _run(
    measuring: _Measuring, folder: Path, inputs: dict[str, Any], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All cells and seeds that are not done yet, then the results in `folder`/out; the seconds that each took."""
    grid, out = measuring.grid, folder / "out"
    total = len(grid.cells) * len(grid.study.seeds)
    runs: list[Run] = []
    x: dict[str, Any] = {}
    tables, seconds = [], []
    for number, cell in enumerate(grid.cells):
        for seed in grid.study.seeds:
            place = folder / f"{number}-{seed}"
            if not (place / "run.json").exists():
                say(f"{grid.id}: {cell}, seed {seed}: training")
                _one(measuring, cell, seed, place, inputs["left_out"], say)
            kept = files.read_json(place / "run.json")
            runs.append(Run.model_validate(kept["run"]))
            tables.append(pq.read_table(place / "verdicts.parquet"))
            seconds.append({"cell": cell, "seed": seed, **kept["seconds"]})
            for label, places in kept["x"].items():
                if x.setdefault(label, places) != places:
                    raise BenchmarkError(f"{grid.file}: the curve {label!r} has other places 'x' in cell {cell!r}")
            numbers = ", ".join(f"{n} {v:.3f}" for n, v in runs[-1].values.items() if isinstance(v, float))
            say(f"{grid.id}: {len(runs)} of {total}: {cell}, seed {seed}: {numbers}")
            files.write(out / "weights" / f"{place.name}.safetensors", (place / "model.safetensors").read_bytes())
    pq.write_table(pa.concat_tables(tables, promote_options="default"), out / "verdicts.parquet")
    result = StudyResult(
        submission=grid.submission.name,
        name=grid.name,
        track=grid.track.name,
        track_version=grid.track.version,
        variant=grid.study.variant,
        n=grid.images,
        cells=tuple(
            CellResult(**cell.model_dump(), settings=settings)
            for cell, (_, settings) in zip(grid.study.grid(), inputs["cells"], strict=True)
        ),
        measures=grid.study.measures,
        runs=tuple(runs),
        x=x,
        sha256={f"data {split}": digest for split, digest in inputs["data"]["sha256"].items()}
        | {"code": inputs["code"], "verdicts": files.sha256_file(out / "verdicts.parquet")},
        left_out=inputs["left_out"],
        environment=environment() | inputs["packages"],
    )
    files.write(out / "study.json", to_json(result))
    return seconds


@dataclass(frozen=True)
class _Measuring:
    """A study with what it is measured by; `functions` are those of measures that are one, by name."""

    grid: Grid
    settings: RunSettings
    functions: dict[str, Measure]
    device: torch.device

    def __call__(
        self,
        measure: MeasureSpec,
        wanted: VariantOnTrack,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        seed: int,
        folder: Path,
    ) -> Measured:
        batch_size = self.grid.track.evaluation.batch_size
        if measure.measure == "clean":
            return measures.clean(model, images, labels, measure.label, batch_size)
        if measure.attack:
            first = slice(self.grid.track.evaluation.attacked)
            return measures.attacked(
                model, images[first], labels[first], measure, batch_size=batch_size,
                checkpoint=folder / f"{measure.attack.id}.safetensors", engine=self.settings.evaluate.engine,
            )  # fmt: skip
        if measure.measure == "certified":
            name, parameters = self.grid.certificate(wanted, measure)
            spec = CertificateSpec(name=name, parameters=parameters)
            radii = partial(certified_radii, spec=spec, batch_size=batch_size)
            return measures.certified(model, images, labels, measure, batch_size, radii)
        function = self.functions[measure.measure]
        name = self.grid.submission.name
        parts = {part: getattr(_finding(part), part)(name, model) for part in measures.parts_taken(function)}
        if measures.takes(function, measures.TRAINING):
            parts[measures.TRAINING] = tensors(load_split(self.grid.data, "train"))
        return measures.own(function, model, images, labels, measure, seed, parts)


def _one(
    measuring: _Measuring, cell: str, seed: int, folder: Path, left_out: dict[str, str], say: Callable[[str], None]
) -> None:
    """Trains and measures one network; `folder`/run.json, written last, says that it is done."""
    grid, wanted = measuring.grid, measuring.grid.cells[cell]
    row = row_of(grid, wanted)
    started, seconds = time.perf_counter(), {}
    _train(row, measuring.settings, seed, folder, _start(grid, wanted, seed, folder.parent))
    seconds["training"] = round(time.perf_counter() - started, 2)
    model = methods.build_model(grid.submission, wanted, grid.track)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model = model.to(measuring.device).eval().requires_grad_(False)
    images, labels = (t[: grid.images] for t in evaluation_images(row, measuring.device))
    found = Measured(columns={"image": torch.arange(len(labels)), "label": labels})
    for measure in grid.study.measures:
        if measure.label in left_out:
            say(f"{grid.id}: {measure.label} is left out: {left_out[measure.label]}")
            continue
        if not measure.of(cell):
            continue
        started = time.perf_counter()
        part = measuring(measure, wanted, model, images, labels, seed, folder)
        seconds[measure.label] = round(time.perf_counter() - started, 2)
        found.add(part)
    columns = {"cell": np.repeat(cell, len(labels)), "seed": np.repeat(seed, len(labels))}
    columns |= {name: column.cpu().numpy() for name, column in found.columns.items()}
    pq.write_table(image_table(columns), folder / "verdicts.parquet")
    run = Run(
        cell=cell,
        seed=seed,
        training=files.read_json(folder / "training.json"),
        parameters=sum(p.numel() for p in model.parameters()),
        values=found.values,
        weights=files.sha256_file(folder / "model.safetensors"),
        verdicts=found.verdicts,
        points=found.points,
    )
    files.write_json(folder / "run.json", {"run": run.model_dump(mode="json"), "x": found.x, "seconds": seconds})


def _start(grid: Grid, wanted: VariantOnTrack, seed: int, folder: Path) -> Start | None:
    """The network of another cell, of the same seed, that a cell starts from; None where it starts from none."""
    init = recipe(wanted).init_from
    if init is None or not init.cell:
        return None
    weights = folder / f"{[*grid.cells].index(init.cell)}-{seed}" / "model.safetensors"
    return Start(weights, row_of(grid, grid.cells[init.cell]), init.new)


def _train(row: Row, settings: RunSettings, seed: int, folder: Path, start: Start | None) -> None:
    """Writes model.safetensors and, after it, training.json, unless they are there."""
    if (folder / "training.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.safetensors"
    run = settings.train.model_copy(update={"seed": seed})
    best, _, result = fit(row, run, checkpoint, lambda _: None, start)
    files.write(folder / "model.safetensors", save(best))
    files.write(folder / "training.json", to_json(result))
    checkpoint.unlink(missing_ok=True)  # without epochs there is none
    shutil.rmtree(folder / "prepare", ignore_errors=True)
