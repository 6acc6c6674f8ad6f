"""Part `rows` of gpu.py: three rows of cifar10_jpeg from training to their Records, on the GPU and in the sandbox.

    python measurements/gpu_rows.py [--device cpu] [--sandbox weak] [row ...]

It works in a copy of the project with short recipes (one epoch, 60 images, one AutoAttack, one PGD), so its numbers are no
row's: they show that each stage runs, and what it costs. The rows run side by side. The images have to lie in
data/cifar10-jpeg.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from gpu_common import left, row

from benchmark.runtime import errors
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.torch_setup import set_up

ROOT = Path(__file__).resolve().parent.parent
TRACK = "cifar10_jpeg"
ROWS = ("Debenedetti2022XCiT-adversarial", "Havens2024LoFAST-wide_margin", "Hu2024SpecFormer-spec")
PARAMS = """\
arithmetic: native
wall: {sandbox}
train: {{seed: 0, device: {device}, precision: {precision}, compile: {captured}}}
evaluate: {{device: {device}, engine: fast}}
"""
SHORT = {
    "evaluation": {"images": 60, "attacked": 40, "seed": 0, "batch_size": 20},
    "suites": {
        "standard": [{"attack": "autoattack", "norm": "Linf", "eps": 0.0314}],
        "papers": [{"attack": "pgd", "norm": "L2", "eps": 0.1412, "parameters": {"steps": 10, "step_size": 0.03}}],
    },
    "smoothing": {"sigma": 0.12, "n0": 20, "n": 100, "looks": 2, "alpha": 0.05, "seed": 0},
    "corruptions": None,
    "pictures": None,
}


def copy(root: Path, rows: Sequence[str], device: str, sandbox: str) -> None:
    """A copy of the project in which the rows have short recipes."""
    left_out = {"benchmark": "", "submissions": "studies", "autoattack": "", "leaderboard": "results"}
    for name, folder in left_out.items():
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", folder))
    gpu = device != "cpu"
    precision, captured = ("bf16-mixed", "true") if gpu else ("32-true", "false")
    params = PARAMS.format(device=device, sandbox=sandbox, precision=precision, captured=captured)
    (root / "params.yaml").write_text(params)
    path = root / "benchmark" / "tracks" / f"{TRACK}.yaml"
    track = yaml.safe_load(path.read_text()) | SHORT
    path.write_text(yaml.safe_dump({name: part for name, part in track.items() if part is not None}, sort_keys=False))
    for name in {one.partition("-")[0] for one in rows}:
        file = root / "submissions" / name / "submission.yaml"
        said = yaml.safe_load(file.read_text())
        for variant in said["variants"].values():
            recipe = variant["tracks"].get(TRACK, {}).get("training")
            if recipe and not isinstance(recipe, str):
                recipe |= {"epochs": 1, "warmup_epochs": 0, "rate_warmup_epochs": 0}
                recipe.pop("closing", None)
        file.write_text(yaml.safe_dump(said, sort_keys=False))
    (root / "data").mkdir()
    (root / "data" / "cifar10-jpeg").symlink_to((ROOT / "data" / "cifar10-jpeg").resolve())


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python <arguments>` in the copy.

    Raises:
        BenchmarkError: no time is left.
    """
    path = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=max(left(), 1), check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError("no time was left") from None


def stages_of(root: Path, name: str) -> dict[str, list[str]]:
    """The stages of a row in this copy, in order, with their steps."""
    listing = (
        "import json; from benchmark import protocol; from benchmark.specs.rows import load_row; "
        f"stages = protocol.stages(load_row('{TRACK}', '{name}')); "
        "print(json.dumps({stage: [one.name for one in steps] for stage, steps in stages.items()}))"
    )
    found = run(root, "-c", listing)
    if found.returncode:
        raise BenchmarkError(f"{name}: {found.stderr.strip().splitlines()[-1]}")
    return json.loads(found.stdout)


def build(root: Path, name: str) -> bool:
    """Run the row's stages; whether all did. A row of the report a step, and one for a stage that did not end well."""
    for stage, steps in stages_of(root, name).items():
        started = time.perf_counter()
        try:
            ended = run(root, "-m", "benchmark.protocol", stage, TRACK, name)
            problem = "" if not ended.returncode else (ended.stderr or ended.stdout).strip().splitlines()[-1][:200]
        except BenchmarkError as error:
            problem = str(error)
        for step in steps:
            costs = root / "work" / TRACK / name / "times" / f"{step}.json"
            if costs.exists():
                cost = json.loads(costs.read_text())
                memory = cost.get("device_memory")
                row(
                    "steps", row=name, step=step, outcome="ran", seconds=cost["wall_seconds"],
                    cores=cost.get("core_seconds"), GPU=cost.get("device_seconds"),
                    MiB=round(memory / 2**20) if memory is not None else None,
                )  # fmt: skip
        if problem:
            row("steps", row=name, step=stage, outcome=problem, seconds=round(time.perf_counter() - started, 1))
            return False
    return True


def result(root: Path, name: str) -> None:
    record = json.loads((root / "work" / TRACK / name / "record" / "record.json").read_text())
    training = record["training"]
    row(
        "records", row=name, sandbox=record["wall"], device=training["device"], precision=training["precision"],
        captured=training.get("compile", False), clean=round(record["clean"]["count"] / record["clean"]["n"], 3),
        robust=round(record["attacks"][0]["accuracy"]["count"] / record["attacks"][0]["accuracy"]["n"], 3),
        certificate=(record.get("certificate") or {}).get("name"),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", nargs="*", default=ROWS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sandbox", default="full")
    given = parser.parse_args()
    if not (ROOT / "data" / "cifar10-jpeg").exists():
        raise BenchmarkError("data/cifar10-jpeg is missing; put train.parquet and test.parquet of CIFAR-10 there")
    set_up(given.device)  # which says what is wrong
    with tempfile.TemporaryDirectory(prefix="gpu-rows-") as folder:
        root = Path(folder) / "project"
        copy(root, given.row, given.device, given.sandbox)
        for arguments in (("benchmark.pipeline.inputs", TRACK), ("benchmark.protocol", "data", TRACK)):
            ended = run(root, "-m", *arguments)
            if ended.returncode:
                sys.exit(re.sub(r"\s+", " ", ended.stderr.strip().splitlines()[-1]))
        with ThreadPoolExecutor(len(given.row)) as pool:
            whole = [*pool.map(lambda name: build(root, name), given.row)]
        for name, built in zip(given.row, whole, strict=True):
            if built:
                result(root, name)
    if not all(whole):
        sys.exit(1)


if __name__ == "__main__":
    errors.run(main)
