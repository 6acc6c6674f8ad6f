"""The price of portable arithmetic: `rvb repro` from nothing in fresh clones of HEAD, native and portable by turns.

    python measurements/arithmetic_price.py 3 2 [<row> ...]

for three rounds with two stages at a time, of these rows or of all that `rvb repro` builds. Prints each run's wall and
core-seconds, and the medians.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARITHMETICS = ("native", "portable")


def main() -> None:
    rounds, jobs, rows = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    cores = sorted(os.sched_getaffinity(0))
    print(
        f"{platform.machine()}, on cores {cores} of {os.cpu_count()}, {rounds} rounds, {jobs} stages at a time",
        flush=True,
    )
    print(f"rows: {', '.join(rows) or 'all that rvb repro builds'}\n", flush=True)
    print("| round | arithmetic | wall, s | core-seconds |\n|---|---|---|---|", flush=True)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ARITHMETICS}
    for number in range(rounds):
        for name in ARITHMETICS if number % 2 == 0 else ARITHMETICS[::-1]:
            found[name].append(timed(name, jobs, rows))
            print(f"| {number + 1} | {name} | {found[name][-1][0]:.0f} | {found[name][-1][1]:.0f} |", flush=True)
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    for name, (wall, core) in medians.items():
        print(f"| median | {name} | {wall:.0f} | {core:.0f} |")
    more = [100 * (b / a - 1) for a, b in zip(medians["native"], medians["portable"], strict=True)]
    print(f"portable takes {more[0]:+.1f}% wall, {more[1]:+.1f}% core-seconds")


def timed(arithmetic: str, jobs: int, rows: list[str]) -> tuple[float, float]:
    """Wall and core-seconds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", str(ROOT), folder], check=True)
        params = Path(folder) / "params.yaml"
        text, changed = re.subn(r"(?m)^arithmetic: \w+", f"arithmetic: {arithmetic}", params.read_text())
        assert changed == 1
        params.write_text(text)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-m", "benchmark.commands.main", "repro", *rows, "--jobs", str(jobs)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            command, cwd=folder, env={**os.environ, "PATH": path, "PYTHONPATH": folder}, check=True, capture_output=True
        )
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
