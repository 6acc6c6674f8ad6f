"""A few steps of a row's training, timed behind the wall on random images: its own network, objective, penalties, batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from benchmark.loading import methods
from benchmark.loading.confining import messages, submission_files, wall
from benchmark.loading.fitting import Recipe, fabric_of, training_penalties
from benchmark.loading.rows import Row
from benchmark.pipeline.stopwatch import Clock
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.run import TrainRun
from benchmark.specs.training import TrainingSpec
from benchmark.training import overfitting
from benchmark.training.steps import NotFinite, Steps
from benchmark.verdicts.prediction import logits
from benchmark.wall.channel import Channel

SCORED = 64  # validation images whose score is timed
LONGEST = 3600.0  # seconds that a calibration may take


@dataclass(frozen=True)
class TrainingPace:
    """Seconds of an optimiser step, of scoring a validation image, and of watching for overfitting after an epoch; bytes of
    the device's memory at most, 0 where that is this machine's own.
    """

    step: float
    score: float
    watch: float
    device_memory: int

    def epoch(self, images: int, validation: int, spec: TrainingSpec, processes: int) -> float:
        """Seconds of an epoch over so many training images, but for what processes that share it exchange."""
        steps = -(-images // (spec.batch_size * spec.accumulation))
        return (self.step * steps + self.score * validation) / processes + self.watch


def training_pace(row: Row, run: TrainRun) -> TrainingPace:
    """Measured behind the wall.

    Raises:
        BenchmarkError: the row's code fails, or the first loss is not finite.
    """
    held = wall()
    if not held.stands:
        return _pace(row, run)

    def work(channel: Channel) -> None:
        channel.send(asdict(_pace(row, run)))

    owner = f"submissions/{row.submission.name}"
    said = messages(work, held, owner, read=submission_files(row), seconds=LONGEST, device=run.device)
    try:
        (found,) = said
        return TypeAdapter(TrainingPace).validate_python(found)
    except (ValidationError, ValueError):
        raise BenchmarkError(f"{owner}: its process says what is no measurement") from None


def _pace(row: Row, run: TrainRun) -> TrainingPace:
    assert row.settings.training is not None  # the stage applies
    spec = row.settings.training.model_copy(update={"closing": None})  # of which most epochs are not
    device = set_up(run.device)
    clock = Clock.of(device, alone=True)
    torch.manual_seed(run.seed)
    model = methods.build_model(row.submission, row.settings, row.track)
    shape, classes = row.track.data.shape, row.track.data.classes
    if not spec.epochs:  # preparations alone
        return TrainingPace(0.0, 0.0, 0.0, 0)
    try:
        steps, recipe = _prepared(row, spec, run, model)
        score, watch = recipe.metric.score, recipe.monitor
        place = steps.fabric.device
        size = spec.batch_size * spec.accumulation
        images, labels = torch.rand(size, *shape).to(place), torch.randint(classes, (size,)).to(place)
        full = spec.warmup_epochs  # the first at the full radius
        step = clock.median(_waited(lambda: steps.epoch(images, labels, full, run.seed), place))
        seen = torch.rand(min(SCORED, row.track.data.validation), *shape).to(place)
        right = logits(model.eval(), seen, len(seen)).argmax(1)  # of wrong images a certificate asks nothing
        scored = clock.median(_waited(lambda: score(model, seen, right), place), least=1) / len(seen)
        few = min(len(seen), overfitting.IMAGES)
        shares = min(row.track.data.validation, overfitting.IMAGES) / few
        watched = clock.median(_waited(partial(watch, model, seen, right), place), least=1) * shares if watch else 0.0
    except NotFinite as error:
        raise BenchmarkError(f"{row.name}: {error} in its first steps") from None
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return TrainingPace(step, scored, watched, memory)


def _prepared(row: Row, spec: TrainingSpec, run: TrainRun, model: nn.Module) -> tuple[Steps, Recipe]:
    """What `benchmark.training.loop.train` makes of a recipe before its first epoch, and the recipe."""
    recipe, fabric = Recipe.of(spec, row.track.data), fabric_of(run)
    penalties = training_penalties(spec, row.submission.name, model)
    image = torch.rand(1, *row.track.data.shape)
    return Steps.of(model, recipe.objective, spec, fabric, image, recipe.augment, recipe.closing, penalties), recipe


def _waited(run: Callable[[], object], place: torch.device) -> Callable[[], object]:
    """The run, and the end of what it left to a GPU."""
    if place.type != "cuda":
        return run

    def whole() -> None:
        run()
        torch.cuda.synchronize(place)

    return whole
