"""One report on this machine's GPU: whether the benchmark works there, how fast, and in the sandbox.

    python measurements/gpu.py [part ...] [--minutes 8] [--out FOLDER]

Each part is a script beside this one, `gpu_<part>.py`, or the GPU tests, in a process of its own that is ended when its
time is over. A part prints JSON objects as it goes, one a line: {"table": ..., column: value, ...} is a row of a table of
the report. What fails is reported, and the rest goes on. After every part gpu.md and gpu.json are written anew, in
measurements/measured unless `--out` says. It needs neither DVC nor robustbench, and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MEASURED = HERE / "measured"
LEAST = 5.0  # seconds that a part is begun with
SHOWN = 12  # last lines of what a part that failed has printed


@dataclass(frozen=True)
class Part:
    """One part of the report: `share` of the whole time at most, unless earlier parts left more."""

    name: str
    title: str
    command: tuple[str, ...]
    share: float


def _script(name: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"gpu_{name}.py"))


TESTS = (sys.executable, "-m", "pytest", "-m", "gpu and not slow", "-q", "-n", "4", "tests/test_gpu.py")
PARTS = (
    Part("device", "The machine", _script("device"), 0.03),
    Part("sandbox", "CUDA in the sandbox", _script("sandbox"), 0.12),
    Part("tests", "The GPU's tests", TESTS, 0.15),
    Part("rows", "Rows of cifar10_jpeg from training to Record, in the sandbox", _script("rows"), 0.2),
    Part("throughput", "Training, images a second", _script("throughput"), 0.2),
    Part("engines", "AutoAttack, the fast engine and the authors' files", _script("engines"), 0.3),
)


@dataclass
class Result:
    """What came of a part: its rows, and how it ended ("" is well)."""

    name: str
    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = ""
    last_lines: list[str] = field(default_factory=list)


def run_part(part: Part, limit: float) -> Result:
    """Run a part for `limit` seconds at most, and return its rows, those too that it printed before it failed."""
    result, started = Result(part.name, part.title), time.perf_counter()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        "TEST_ARITHMETIC": "native",
        "PYTHONUNBUFFERED": "1",
        "GPU_SECONDS": str(limit),
    }
    process = subprocess.Popen(
        part.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, errors="replace",
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        result.problem = f"ended after its {limit:.0f} s"
    other = []
    for line in printed.splitlines():
        row = _row(line)
        if row is None:
            other.append(line)
        else:
            result.rows.append(row)
    if not result.problem and process.returncode:
        result.problem = f"exit status {process.returncode}"
    counted = re.findall(r"^.*\b\d+ (?:passed|failed|skipped).*$", printed, re.MULTILINE)
    if part.name == "tests" and counted:
        result.rows.append({"table": "tests", "result": counted[-1].strip("= ")})
    if result.problem:
        result.last_lines = [line[:300] for line in other if line.strip()][-SHOWN:]
    result.seconds = round(time.perf_counter() - started, 1)
    return result


def _row(line: str) -> dict[str, Any] | None:
    """The row that a line holds; None for any other line."""
    if not line.startswith('{"table"'):
        return None
    try:
        return json.loads(line)
    except json.JSONDecodeError:  # a line that was cut when its part was ended
        return None


def run_all(
    parts: Sequence[Part], minutes: float, write: Callable[[list[Result]], None], run: Callable[..., Result] = run_part
) -> list[Result]:
    """Run the parts in `minutes` together, each in its share and what earlier ones left of theirs.

    Args:
        write: called with the results so far, after each part.
    """
    results: list[Result] = []
    until = time.monotonic() + 60 * minutes
    for place, part in enumerate(parts):
        left = until - time.monotonic()
        limit = max(LEAST, left * part.share / sum(later.share for later in parts[place:]))
        if left < LEAST:
            results.append(Result(part.name, part.title, problem=f"not begun: {max(left, 0):.0f} s were left"))
        else:
            print(f"{part.name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
            results.append(run(part, limit))
        write(results)
    return results


def markdown(results: Sequence[Result], command: str) -> str:
    """The report: a section a part, a table a kind of row."""
    lines = ["# The benchmark on a GPU", "", f"Written by `{command}`. One run; what a part could not do stands in it.", ""]
    for result in results:
        state = f"{result.problem}, " if result.problem else ""
        lines += [f"## {result.title}", "", f"Part `{result.name}`: {state}{result.seconds:.0f} s.", ""]
        for name in dict.fromkeys(row["table"] for row in result.rows):
            lines += [*table([row for row in result.rows if row["table"] == name]), ""]
        if result.last_lines:
            lines += ["```text", *result.last_lines, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of rows with the columns that any of them has, in the order in which they appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "table"))
    numbers = [name for name in columns if all(isinstance(row.get(name), int | float | None) for row in rows)]
    head = ["| " + " | ".join(columns) + " |", "|" + "|".join("--:" if name in numbers else "---" for name in columns) + "|"]
    return head + ["| " + " | ".join(_cell(row.get(name)) for name in columns) + " |" for row in rows]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")


def main(arguments: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"of {', '.join(part.name for part in parts)}; all unless given")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together, at most")
    parser.add_argument("--out", type=Path, default=MEASURED, help="the folder for gpu.md and gpu.json")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.part if name not in {part.name for part in parts}]:
        parser.error(f"no part {unknown[0]!r}; known: {', '.join(part.name for part in parts)}")
    if not given.minutes > 0:
        parser.error("--minutes should be positive")
    given.out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python measurements/gpu.py", *given.part])

    def write(results: list[Result]) -> None:
        for name, text in (
            ("gpu.md", markdown(results, command)),
            ("gpu.json", json.dumps([vars(result) for result in results], indent=1) + "\n"),
        ):
            aside = given.out / f"{name}.new"
            aside.write_text(text)
            aside.rename(given.out / name)

    chosen = [part for part in parts if not given.part or part.name in given.part]
    results = run_all(chosen, given.minutes, write)
    failed = [result for result in results if result.problem]
    for result in failed:
        print(f"{result.name}: {result.problem}", file=sys.stderr)
    print(given.out / "gpu.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
