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
from benchmark.sandbox import confinement, seccomp
from benchmark.sandbox.channel import Channel
from benchmark.sandbox.confinement import Confinement, available
from benchmark.sandbox.process import Process

MORE = ("/dev", "/dev/shm", "/proc", "/sys", "/run", "/tmp", "/usr/local/nvidia", "/etc", "/var")


# what could stay closed: in place of /proc/self/task to write
NARROWER = {"no entry of /proc to write": "/dev/null"}


def compute(channel: Channel) -> None:
    """In the sandbox, told one after another: what training and evaluation do on a GPU, against the processor's results."""
    import torch
    from torch import nn

    def tell(what: str, right: bool) -> None:
        torch.cuda.synchronize()
        channel.send({"what": what, "right": right})

    a = torch.randn(256, 256)
    tell("a matrix product", torch.allclose((a.cuda() @ a.cuda()).cpu(), a @ a, atol=1e-2))
    graph, place = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        result = place * 2
    place.fill_(3.0)
    graph.replay()
    tell("a graph", bool((result == 6).all()))
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.GELU(), nn.Flatten(), nn.Linear(32 * 900, 10))
    images = torch.rand(8, 3, 32, 32)
    here = network.eval()(images)
    tell("convolutions", torch.allclose(network.cuda()(images.cuda()).cpu(), here, atol=1e-3))
    tokens = torch.randn(8, 3, 64, 64, device="cuda")
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = network.train()(images.cuda()).square().sum()
            loss = loss + nn.functional.scaled_dot_product_attention(*[tokens.to(dtype).requires_grad_()] * 3).sum()
            loss.backward()
        tell(f"gradients in {name}", all(bool(p.grad.isfinite().all()) for p in network.parameters()))
    torch.optim.AdamW(network.parameters(), fused=True).step()
    tell("a fused optimiser", all(bool(p.isfinite().all()) for p in network.parameters()))
    channel.send({"what": "", "right": True})


def outcome(parts: Sequence[str], read: Sequence[str] = (), write: Sequence[str] = ()) -> str:
    """ "works", or what stopped it."""
    rules = Confinement(tuple(parts), tuple(map(Path, read)), tuple(map(Path, write)), gpu=True)
    process = Process(compute, rules, owner="CUDA", seconds=min(60.0, max(left(), 1.0)))
    last = "it starts"
    try:
        while (answer := process.receive()[0])["what"]:
            if not answer["right"]:
                return f"{answer['what']}: wrong"
            last = answer["what"]
        return "works"
    except BenchmarkError as error:
        return f"after {last}: {error}"[:160]
    finally:
        process.close()


@contextmanager
def allowed(name: str) -> Iterator[None]:
    """Without the refusal of one system call."""
    kept = {field: getattr(seccomp, field) for field in ("REFUSED", "REFUSED_WITHOUT_NETWORK")}
    for field, names in kept.items():
        setattr(seccomp, field, tuple(one for one in names if one != name))
    try:
        yield
    finally:
        for field, names in kept.items():
            setattr(seccomp, field, names)


@contextmanager
def in_place_of_proc(place: str) -> Iterator[None]:
    """With another path to write in place of /proc/self/task."""
    kept = confinement._written_by_cuda
    confinement._written_by_cuda = lambda: [*(path for path in kept() if path != Path("/proc/self/task")), Path(place)]
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
    for name in (*seccomp.REFUSED_WITHOUT_NETWORK, *seccomp.REFUSED):
        if left() < 10:
            return
        with allowed(name):
            if (found := tried(there)) == "works":
                row("opened", what=f"system call {name}", outcome=found)


if __name__ == "__main__":
    main()
