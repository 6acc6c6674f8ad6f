"""Measures that are functions, of a submission's measures.py or of benchmark/measures, on the network itself.

They need its modules and its autograd graph, so they run in the process that builds it, in the sandbox.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from benchmark.data.images import load_split
from benchmark.loading import methods
from benchmark.loading.confining import submission_files, wall
from benchmark.loading.rows import Row
from benchmark.loading.trained import tensors, trained_model
from benchmark.results.points import Points
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.study import BUILTIN, MeasureSpec, Value
from benchmark.studies import checks, measures
from benchmark.studies.measures import Measure, Measured
from benchmark.wall.channel import Channel, Tensors
from benchmark.wall.process import Answer, Walled, serve

SECONDS = 12 * 3600.0  # for one measure of one network
MOST_BYTES = 2**28  # of what a measure returns for each image

ANSWER: dict[str, TypeAdapter[Any]] = {
    "values": TypeAdapter(dict[str, Value], config=ConfigDict(allow_inf_nan=False)),
    "x": TypeAdapter(dict[str, tuple[float, ...]], config=ConfigDict(allow_inf_nan=False)),
    "points": TypeAdapter(dict[str, Points]),
}
Measuring = Callable[[MeasureSpec, torch.Tensor, torch.Tensor], Measured]


def is_function(measure: MeasureSpec) -> bool:
    return measure.measure not in BUILTIN


@contextmanager
def measuring(row: Row, device: torch.device) -> Iterator[Measuring | None]:
    """Yield a function that takes the network's measures that are functions; None where it has no such measure.

    Its process starts at once, before this process has read an image or used a GPU, and ends with the block.
    """
    held = wall()
    if not (row.network and any(map(is_function, row.network.measures))):
        yield None
    elif not held.stands:
        yield partial(_measure, row, cache(lambda: trained_model(row, device)))
    else:
        data = [row.data.absolute() / name for name in ("data.json", "train.safetensors")]
        read = [*submission_files(row), row.weights.absolute(), *data]
        walled = held.process(row, partial(_serve, row, device), read, seconds=SECONDS, device=device.type)
        with closing(walled):
            yield partial(_asked, walled)


def _asked(walled: Walled, measure: MeasureSpec, images: torch.Tensor, labels: torch.Tensor) -> Measured:
    """Ask the process for a measure of images (n, c, h, w) and labels (n,). Raises BenchmarkError: the measure fails or
    returns what it may not.
    """
    message = {"ask": "measure", "measure": measure.model_dump(mode="json")}
    answer, columns = walled.ask(message, {"images": images, "labels": labels}, most=MOST_BYTES)
    try:
        values, x, points = (kind.validate_python(answer.get(name)) for name, kind in ANSWER.items())
    except ValidationError:
        raise BenchmarkError(f"{walled.owner}: the measure {measure.label!r} answers wrongly") from None
    names = [*values, *x, *points, *columns]
    own = [name for name in names if name == measure.label or name.startswith(f"{measure.label}: ")]
    if own != names or any(column.shape != labels.shape for column in columns.values()):
        raise BenchmarkError(f"{walled.owner}: the measure {measure.label!r} answers for other measures or images")
    return Measured(values, x, columns, points=points)


def _serve(row: Row, device: torch.device, channel: Channel) -> None:
    """In the process."""
    model = cache(lambda: trained_model(row, device))

    def measure(message: dict[str, Any], tensors: Tensors) -> Answer:
        spec = MeasureSpec.model_validate(message["measure"])
        measured = _measure(row, model, spec, tensors["images"].to(device), tensors["labels"].to(device))
        answer = {name: kind.dump_python(getattr(measured, name), mode="json") for name, kind in ANSWER.items()}
        return answer, measured.columns

    serve(channel, {"measure": measure})


def _measure(
    row: Row,
    model: Callable[[], torch.nn.Module],
    measure: MeasureSpec,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> Measured:
    assert row.network is not None  # the step applies
    name, function = row.submission.name, function_of(row.submission.name, measure.measure)
    parts = {
        part: getattr(finding(part), part)(name, model()) for part in measures.PARTS if measures.takes(function, part)
    }
    if measures.takes(function, measures.TRAINING):
        parts[measures.TRAINING] = tensors(load_split(row.data, "train"))
    return measures.own(function, model(), images, labels, measure, row.network.seed, parts)


def function_of(submission: str, measure: str) -> Measure:
    """Return a measure by name, from the submission's own measures.py or else from benchmark/measures."""
    if checks.own_measure(submission, measure):
        function: Measure = getattr(methods.module(submission, "measures"), measure)
        return function
    shared: Measure = importlib.import_module(f"benchmark.measures.{measure}").measure
    return shared


def finding(part: str) -> ModuleType:
    """Return the module that finds a model's blocks or attention. Found by name: other studies do not depend on it."""
    return importlib.import_module(f"benchmark.loading.{part}")
