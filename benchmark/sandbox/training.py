"""Training in the sandbox, by one process or by several that share every batch.

The processes have training and validation images, never test images, and no network: they exchange gradients through the
evaluator. They return plain tensors, and the first process reports its progress. No verdict rests on these reports.
"""

from __future__ import annotations

import io
import json
import selectors
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from benchmark.records.training import TrainingResult, texts
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.memory import peak
from benchmark.runtime.torch_setup import set_up
from benchmark.sandbox.channel import Channel
from benchmark.sandbox.confinement import largest_weights
from benchmark.sandbox.process import Process, plain
from benchmark.sandbox.submitted import MOST_SAID, in_force, left, start, too_much
from benchmark.specs.rows import Row
from benchmark.specs.run_settings import TrainRun
from benchmark.training import ranks
from benchmark.training.checkpoint import Tensors, TrainingProgress
from benchmark.training.fitting import fit
from benchmark.training.ranks import Collective, Ranks

EPOCH_SECONDS = 12 * 3600.0  # for an epoch, or for all that is before the first
LONGEST_NAME = 200  # characters of what the epoch is selected by
SEEN = ("data.json", "train.safetensors", "validation.safetensors")  # files of the row's data

OnEpoch = Callable[[int, float], None]
Say = Callable[[str], None]
Trained = tuple[Tensors, TrainingProgress, TrainingResult, int]  # the last: bytes of a GPU held at most


def fit_sandboxed(row: Row, run: TrainRun, folder: Path, on_epoch: OnEpoch, say: Say) -> Trained:
    """Train as `fitting.fit` does, in the sandbox; also return the peak bytes of GPU memory.

    Raise BenchmarkError as `fit` does, or if the process fails or returns malformed output.
    """
    parts, count = in_force(), run.processes
    if not parts and count == 1:  # several ranks always have processes of their own
        set_up(run.device)
        return *fit(row, run, folder, on_epoch, say), peak()
    # with a GPU each, outside a sandbox, they exchange gradients among themselves
    direct = count > 1 and not parts and run.device in ("cuda", "auto") and torch.cuda.device_count() >= count
    names = [row.submission.name, *([row.source.submission.name] if row.source else [])]
    read = [*(row.data / name for name in SEEN), *([row.start] if row.start else [])]
    with ExitStack() as ends:
        meeting = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="rvb-"))) / "meeting" if direct else None
        trained = []
        for rank in range(count):
            process = start(
                partial(_train, row, run, folder, rank, meeting), parts, *names, seconds=EPOCH_SECONDS,
                read=read, write=[folder], device=run.device, among=count,
            )  # fmt: skip
            trained.append(ends.enter_context(process))
        try:
            return _heard(row, run, trained, on_epoch, say, direct)
        except (ValidationError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BenchmarkError(
                f"{trained[0].owner}: the training process returned malformed output ({type(error).__name__})"
            ) from None


def _heard(row: Row, run: TrainRun, trained: Sequence[Process], on_epoch: OnEpoch, say: Say, direct: bool) -> Trained:
    """Return the result of the first process, and pass on its reports. `direct`: the processes exchange gradients
    themselves.
    """
    assert row.settings.training is not None  # the step applies
    first, reports, epoch, until = trained[0], 0, 0, time.monotonic() + EPOCH_SECONDS
    most = largest_weights() // min(len(trained), 2)  # an exchange holds two messages at a time
    while reports < MOST_SAID:
        if direct:
            _wait_for_first(trained, until)
        message, tensors = first.receive(most=most, seconds=left(until, first.owner))
        if "exchange" in message:
            exchange(trained, message, tensors, until)
            continue
        reports += 1
        if "say" in message:
            say(plain(message["say"]))
        elif "epoch" in message:
            if type(message["epoch"]) is not int or not epoch < message["epoch"] <= row.settings.training.epochs:
                raise ValueError  # each is above the last, so they end
            epoch, until = message["epoch"], time.monotonic() + EPOCH_SECONDS
            on_epoch(epoch, float(message["score"]))
        else:
            done = TypeAdapter(TrainingProgress).validate_python(message.get("done"))
            return tensors, done, _result(row, run, done, message["result"]), int(message["memory"])
    raise too_much(first.owner)


def _result(row: Row, run: TrainRun, done: TrainingProgress, reported: dict[str, Any]) -> TrainingResult:
    """Return the result that the process reported; the evaluator itself fills in what it can tell.

    Raise ValueError for other preparations than the recipe's, numbers that are not finite, or unprintable text.
    """
    spec, source = row.settings.training, row.source
    assert spec is not None  # the step applies
    result = TrainingResult.model_validate(
        {
            **reported,
            "selected_by": plain(reported["selected_by"])[:LONGEST_NAME],
            "init_sha256": files.sha256_file(source.weights) if source and spec.init_from else None,
            **run.model_dump(),
            "processes": run.processes,
        }
    )
    if [prepared.name for prepared in result.prepared] != [step.name for step in spec.prepare]:
        raise ValueError("it reports other preparations than the recipe's")
    sent = json.dumps([asdict(done), result.model_dump()], allow_nan=False)  # raises ValueError
    if not all(map(str.isprintable, texts(json.loads(sent)))):
        raise ValueError("it reports text that is not printable")
    return result


def _wait_for_first(trained: Sequence[Process], until: float) -> None:
    """Wait until the first process sends a message. Raise BenchmarkError if another process has ended or failed.

    The others send nothing before they are done, so the first might wait for a failed one for ever.
    """
    with selectors.DefaultSelector() as selector:
        for rank in trained:
            selector.register(rank.channel, selectors.EVENT_READ, rank)
        while ready := [key.data for key, _ in selector.select(left(until, trained[0].owner))]:
            for rank in ready:
                if rank is trained[0]:
                    return
                rank.receive()  # raises its error; else it is done
                selector.unregister(rank.channel)


def exchange(trained: Sequence[Process], asked: dict[str, Any], sent: Tensors, until: float) -> None:
    """Give every rank the sum of what all have sent, or what the first has sent. The first has `asked` already.

    Raises:
        BenchmarkError: a process ended, or is silent until the moment `until` of the monotonic clock.
        ValueError: they do not ask for the same, or there is only one process.
    """
    if len(trained) == 1 or asked not in ({"exchange": "sum"}, {"exchange": "first"}):
        raise ValueError("nothing to exchange")
    owner, adds = trained[0].owner, asked["exchange"] == "sum"
    most = sum(tensor.nbytes for tensor in sent.values()) if adds else 0
    for process in trained[1:]:
        message, tensors = process.receive(most=most, seconds=left(until, owner))
        if message != asked:
            raise ValueError("they do not keep step")
        if adds:
            ranks.add(sent, tensors)
    for process in trained:
        process.send({}, sent, left(until, owner))


class _Printed(io.TextIOBase):
    """A stream that sends each printed line as {"say": line}."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._begun = channel, ""

    def write(self, text: str, /) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._channel.send({"say": line})
        return len(text)


def _train(row: Row, run: TrainRun, folder: Path, rank: int, meeting: Path | None, channel: Channel) -> None:
    """Train in the process of one rank. Only the first rank reports."""

    def ask(kind: str, tensors: Tensors) -> Tensors:
        channel.send({"exchange": kind}, tensors)
        return channel.receive(2**40)[1]

    set_up(run.device)
    asks = Collective(rank, run.processes, meeting, EPOCH_SECONDS) if meeting else ask
    own = Ranks(rank, run.processes, asks) if run.processes > 1 else ranks.ALONE
    if rank:
        fit(row, run, folder, lambda *_: None, print, own)
        if meeting:
            channel.send({"done": True})
        return
    with redirect_stdout(_Printed(channel)):
        best, done, result = fit(
            row, run, folder, lambda epoch, score: channel.send({"epoch": epoch, "score": score}), print, own
        )
    channel.send({"done": asdict(done), "result": result.model_dump(mode="json"), "memory": peak()}, best)
