"""Measures that are functions of a submission's measures.py.

They need the network's modules and its autograd graph, so they run in the sandboxed process that builds it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import ConfigDict, ValidationError
from torch import nn

from benchmark.data.images import load_split
from benchmark.data.tensors import tensors
from benchmark.layers.trained import trained_model
from benchmark.records.points import Points
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.channel import Message
from benchmark.sandbox.process import Process, serve
from benchmark.sandbox.submitted import in_force, start
from benchmark.specs import methods
from benchmark.specs.base import Frozen
from benchmark.specs.rows import Row
from benchmark.specs.study import MeasureSpec, Value
from benchmark.studies import checks
from benchmark.studies import measuring as measures
from benchmark.studies.measuring import Measure, Measured

SECONDS = 12 * 3600.0  # for one measure of one network
MOST_BYTES = 2**28  # of the tensors that a measure returns

Measuring = Callable[[MeasureSpec, torch.Tensor, torch.Tensor], Measured]


class Numbers(Frozen):
    """The fields of `Measured` that hold no tensors, as the sandboxed process sends them."""

    model_config = ConfigDict(allow_inf_nan=False)

    values: dict[str, Value]
    x: dict[str, tuple[float, ...]]
    points: dict[str, Points]


@contextmanager
def measuring(row: Row, device: torch.device) -> Iterator[Measuring | None]:
    """Yield a function that takes a network's measure; None where no measure of the network is a function.

    The sandboxed process starts at once, before this one has read an image or used a GPU, and ends with the block.
    """
    parts = in_force()
    if not (row.network and any(measure.is_function for measure in row.network.measures)):
        yield None
    elif not parts:
        yield _Served(row, device).take
    else:
        data = [row.data / name for name in ("data.json", "train.safetensors")]
        process = start(
            lambda channel: serve(channel, _Served(row, device)), parts, row.submission.name,
            read=[row.weights, *data], seconds=SECONDS, device=device.type,
        )  # fmt: skip
        with process:
            yield partial(_asked, process)


def _asked(process: Process, measure: MeasureSpec, images: torch.Tensor, labels: torch.Tensor) -> Measured:
    """Ask the process for a measure of images (n, c, h, w) and labels (n,).

    Raise a BenchmarkError if the measure fails or returns something that is not allowed.
    """
    given = {"images": images, "labels": labels}
    answer, columns = process.ask("measure", given, most=MOST_BYTES, spec=measure.model_dump(mode="json"))
    try:
        numbers = Numbers.model_validate(answer)
    except ValidationError:
        raise BenchmarkError(f"{process.owner}: the measure {measure.label!r} returned malformed output") from None
    names = [*numbers.values, *numbers.x, *numbers.points, *columns]
    of_others = [name for name in names if name != measure.label and not name.startswith(f"{measure.label}: ")]
    if of_others or any(column.shape != labels.shape for column in columns.values()):
        raise BenchmarkError(f"{process.owner}: the measure {measure.label!r} answers for other measures or images")
    return Measured(numbers.values, numbers.x, columns, points=numbers.points)


class _Served:
    """The network in the sandboxed process, built when it is first measured."""

    def __init__(self, row: Row, device: torch.device) -> None:
        self.row, self.device = row, device

    @cached_property
    def model(self) -> nn.Module:
        return trained_model(self.row, self.device)

    def measure(self, spec: dict[str, Any], images: torch.Tensor, labels: torch.Tensor) -> Message:
        measured = self.take(MeasureSpec.model_validate(spec), images.to(self.device), labels.to(self.device))
        numbers = Numbers.model_construct(values=measured.values, x=measured.x, points=measured.points)
        return numbers.model_dump(mode="json"), measured.columns

    def take(self, measure: MeasureSpec, images: torch.Tensor, labels: torch.Tensor) -> Measured:
        assert self.row.network is not None  # the step applies
        name = self.row.submission.name
        function, taken = function_of(name, measure.measure), checks.filled(name, measure.measure)
        filled: dict[str, object] = {}
        if "attention" in taken:
            filled["attention"] = attention(name, self.model)
        if "training" in taken:
            filled["training"] = tensors(load_split(self.row.data, "train"))
        return measures.own(function, self.model, images, labels, measure, self.row.network.seed, filled)


def function_of(submission: str, measure: str) -> Measure:
    """Return a measure by name, from the submission's measures.py."""
    function: Measure = getattr(methods.module(submission, "measures"), measure)
    return function


def attention(submission: str, model: nn.Module) -> object:
    """Return a model's attention weights. Their module is found by name, so that other studies do not depend on it."""
    return importlib.import_module("benchmark.layers.submitted_attention").attention(submission, model)
