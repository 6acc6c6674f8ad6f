"""A repository of rows whose stages are shell commands, and `python toy_rows.py ray|slurm <rows>`, a coordinator for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
DATA, BOARD = "pipelines/tiny/_data/dvc.yaml", "pipelines/tiny/dvc.yaml"
STARTS = {"two": "one"}  # by row, the row from whose weights it starts
ROW = """\
stages:
  train:
    cmd: {begin} train && cat work/tiny/data/all {start} > {home}/train/weights
    wdir: ../../..
    deps: [work/tiny/inputs/{row}/train.json, work/tiny/data{comma}{start}]
    outs: [{{{home}/train: {{persist: true}}}}]
  attack:
    cmd: {begin} attack && cp {home}/train/weights {home}/attack/broken
    wdir: ../../..
    deps: [work/tiny/data, {home}/train/weights]
    outs: [{home}/attack]
  certify:
    cmd: {begin} certify && cat source {home}/train/weights > {home}/certify/radii
    wdir: ../../..
    deps: [source, {home}/train/weights]
    outs: [{home}/certify]
  record:
    cmd: {begin} record && cat {home}/attack/* {home}/certify/* > {home}/record/record.json
    wdir: ../../..
    deps: [{home}/attack, {home}/certify]
    outs: [{home}/record]
"""
BEGIN = """\
echo "$1 $2 $$" >> {beside}/begun
while [ -e {beside}/hold-$2 ]; do sleep 0.1; done
if [ -e {beside}/break-$1-$2 ]; then echo "ERROR: $1 has no $2"; exit 1; fi
mkdir -p work/tiny/$1/$2 work/tiny/$1/times && echo '{{"wall_seconds": 1}}' > work/tiny/$1/times/$2.json
"""


def new(beside: Path, rows: list[str], remote: bool = True) -> Path:
    """Make the repository `project` in a folder, which holds what its stages say and heed too, and a remote."""
    root = beside / "project"
    files = {
        ".gitignore": "/work/\n",
        ".dvc/config": "[core]\n    analytics = false\n    autostage = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        "source": "what everything comes from\n",
        "begin.sh": BEGIN.format(beside=beside),
        DATA: "stages:\n  data:\n    cmd: mkdir -p work/tiny/data && cp source work/tiny/data/all\n"
        "    wdir: ../../..\n    deps: [source]\n    outs: [work/tiny/data]\n",
        BOARD: f"stages:\n  leaderboard:\n    cmd: mkdir -p work/tiny/site && cat work/tiny/*/record/* > work/tiny/site/all\n"
        f"    wdir: ../..\n    deps: [{', '.join(f'work/tiny/{row}/record' for row in rows)}]\n    outs: [work/tiny/site]\n",
    }
    for row in rows:
        start = f"work/tiny/{STARTS[row]}/train/weights" if row in STARTS else ""
        begin, comma = f"sh begin.sh {row}", ", " if start else ""
        files[f"pipelines/tiny/{row}/dvc.yaml"] = ROW.format(
            row=row, start=start, begin=begin, comma=comma, home=f"work/tiny/{row}"
        )
        files[f"work/tiny/inputs/{row}/train.json"] = f'{{"row": "{row}"}}\n'
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    if remote:
        run(root, "dvc", "remote", "add", "--default", "store", str(beside / "remote"))
    return root


def environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }  # lines are read as they come
    return {**os.environ, **own, **more}


def run(root: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], cwd=root, env=environment(), check=True, capture_output=True)


def start(root: Path, engine: str, *rows: str, **more: str) -> subprocess.Popen[str]:
    """Start a coordinator; it prints a line a stage, and exits with an error line as `rvb` does."""
    command = [sys.executable, __file__, engine, *rows]
    return subprocess.Popen(
        command, cwd=root, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a coordinator; return its exit status and what it printed."""
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


def begun(root: Path) -> list[tuple[str, str, int]]:
    """Return row, stage and process of each stage that began."""
    path = root.parent / "begun"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(row, stage, int(process)) for row, stage, process in lines]


def results(root: Path) -> dict[str, bytes]:
    """Return locks and results, by path."""
    found = [*(root / "pipelines").rglob("dvc.lock"), *(root / "work/tiny").rglob("*")]
    return {str(p.relative_to(root)): p.read_bytes() for p in found if p.is_file() and "times" not in p.parts}


def _coordinate(engine: str, *rows: str) -> None:
    from benchmark.pipeline import dvc, machines, ray, repro, slurm

    chosen = [SimpleNamespace(name=row) for row in rows]
    repro.chosen_rows = lambda *_: (chosen, [Path(BOARD)])  # type: ignore[assignment]
    repro.prepare = lambda track, _, report: dvc.run(["repro", DATA], "data", report)
    repro.close = lambda track, boards, report: dvc.run(["repro", *map(str, boards)], "board", report)
    machines.device_of = lambda _: os.environ.get("TOY_DEVICE", "cpu")  # type: ignore[assignment]
    if wanted := os.environ.get("TOY_TORCH"):
        own = ray.versions()
        ray.versions = lambda: {**own, "torch": wanted}  # in the coordinator alone
    if engine == "ray":
        ray.repro("tiny", "", 2, print)
    else:
        slurm.repro("tiny", print)


if __name__ == "__main__":
    from benchmark.runtime import errors

    errors.run(lambda: _coordinate(*sys.argv[1:]))
