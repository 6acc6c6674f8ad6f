"""A training step captured as a CUDA graph: its kernels are launched together, not one by one from Python.

The graph holds the whole step: attack, both passes, optimiser and projection of the weights. It reads images and labels from
fixed memory, so a step of other shapes or another radius needs another graph. torch.compile fuses the network's kernels too
where the process may start compilers, which the sandbox forbids.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

Split = tuple[torch.Tensor, torch.Tensor]  # images (n, c, h, w) float32 in [0, 1], labels (n,) int64
Step = Callable[[Sequence[Split], int, float], torch.Tensor]
WARM = 3  # steps before the recording, in which libraries and optimisers allocate


class CudaRecorder:
    """Records CUDA graphs on a stream of its own, since the default stream cannot be captured."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, torch.cuda.Stream(device)
        self.forget()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Run the context on the recorder's stream, in order with the stream around it."""
        outer = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def generator(self) -> torch.Tensor:
        """Return the state of the device's generator."""
        return torch.cuda.get_rng_state(self.device)

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """Run the context and list where it waited for the device, which cannot be recorded."""
        places: list[str] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield places
            finally:
                torch.cuda.set_sync_debug_mode(before)
        places += waits_among(str(warning.message) for warning in seen)

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Return a function that repeats `run`, and the tensor that will hold its result. Nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run()
        return graph.replay, result

    def forget(self) -> None:
        """Drop all recordings."""
        self._pool = torch.cuda.graph_pool_handle()  # no other graph may use the pool of a deleted one


def waits_among(warned: Iterable[str]) -> list[str]:
    """Return the first lines of torch's warnings of waits; torch also warns of the mode that looks for them."""
    return [message.splitlines()[0] for message in warned if "called a synchronizing" in message]


@dataclass
class CapturedStep:
    """A step that runs as a graph once it was seen `WARM` times.

    Attributes:
        step: maps (batches, images, eps_factor) to the mean loss, () float64.
        problem: why the step is not captured, or "".
        still: whether a step that draws random numbers cannot be captured.
    """

    step: Step
    recorder: CudaRecorder
    problem: str = ""
    still: bool = False
    recording: bool = False
    _seen: dict[tuple[object, ...], int] = field(default_factory=dict)
    _recorded: dict[tuple[object, ...], Callable[[Sequence[Split]], torch.Tensor]] = field(default_factory=dict)
    _eps_factor: float = -1.0

    def __post_init__(self) -> None:
        self._report()

    def __call__(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Take one step, like `step`.

        Raises:
            BenchmarkError: torch refuses to capture the step for an unexpected reason.
        """
        if self.problem:
            return self.step(batches, images, eps_factor)
        if eps_factor != self._eps_factor:  # graphs of earlier radii are not needed again
            self._eps_factor = eps_factor
            self._recorded.clear()
            self.recorder.forget()
        key = (eps_factor > 0, images, *((x.shape, y.shape, y.dtype) for x, y in batches))
        if recorded := self._recorded.get(key):
            return recorded(batches)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] < WARM:
            return self.step(batches, images, eps_factor)
        if self._seen[key] == WARM:
            return self._last_warm(batches, images, eps_factor)
        return self._record(key, batches, images, eps_factor)

    def _last_warm(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        before = self.recorder.generator()
        with self.recorder.waits() as waits:
            loss = self.step(batches, images, eps_factor)
        if waits:
            self.problem = f"it waits for the device: {waits[0]}"
        elif self.still and not torch.equal(before, self.recorder.generator()):
            self.problem = "sam repeats a step's random numbers"
        self._report()
        return loss

    def _record(self, key: tuple[object, ...], batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        kept = [(x.clone(), y.clone()) for x, y in batches]
        self.recording = True
        try:
            replay, loss = self.recorder.record(lambda: self.step(kept, images, eps_factor))
        except RuntimeError as error:  # it leaves torch's allocator and generators in an unknown state
            reason = str(error.__context__ or error).strip().splitlines()[0]
            raise BenchmarkError(
                f"params.yaml, train: the step cannot be captured ({reason}); set `compile: false` and run the same command "
                "again, finished epochs are kept"
            ) from None
        finally:
            self.recording = False

        def again(batches: Sequence[Split]) -> torch.Tensor:
            for places, given in zip(kept, batches, strict=True):
                for place, tensor in zip(places, given, strict=True):
                    place.copy_(tensor)
            replay()
            return loss

        self._recorded[key] = again
        return again(batches)

    def _report(self) -> None:
        if self.problem:
            print(f"train.compile: the step is not captured ({self.problem}); it runs as it is", flush=True)


def compiled(model: nn.Module) -> nn.Module:
    """Return the model compiled by torch.compile if this process may start compilers; else the model."""
    return torch.compile(model, dynamic=False) if _starts_programs() else model  # type: ignore[return-value]


@cache
def _starts_programs() -> bool:
    """Return whether this process may start programs and has a C compiler, as torch.compile needs."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")))):
        return False
    try:
        return subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
    except OSError:
        return False
