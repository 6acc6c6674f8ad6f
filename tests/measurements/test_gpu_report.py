"""The report on a GPU: its parts are bounded, what fails is said and the rest goes on; with parts that stand in for a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
MEASUREMENTS = Path(__file__).resolve().parents[2] / "measurements"


def script(name: str):
    """A script of measurements/, imported."""
    sys.path.insert(0, str(MEASUREMENTS))
    try:
        spec = importlib.util.spec_from_file_location(name, MEASUREMENTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(MEASUREMENTS))


gpu = script("gpu")
DEVICES = [("Fake H100", 80, 12_345.6), ("Fake | H200", 141, None)]
GOOD = "import json, subprocess, sys, time\n" + "\n".join(
    f"print(json.dumps({{'table': 'cards', 'name': {name!r}, 'GiB': {size}, 'images a second': {rate}}}), flush=True)"
    for name, size, rate in DEVICES
)
FAILS = GOOD + "\nprint('a line of its log')\nraise SystemExit('error: the GPU is gone')"
HANGS = GOOD + "\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\ntime.sleep(600)"
CUT = GOOD + '\nprint(\'{"table": "cards", "na\', end=\'\', flush=True)\nimport os; os._exit(1)'


def part(name: str, code: str, share: float = 0.5):
    return gpu.Part(name, f"Part {name}", (sys.executable, "-c", code), share)


@pytest.mark.parametrize(
    ("code", "problem", "limit"),
    [(GOOD, "", 60), (FAILS, "exit status 1", 60), (CUT, "exit status 1", 60), (HANGS, "ended after its 4 s", 4)],
    ids=["good", "fails", "cut", "hangs"],
)
def test_a_part_gives_its_rows_and_one_that_fails_says_how_it_ended(code, problem, limit) -> None:
    """One that hangs is ended with all that it started."""
    result = gpu.run_part(part("bad", code), limit)
    assert [row["name"] for row in result.rows] == [name for name, *_ in DEVICES]
    assert result.problem == problem
    assert result.seconds < 60
    if code in (GOOD, FAILS):
        assert result.last_lines == ["a line of its log", "error: the GPU is gone"] * (code is FAILS)


def test_the_report_is_written_after_each_part_and_the_rest_goes_on(tmp_path, capsys) -> None:
    parts = [part("one", FAILS), part("two", GOOD), part("three", GOOD)]
    assert gpu.main(["one", "three", "--out", str(tmp_path)], parts) == 1
    assert "one: exit status 1" in capsys.readouterr().err
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert [(result["name"], result["problem"]) for result in results] == [("one", "exit status 1"), ("three", "")]
    text = (tmp_path / "gpu.md").read_text()
    for words in (
        "| name | GiB | images a second |\n|---|--:|--:|\n| Fake H100 | 80 | 12,346 |\n| Fake \\| H200 | 141 |  |",
        "error: the GPU is gone",
        "Written by `python measurements/gpu.py one three`.",
    ):
        assert words in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]


def test_time_is_shared_out_and_what_a_part_leaves_goes_to_the_next_ones() -> None:
    limits: dict[str, float] = {}

    def run(part, limit: float):
        limits[part.name] = limit
        return gpu.Result(part.name, part.title)

    written: list[int] = []
    parts = [part("a", "", 0.2), part("b", "", 0.3), part("c", "", 0.5)]
    gpu.run_all(parts, 2, lambda results: written.append(len(results)), run)
    assert list(limits.values()) == pytest.approx([24, 120 * 0.3 / 0.8, 120], abs=1)
    assert written == [1, 2, 3]
    results = gpu.run_all(parts, 0.01, lambda _: None, run)
    assert [result.problem.partition(":")[0] for result in results] == ["not begun"] * 3


@pytest.mark.parametrize(
    ("arguments", "words"), [(["sandbx"], "no part 'sandbx'; known: device, sandbox"), (["--minutes", "0"], "positive")]
)
def test_what_cannot_be_asked_for_is_refused_in_a_line(arguments, words, capsys) -> None:
    with pytest.raises(SystemExit):
        gpu.main(arguments)
    assert words in capsys.readouterr().err


def test_every_part_is_there_and_the_shares_are_a_whole() -> None:
    assert sum(part.share for part in gpu.PARTS) == pytest.approx(1)
    for part in gpu.PARTS:
        assert part.name == "tests" or Path(part.command[1]).exists()


def test_the_sandbox_is_tried_part_by_part_and_opened_thing_by_thing_until_it_works(capsys) -> None:
    sandbox = script("gpu_sandbox")

    def tried(parts, read=(), write=()) -> str:
        refused = "kill" in sandbox.seccomp.REFUSED
        return "Error 304" if "seccomp" in parts and refused and "/run" not in write else "works"

    kept = sandbox.seccomp.REFUSED
    sandbox.main(tried)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    opened = [row["what"] for row in rows if row["outcome"] == "works" and row["table"] == "opened"]
    assert opened == ["read and write /run", "system call kill"]
    assert kept == sandbox.seccomp.REFUSED
    sandbox.main(lambda *_: "works")
    assert {json.loads(line)["table"] for line in capsys.readouterr().out.splitlines()} == {"sandbox", "narrower"}


@pytest.mark.slow
def test_without_a_gpu_the_sandbox_says_so() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    ended = subprocess.run(  # apart: a process that has asked torch for GPUs cannot fork one that uses them
        [sys.executable, MEASUREMENTS / "gpu_sandbox.py"], env=os.environ | {"PYTHONPATH": str(MEASUREMENTS.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    tried = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(tried) > 5
    assert all("NVIDIA" in row["outcome"] for row in tried)
