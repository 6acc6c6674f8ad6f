"""A training step captured as a CUDA graph: its kernels are launched together, not one by one from Python.

The graph holds the whole step: the attack, both passes, the optimiser, and what puts the weights back. It reads its images
and labels from fixed memory: a step of other shapes or of another radius gets another graph. Where the process may start
compilers, torch.compile fuses the network's kernels too; in the sandbox it may not.
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
WARM = 3  # steps that run before one is recorded: libraries and optimisers allocate in them


class CudaRecorder:
    """Records into CUDA graphs, on a stream of its own, since the default one cannot be captured."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._stream = device, torch.cuda.Stream(device)
        self.forget()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Run what is inside on the recorder's stream, in order with what is around."""
        outer = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def generator(self) -> torch.Tensor:
        """The state of the device's generator."""
        return torch.cuda.get_rng_state(self.device)

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        """Run what is inside as it is, and tell where it waited for the device, which no recording can hold."""
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
        """Return what repeats `run`, and the tensor that holds its result after each time. Nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = run()
        return graph.replay, result

    def forget(self) -> None:
        """What was recorded so far is not replayed again."""
        self._pool = torch.cuda.graph_pool_handle()  # graphs that are gone leave a pool that no other may use


def waits_among(warned: Iterable[str]) -> list[str]:
    """The first lines of torch's warnings that tell of a wait; it also warns of the mode that looks for waits."""
    return [message.splitlines()[0] for message in warned if "called a synchronizing" in message]


@dataclass
class CapturedStep:
    """A step, run by its graph once it was seen `WARM` times.

    Attributes:
        step: (batches, images, eps_factor) to the mean loss, () float64.
        problem: why the step is not captured; "" while nothing is known against it.
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
        self._say()

    def __call__(self, batches: Sequence[Split], images: int, eps_factor: float) -> torch.Tensor:
        """Take one step; the same as `step`.

        Raises:
            BenchmarkError: torch refuses to capture the step for a reason that did not show before.
        """
        if self.problem:
            return self.step(batches, images, eps_factor)
        if eps_factor != self._eps_factor:  # graphs of other radii are not needed again
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
        self._say()
        return loss

    def _record(
        self, key: tuple[object, ...], batches: Sequence[Split], images: int, eps_factor: float
    ) -> torch.Tensor:
        kept = [(x.clone(), y.clone()) for x, y in batches]
        self.recording = True
        try:
            replay, loss = self.recorder.record(lambda: self.step(kept, images, eps_factor))
        except RuntimeError as error:  # after which torch's allocator and generators are not to be trusted
            why = str(error.__context__ or error).strip().splitlines()[0]
            raise BenchmarkError(
                f"params.yaml, train: the step cannot be captured ({why}); set `compile: false` and run the same command "
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

    def _say(self) -> None:
        if self.problem:
            print(f"train.compile: the step is not captured ({self.problem}); it runs as it is", flush=True)


def compiled(model: nn.Module) -> nn.Module:
    """Return the model with its kernels fused by torch.compile, where this process may start compilers; else the model."""
    return torch.compile(model, dynamic=False) if _starts_programs() else model  # type: ignore[return-value]


@cache
def _starts_programs() -> bool:
    """Whether this process may start programs, a C compiler among them, as torch.compile does."""
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")))):
        return False
    try:
        return subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
    except OSError:
        return False
