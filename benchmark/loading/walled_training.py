"""Training behind the wall, by one process or by several that share every batch: they have training and validation images,
never the test's.

Behind the wall there is no network: what the processes exchange goes through this one. What comes back is plain tensors and
what the first process says of its training, which no verdict rests on.
"""

from __future__ import annotations

import selectors
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from benchmark.loading.confining import MOST_SAID, Wall, left, submission_files, too_much
from benchmark.loading.fitting import fit
from benchmark.loading.rows import Row
from benchmark.results.training import TrainingResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.run import TrainRun
from benchmark.training import ranks
from benchmark.training.checkpoint import Tensors, TrainingProgress
from benchmark.training.ranks import Collective, Ranks
from benchmark.wall.channel import Channel, Printed
from benchmark.wall.confinement import largest_weights
from benchmark.wall.process import Walled, plain

EPOCH_SECONDS = 12 * 3600.0  # that an epoch may take, or all that is before the first

SEEN = ("data.json", "train.safetensors", "validation.safetensors")  # of the row's data

OnEpoch = Callable[[int, float], None]
Say = Callable[[str], None]
Trained = tuple[Tensors, TrainingProgress, TrainingResult, int]  # the last: bytes of a GPU held at most


def fit_walled(row: Row, run: TrainRun, folder: Path, on_epoch: OnEpoch, say: Say, wall: Wall) -> Trained:
    """As `fitting.fit`, behind the wall, with the GPU's memory that it held; `folder` keeps what a killed run goes on from.

    Args:
        on_epoch: told the epochs done and the last score.
        say: told of the progress of preparations.

    Raises:
        BenchmarkError: as `fit` does, or the process fails or says what makes no sense.
    """
    if not wall.stands and run.processes == 1:  # several are processes of their own, whatever holds them
        set_up(run.device)
        return *fit(row, run, folder, on_epoch, say), peak()
    trained: list[Walled] = []
    direct = run.processes > 1 and not wall.stands and _a_gpu_each(run)  # they exchange gradients among themselves
    meeting = Path(tempfile.mkdtemp(prefix="rvb-")) / "meeting" if direct else None
    try:
        for rank in range(run.processes):
            trained.append(_start(row, run, folder, rank, wall, meeting))
        return _heard(row, run, trained, on_epoch, say, direct)
    except (ValidationError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise BenchmarkError(
            f"submissions/{row.submission.name}: its training says what makes no sense ({type(error).__name__})"
        ) from None
    finally:
        for one in trained:
            one.close()
        if meeting:
            shutil.rmtree(meeting.parent)


def _a_gpu_each(run: TrainRun) -> bool:
    return run.device in ("cuda", "auto") and torch.cuda.device_count() >= run.processes


def _start(row: Row, run: TrainRun, folder: Path, rank: int, wall: Wall, meeting: Path | None) -> Walled:
    read = [*submission_files(row, row.source), *(row.data.absolute() / name for name in SEEN)]
    read += [row.start.absolute()] if row.start else []
    work, among = partial(_train, row, run, folder, rank, meeting), run.processes
    return wall.process(row, work, read, [folder.absolute()], seconds=EPOCH_SECONDS, device=run.device, among=among)


def _heard(row: Row, run: TrainRun, trained: Sequence[Walled], on_epoch: OnEpoch, say: Say, direct: bool) -> Trained:
    """What the first process says until it is done; `direct`: they exchange gradients without this process."""
    first, messages, epoch, until = trained[0], 0, 0, time.monotonic() + EPOCH_SECONDS
    most = largest_weights() // min(len(trained), 2)  # of an exchange two messages are held at a time
    while messages < MOST_SAID:
        if direct:
            _wait_for_first(trained, until)
        message, tensors = first.receive(most=most, seconds=left(until, first.owner))
        if "exchange" in message:
            exchange(trained, message, tensors, until)
            continue
        messages += 1
        if "say" in message:
            say(plain(message["say"]))
        elif "epoch" in message:
            epoch, until = _next_epoch(message["epoch"], epoch, row), time.monotonic() + EPOCH_SECONDS
            on_epoch(epoch, float(message["score"]))
        else:
            done = TypeAdapter(TrainingProgress).validate_python(message.get("done"))
            said = {**message["result"], **run.model_dump(), "processes": run.processes}
            return tensors, done, TrainingResult.model_validate(said), int(message["memory"])
    raise too_much(first.owner)


def _wait_for_first(trained: Sequence[Walled], until: float) -> None:
    """Wait until the first process says something; the others say nothing before they are done.

    Raises:
        BenchmarkError: meanwhile another one ended or failed, for which the first might wait for ever.
    """
    with selectors.DefaultSelector() as selector:
        for rank in trained:
            selector.register(rank.channel, selectors.EVENT_READ, rank)
        while ready := [key.data for key, _ in selector.select(left(until, trained[0].owner))]:
            for rank in ready:
                if rank is trained[0]:
                    return
                rank.receive()  # what it failed by, or that it is done
                selector.unregister(rank.channel)


def exchange(trained: Sequence[Walled], asked: dict[str, Any], sent: Tensors, until: float) -> None:
    """Gives every rank the sum of what all have sent, or what the first has, which has `asked` for it already.

    Args:
        until: the moment of the monotonic clock at which it has to be over.

    Raises:
        BenchmarkError: a process ended or is silent.
        ValueError: they do not ask for the same, or there is nobody to exchange with.
    """
    if len(trained) == 1 or asked not in ({"exchange": "sum"}, {"exchange": "first"}):
        raise ValueError("nothing to exchange")
    owner, adds = trained[0].owner, asked["exchange"] == "sum"
    most = sum(tensor.nbytes for tensor in sent.values()) if adds else 0
    for one in trained[1:]:
        message, tensors = one.receive(most=most, seconds=left(until, owner))
        if message != asked:
            raise ValueError("they do not keep step")
        if adds:
            ranks.add(sent, tensors)
    for one in trained:
        one.send({}, sent, left(until, owner))


def _next_epoch(said: object, last: int, row: Row) -> int:
    """The number of an epoch that is done, which is above the last one's, so that there is an end to them.

    Raises:
        ValueError: it is not.
    """
    assert row.settings.training is not None  # the stage applies
    if type(said) is not int or not last < said <= row.settings.training.epochs:
        raise ValueError
    return said


def _train(row: Row, run: TrainRun, folder: Path, rank: int, meeting: Path | None, channel: Channel) -> None:
    """In the process of one rank; the first alone has something to say."""

    def ask(kind: str, tensors: Tensors) -> Tensors:
        channel.send({"exchange": kind}, tensors)
        return channel.receive(2**40)[1]

    def on_epoch(epoch: int, score: float) -> None:
        channel.send({"epoch": epoch, "score": score})

    set_up(run.device)
    asks = Collective(rank, run.processes, meeting, EPOCH_SECONDS) if meeting else ask
    own = Ranks(rank, run.processes, asks) if run.processes > 1 else ranks.ALONE
    if rank:
        fit(row, run, folder, on_epoch, print, own)
        if meeting:
            channel.send({"done": True})
        return
    with redirect_stdout(Printed(channel)):
        best, done, result = fit(row, run, folder, on_epoch, print, own)
    channel.send({"done": asdict(done), "result": result.model_dump(mode="json"), "memory": peak()}, best)
