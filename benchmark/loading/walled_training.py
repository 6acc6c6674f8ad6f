"""Training in a process behind the wall: it has training and validation images, never the test's.

What comes back is plain tensors and what the process says of its training, which no verdict rests on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from benchmark.loading.confining import MOST_SAID, Wall, left, submission_files, too_much
from benchmark.loading.fitting import fit
from benchmark.loading.rows import Row
from benchmark.results.training import TrainingResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.run import TrainRun
from benchmark.training.checkpoint import Tensors, TrainingProgress
from benchmark.wall.channel import Channel, Printed
from benchmark.wall.confinement import largest_weights
from benchmark.wall.process import Walled, plain

EPOCH_SECONDS = 12 * 3600.0  # that an epoch may take, or all that is before the first

SEEN = ("data.json", "train.safetensors", "validation.safetensors")  # of the row's data

OnEpoch = Callable[[int, float], None]
Say = Callable[[str], None]


def fit_walled(
    row: Row, run: TrainRun, folder: Path, on_epoch: OnEpoch, say: Say, wall: Wall
) -> tuple[Tensors, TrainingProgress, TrainingResult]:
    """As `fitting.fit`, behind the wall; `folder` keeps what a killed run goes on from.

    Args:
        on_epoch: told the epochs done and the last score.
        say: told of the progress of preparations.

    Raises:
        BenchmarkError: as `fit` does, or the process fails or says what makes no sense.
    """
    if not wall.stands:
        set_up(run.device)
        return _fit(row, run, folder, on_epoch, say)
    read = [*submission_files(row, row.source), *(row.data.absolute() / name for name in SEEN)]
    read += [row.start.absolute()] if row.start else []
    walled = Walled(
        partial(_train, row, run, folder),
        wall.confinement(read, [folder.absolute()], device=run.device),
        wall.parts,
        owner=f"submissions/{row.submission.name}",
        seconds=EPOCH_SECONDS,
    )
    try:
        epoch, until = 0, time.monotonic() + EPOCH_SECONDS
        for _ in range(MOST_SAID):
            message, tensors = walled.receive(most=largest_weights(), seconds=left(until, walled.owner))
            if "say" in message:
                say(plain(message["say"]))
            elif "epoch" in message:
                epoch, until = _next_epoch(message["epoch"], epoch, row), time.monotonic() + EPOCH_SECONDS
                on_epoch(epoch, float(message["score"]))
            else:
                done = TypeAdapter(TrainingProgress).validate_python(message.get("done"))
                said = {**message["result"], **run.model_dump()}
                return tensors, done, TrainingResult.model_validate(said)
        raise too_much(walled.owner)
    except (ValidationError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise BenchmarkError(
            f"submissions/{row.submission.name}: its training says what makes no sense ({type(error).__name__})"
        ) from None
    finally:
        walled.close()


def _next_epoch(said: object, last: int, row: Row) -> int:
    """The number of an epoch that is done, which is above the last one's, so that there is an end to them.

    Raises:
        ValueError: it is not.
    """
    assert row.settings.training is not None  # the stage applies
    if type(said) is not int or not last < said <= row.settings.training.epochs:
        raise ValueError
    return said


def _fit(
    row: Row, run: TrainRun, folder: Path, on_epoch: OnEpoch, say: Say
) -> tuple[Tensors, TrainingProgress, TrainingResult]:
    return fit(row, run, folder / "checkpoint.safetensors", lambda done: on_epoch(done.epoch, done.scores[-1]), say=say)


def _train(row: Row, run: TrainRun, folder: Path, channel: Channel) -> None:
    """In the process."""
    set_up(run.device)
    with redirect_stdout(Printed(channel)):
        best, done, result = _fit(
            row, run, folder, lambda epoch, score: channel.send({"epoch": epoch, "score": score}), print
        )
    channel.send({"done": asdict(done), "result": result.model_dump(mode="json")}, best)
