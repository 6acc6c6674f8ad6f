"""What the wall costs: a row's attacks with its model behind it and in the judge's own process, in turn.

    python measurements/wall_overhead.py 5 Wong2020Fast-linf Debenedetti2022XCiT-small ...

Of each row that was built on digits: its suites (AutoAttack and the papers' attacks) on all evaluation images, from the start
of the row's process to its end. Core-seconds of both processes and seconds, medians over the rounds and of the ratios of a
round. The adversarial images of both ways are compared bit by bit.
"""

from __future__ import annotations

import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.runtime import arithmetic

arithmetic.fix("portable")

import torch

from benchmark.evaluation.run_attack import run_suite
from benchmark.loading.rows import load_row
from benchmark.loading.trained import evaluation_images
from benchmark.runtime.torch_setup import set_up
from benchmark.sandbox import model
from benchmark.sandbox.submitted import in_force, in_words


def main(rounds: int, rows: list[str]) -> None:
    device, full = set_up("cpu"), in_force()
    print(f"{platform.machine()}, one thread, torch {torch.__version__}, wall: {in_words(full)}; {rounds} rounds\n")
    print("| row | core-s without | behind the wall | ratio | s without | behind the wall | ratio | images |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in rows:
        spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        verdicts = set()
        for turn in range(-1, rounds):  # the first round warms up
            for behind in (False, True):
                seconds, found = _attacked(name, full if behind else (), device)
                verdicts.add(found)
                if turn >= 0:
                    spent[behind].append(seconds)
        cells = []
        for kind in (0, 1):
            without, within = ([pair[kind] for pair in spent[behind]] for behind in (False, True))
            ratios = [b / a for a, b in zip(without, within, strict=True)]
            cells += [
                f"{statistics.median(without):.2f}",
                f"{statistics.median(within):.2f}",
                f"{statistics.median(ratios):.3f}",
            ]
        print(f"| {name} | {' | '.join(cells)} | {'equal' if len(verdicts) == 1 else 'DIFFER'} |", flush=True)


def _attacked(name: str, held: tuple[str, ...], device: torch.device) -> tuple[tuple[float, float], bytes]:
    """Core-seconds and seconds, and the adversarial images of all suites as bytes."""
    model.in_force = lambda: held
    row = load_row("digits", name)
    before, started = _core_seconds(), time.perf_counter()
    found = []
    with model.evaluated_model(row, device) as subject, tempfile.TemporaryDirectory() as folder:
        images, labels = evaluation_images(row, device)
        for suite, specs in row.track.suites.items():
            place = Path(folder) / suite
            place.mkdir()
            for _, state, _ in run_suite(
                subject.model, images, labels, specs, batch_size=row.track.evaluation.batch_size, folder=place,
                engine="fast", report=lambda _: None,
            ):  # fmt: skip
                found.append(state.adversarial.numpy().tobytes())
    return (_core_seconds() - before, time.perf_counter() - started), b"".join(found)


def _core_seconds() -> float:
    """Of this process and of those that it has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
