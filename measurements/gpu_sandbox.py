"""Part `sandbox` of gpu.py: whether CUDA starts and computes in the sandbox, and if not, what it lacks.

The rules that ship are tried first, with every part of the sandbox that this machine has, then each part alone. Where they
fail, one thing more is opened at a time: a driver newer than those that were tried may need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpu_common import left, row

from benchmark.runtime.errors import BenchmarkError
from benchmark.wall import confinement, system_calls
from benchmark.wall.channel import Channel
from benchmark.wall.confinement import Confinement, available
from benchmark.wall.process import Walled

MORE = ("/dev", "/dev/shm", "/proc", "/sys", "/run", "/tmp", "/usr/local/nvidia", "/etc", "/var")


# what could stay closed: in place of /proc/self to write
NARROWER = {"no entry of /proc to write": "/dev/null", "/proc/self/task alone to write": "/proc/self/task"}


def compute(channel: Channel) -> None:
    """In the sandbox: a product on the GPU against the processor's, a captured graph, and a generator."""
    import torch

    a = torch.randn(256, 256)
    found = (a.cuda() @ a.cuda()).cpu()
    graph, place = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        result = place * 2
    place.fill_(3.0)
    graph.replay()
    right = torch.allclose(found, a @ a, atol=1e-2) and bool((result == 6).all())
    channel.send({"right": right, "device": torch.cuda.get_device_name()})


def outcome(parts: Sequence[str], read: Sequence[str] = (), write: Sequence[str] = ()) -> str:
    """ "works", or what stopped it."""
    rules = Confinement(read=tuple(map(Path, read)), write=tuple(map(Path, write)), gpu=True)
    process = Walled(compute, rules, parts, owner="CUDA", seconds=min(60.0, max(left(), 1.0)))
    try:
        answer, _ = process.receive()
        return "works" if answer["right"] else "computes wrongly"
    except BenchmarkError as error:
        return str(error)[:100]
    finally:
        process.close()


@contextmanager
def allowed(name: str) -> Iterator[None]:
    """Without the refusal of one system call."""
    kept = {field: getattr(system_calls, field) for field in ("REFUSED", "REFUSED_NETWORK")}
    for field, names in kept.items():
        setattr(system_calls, field, tuple(one for one in names if one != name))
    try:
        yield
    finally:
        for field, names in kept.items():
            setattr(system_calls, field, names)


@contextmanager
def in_place_of_proc(place: str) -> Iterator[None]:
    """With another path to write in place of /proc/self."""
    kept = confinement._written_by_cuda
    confinement._written_by_cuda = lambda: [*(path for path in kept() if path != Path("/proc/self")), Path(place)]
    try:
        yield
    finally:
        confinement._written_by_cuda = kept


def main(tried: Callable[..., str] = outcome) -> None:
    there = available()
    row("sandbox", parts=", ".join(there) or "none", outcome=tried(there))
    for part in (*((one,) for one in there), ()):
        row("sandbox", parts=", ".join(part) or "none", outcome=tried(part))
    for words, place in NARROWER.items():
        with in_place_of_proc(place):
            row("narrower", what=words, outcome=tried(there))
    if tried(there) == "works":
        return
    for place in MORE:
        if left() < 20:
            return
        row("opened", what=f"read and write {place}", outcome=tried(there, [place], [place]))
    for name in (*system_calls.REFUSED_NETWORK, *system_calls.REFUSED):
        if left() < 10:
            return
        with allowed(name):
            if (found := tried(there)) == "works":
                row("opened", what=f"system call {name}", outcome=found)


if __name__ == "__main__":
    main()
