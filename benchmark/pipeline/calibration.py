"""A row's stages measured before any of them runs: seconds, peak memory, bytes of weights. Writes to a temporary folder."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save

from benchmark.data import prepare
from benchmark.loading import methods
from benchmark.loading.confining import submission_files, wall
from benchmark.loading.judged import judged_model
from benchmark.loading.rows import Row
from benchmark.loading.run_settings import run_settings
from benchmark.pipeline.calibrate_evaluation import MEASURED, Pace, Seconds
from benchmark.pipeline.calibrate_training import TrainingPace, training_pace
from benchmark.pipeline.stopwatch import Clock, in_a_process
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.stages.catalogue import Planned
from benchmark.wall.channel import Channel, Tensors
from benchmark.wall.confinement import largest_weights
from benchmark.wall.process import Walled

BUILD_SECONDS = 600.0
READ = 9  # bytes a pixel takes while a split is read: as it is stored, and as float32 before and after it is divided
FLOAT = 4


@dataclass(frozen=True)
class Untrained(Row):
    """A row whose weights lie in a folder of their own."""

    place: Path

    @property
    def weights(self) -> Path:
        return self.place / "model.safetensors"


@dataclass
class Calibration:
    """Of a row, by stage: seconds, peak memory and peak memory of the GPU in bytes; and how large its weights are."""

    seconds: dict[str, Seconds] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, int] = field(default_factory=dict)
    weights: int = 0


def image_counts(row: Row) -> dict[str, int]:
    """How many images the splits of the row's track have: as they stand in work/, or counted at the source.

    Raises:
        BenchmarkError: they are in neither place; with what to do.
    """
    about = row.data / "data.json"
    if about.exists():
        return dict(files.read_json(about)["counts"])

    def counted() -> dict[str, int]:
        spec = row.track.data
        return {name: len(images) for name, images in prepare.split(spec, prepare.read(spec)).items()}

    try:
        return in_a_process(counted).value
    except BenchmarkError as error:
        raise BenchmarkError(f"how many images are trained on is not known: {error}") from None


def calibrate(row: Row, planned: Sequence[Planned], counts: Mapping[str, int]) -> Calibration:
    """Measures the given stages of a row, training in one process and evaluation in another.

    Args:
        counts: images by split; a training needs "train".

    Raises:
        BenchmarkError: the row's code fails, or does not fit into memory.
    """
    found, settings, base = Calibration(), run_settings(), in_a_process(int).memory
    pixels = math.prod(row.track.data.shape)
    kinds = {one.stage.name for one in planned}
    if "train" in kinds:
        paced = in_a_process(partial(training_pace, row, settings.train))
        split = counts["train"] * pixels
        found.seconds["train"] = _training_seconds(row, paced.value, counts)
        on_gpu, processes = paced.value.device_memory, settings.train.processes
        found.gpu["train"] = on_gpu + FLOAT * split if on_gpu else 0  # of each, where processes share it
        found.memory["train"] = processes * max(paced.memory + (0 if on_gpu else FLOAT * split), base + READ * split)
    asked = [one for one in planned if one.stage.name in MEASURED]
    if asked:
        names = [one.name for one in asked]
        evaluated = in_a_process(partial(_evaluations, row, names, not kinds & {"train", "pretrained"}))
        seconds, found.weights, gpu = evaluated.value
        found.seconds |= seconds
        images = FLOAT * pixels * row.track.evaluation.images
        most = max(evaluated.memory + images, base + READ * pixels * counts.get("test", 0))
        found.memory |= dict.fromkeys(names, most)
        found.gpu |= dict.fromkeys(names, gpu)
    return found


def _training_seconds(row: Row, pace: TrainingPace, counts: Mapping[str, int]) -> Seconds:
    spec = row.settings.training
    assert spec is not None  # the stage applies
    processes = run_settings().train.processes
    every = spec.epochs * pace.epoch(counts["train"], row.track.data.validation, spec, processes)
    steps = -(-counts["train"] // (spec.batch_size * spec.accumulation))
    left_out = [f"the preparation {step.name}" for step in spec.prepare]
    left_out += ["the augmentation of the last epochs"] if spec.closing else []
    left_out += [f"what {processes} processes exchange, and do each"] if processes > 1 else []
    missing = ", ".join(left_out)
    if not spec.epochs:
        return Seconds(0.0, 0.0, "no epoch", missing)
    words = f"{spec.epochs} epochs of {steps} steps, {1000 * pace.step:.3g} ms each" + (
        f", shared by {processes} processes" if processes > 1 else ""
    )
    patience = (
        f"; at most, it may stop {spec.selection.patience} epochs after its best" if spec.selection.patience else ""
    )
    return Seconds(every, every, words + patience, missing)


def _evaluations(row: Row, names: Sequence[str], trained: bool) -> tuple[dict[str, Seconds], int, int]:
    """In a process of its own: seconds by stage, bytes of weights, and bytes of the GPU in use at last."""
    settings = run_settings().evaluate
    device = set_up(settings.device)
    with tempfile.TemporaryDirectory(prefix="rvb-plan-") as folder:
        if not (trained and row.weights.exists()):
            row = Untrained(row.track, row.submission, row.variant, row.settings, Path(folder))
            files.write(row.weights, save(_untrained(row)))
        weights, began, passed = row.weights.stat().st_size, Clock(()).now(), Clock(None).now()
        with judged_model(row, device) as judged:
            clock = Clock.of(device)
            start = clock.now() - (passed if clock.processes is None else began)
            pace = Pace.of(row, judged, clock, start, settings.engine, device)
            seconds = {}
            for name in names:
                kind, _, rest = name.partition("-")
                seconds[name] = MEASURED[kind](pace, rest)
            gpu = 0
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                gpu = total - free
    return seconds, weights, gpu


def _untrained(row: Row) -> Tensors:
    """The weights that a fresh network of the row begins with, from behind the wall."""
    held = wall()
    if not held.stands:
        return _fresh(row)
    walled = Walled(
        lambda channel: _send_fresh(row, channel),
        held.confinement(submission_files(row)),
        held.parts,
        owner=f"submissions/{row.submission.name}",
        seconds=BUILD_SECONDS,
    )
    try:
        return walled.receive(most=largest_weights())[1]
    finally:
        walled.close()


def _send_fresh(row: Row, channel: Channel) -> None:
    channel.send({}, _fresh(row))


def _fresh(row: Row) -> Tensors:
    set_up("cpu")
    torch.manual_seed(run_settings().train.seed)
    model = methods.build_model(row.submission, row.settings, row.track)
    return {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
