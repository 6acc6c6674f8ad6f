"""How DVC's cost grows with the number of submissions: no-op, one submission's own pipeline, one changed.

    python measurements/pipeline_scale.py 10 50 200

Copies the project aside, fills it with synthetic submissions of the real stage layout (their outs are placeholders that
`dvc commit` records), and times commands as whole processes: median of five runs, the variants of one size in turn.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5


def outputs(stage: dict) -> list[str]:
    """Paths of its outputs, of which some come with flags."""
    return [next(iter(out)) if isinstance(out, dict) else out for out in stage["outs"]]


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [10, 50, 200]
    print(f"{platform.machine()}, {os.cpu_count()} cores, median of {RUNS} runs, seconds")
    print(
        "| submissions | `rvb repro`, no-op | `dvc repro`, no-op | one row's `dvc repro -s`, no-op | `rvb pipeline` |"
    )
    print("|---|---|---|---|---|")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            make(root, size)
            run(root, "dvc", "commit", "-f", "-q")
            row = "pipelines/digits/Synthetic0000Net-small/dvc.yaml"
            commands = (
                ["benchmark.commands.main", "repro"],
                ["dvc", "repro"],
                ["dvc", "--wait-for-lock", "repro", "-s", row],
                ["benchmark.commands.main", "pipeline"],
            )
            samples = [[timed(root, command) for command in commands] for _ in range(RUNS + 1)]
            medians = [statistics.median(column) for column in zip(*samples[1:], strict=True)]
            print(f"| {size} | " + " | ".join(f"{m:.2f}" for m in medians) + " |", flush=True)


def make(root: Path, size: int) -> None:
    for name in ("benchmark", "leaderboard"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copytree(ROOT / "benchmark" / "results", root / "benchmark" / "results")
    for name in ("params.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    (root / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", root / ".dvc" / "config")
    source = ROOT / "submissions" / "Dosovitskiy2021ViT"
    submission = yaml.safe_load((source / "submission.yaml").read_text())
    own = submission["variants"]["standard"]
    submission["variants"] = {"small": {**own, "tracks": {"digits": own["tracks"]["digits"]}}}
    for index in range(size):
        name = f"Synthetic{index:04}Net"
        folder = root / "submissions" / name
        folder.mkdir(parents=True)
        shutil.copy(source / "method.py", folder)
        (folder / "submission.yaml").write_text(yaml.safe_dump({**submission, "name": name}, sort_keys=False))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    run(root, "benchmark.commands.main", "pipeline")
    run(root, "benchmark.pipeline.inputs", "digits")
    for path in [*root.glob("pipelines/digits/**/dvc.yaml"), root / "dvc.yaml"]:
        for name, stage in yaml.safe_load(path.read_text())["stages"].items():
            for out in outputs(stage) if name != "inputs" else ():
                place(root / out)


def place(out: Path) -> None:
    """A placeholder for an out: a small folder, or a file where the name has an ending."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix in (".json", ".csv"):
        out.write_text("{}\n")
    else:
        out.mkdir(exist_ok=True)
        (out / "model.safetensors").write_text(f"{out}\n")  # which later stages read of training


def run(root: Path, *arguments: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-m", *arguments], cwd=root, env=environment, check=True, capture_output=True)


def timed(root: Path, command: list[str]) -> float:
    started = time.perf_counter()
    run(root, *command)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
