"""Do the two AutoAttack engines reach the same verdicts? Twelve models, two norms, three seeds, per image.

    python measurements/engine_verdicts.py [name ...] [--models N] [--images N] [--seeds N] [--jobs N]

Both engines through `auto_attack`, on the models of engine_models.py and the images of digits. What an
engine returns is put into the ball and judged here once more, and that verdict counts. Each finished run is kept in
work/benchmarks/engines/verdicts with what it depends on (images, weights, code), so that a killed or later call computes only
what is missing or stale. One thread a process. Prints the tables, every disagreement and the criteria.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "measurements")]

from engine_models import KEPT, chosen, evaluation_images, trained

from benchmark.attacks.ball import into_ball
from benchmark.attacks.prediction import predict
from benchmark.evaluation.auto_attack import auto_attack
from benchmark.runtime import code, errors, files
from benchmark.runtime.torch_setup import set_up
from benchmark.specs.threat import ThreatModel

THREATS = (ThreatModel(norm="Linf", eps=0.15), ThreatModel(norm="L2", eps=0.5))
ENGINES = ("reference", "fast")
ATTACKS = Path("benchmark/attacks")
# files of the fast engine alone: a change there leaves the reference's runs as they are
FAST_ALONE = {path.relative_to(ROOT) for path in (ROOT / ATTACKS / "engine").glob("*.py")}


@dataclass(frozen=True)
class Run:
    """One engine on one model; `eps` in pixels."""

    model: str
    norm: str
    eps: float
    engine: str
    seed: int
    images: int

    @property
    def path(self) -> Path:
        name = f"{self.model}-{self.norm}-{self.eps:g}-{self.engine}-{self.seed}-{self.images}"
        return KEPT / "verdicts" / f"{name}.json"

    def inputs(self) -> dict[str, Any]:
        """All that the result depends on."""
        weights = files.sha256_file(KEPT / f"{self.model}.safetensors")
        packages = {name: version(name) for name in ("torch", "timm", "pyautoattack")}
        return {**asdict(self), **packages, "weights": weights, "code": engine_digest(self.engine)}

    def kept(self) -> dict[str, Any] | None:
        """What an earlier call found, if it still holds."""
        found = files.read_json(self.path) if self.path.exists() else None
        return found if found and found["inputs"] == self.inputs() else None


@cache
def engine_digest(engine: str) -> str:
    paths = set(code.closure(ATTACKS / "__init__.py", ATTACKS / "autoattack.py"))
    chosen = sorted(paths - FAST_ALONE if engine == "reference" else paths)
    return files.sha256_bytes("".join(f"{path.as_posix()} {files.sha256_file(path)}\n" for path in chosen).encode())


def compute(run: Run) -> str:
    """Runs it and keeps it; what happened, in a line."""
    set_up("cpu")
    model, (images, labels) = trained(run.model), evaluation_images(run.images)
    threat = ThreatModel(norm=run.norm, eps=run.eps)  # type: ignore[arg-type]
    found = auto_attack(model, images, labels, norm=run.norm, eps=run.eps, engine=run.engine, seed=run.seed)
    adversarial = into_ball(found.adversarial, images, threat, run.path.stem)
    robust = predict(model, adversarial, labels, len(labels)).correct
    result = {
        "inputs": run.inputs(),
        "clean": int(predict(model, images, labels, len(labels)).correct.sum()),
        "robust": robust.int().tolist(),
        "disputed": (robust != found.robust.cpu()).nonzero()[:, 0].tolist(),
        "remaining": found.remaining,
        "warnings": list(found.warnings),
    }
    files.write_json(run.path, result)
    return f"{run.path.stem}: {int(robust.sum())} of {len(labels)} robust"


def everything(runs: list[Run], jobs: int) -> dict[Run, dict[str, Any]]:
    """Each run's result; computes what is not kept, `jobs` at a time, models trained first."""
    for name in dict.fromkeys(run.model for run in runs):
        trained(name)
    todo = [run for run in runs if run.kept() is None]
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        for count, done in enumerate(as_completed([pool.submit(compute, run) for run in todo]), 1):
            print(f"{count} of {len(todo)}: {done.result()}", file=sys.stderr, flush=True)
    return {run: files.read_json(run.path) for run in runs}


@dataclass
class Compared:
    """The runs of one model and threat model: verdicts by engine and seed, each a list of 0 and 1."""

    model: str
    threat: ThreatModel
    clean: int
    verdicts: dict[str, list[list[int]]]

    def counts(self, engine: str) -> list[int]:
        return [sum(verdict) for verdict in self.verdicts[engine]]

    def differing(self) -> list[tuple[int, int, str]]:
        """(seed, image, engine under which it stands) wherever the engines disagree with the same seed."""
        pairs = zip(self.verdicts["reference"], self.verdicts["fast"], strict=True)
        return [
            (seed, image, "fast" if fast else "reference")
            for seed, (ours, theirs) in enumerate(pairs)
            for image, (reference, fast) in enumerate(zip(ours, theirs, strict=True))
            if reference != fast
        ]

    def agreeing(self) -> int:
        pairs = zip(self.verdicts["reference"], self.verdicts["fast"], strict=True)
        return sum(sum(map(int.__eq__, one, other)) for one, other in pairs)

    def itself(self) -> list[int]:
        """On how many images the reference disagrees with itself, for each pair of seeds."""
        pairs = combinations(self.verdicts["reference"], 2)
        return [sum(a != b for a, b in zip(one, other, strict=True)) for one, other in pairs]

    def excess(self) -> int:
        """The fast engine's most robust seed, in images above the reference's."""
        return max(self.counts("fast")) - max(self.counts("reference"))


def table(compared: list[Compared], seeds: int, images: int) -> None:
    def agreement(differing: float, pairs: int) -> str:
        return f"{100 - 100 * differing / (images * pairs):.2f}" if pairs else ""

    print("| model | threat | clean | robust by seed: reference | fast | most robust seed, fast less reference |", end="")
    print(" agreement %: fast with reference | reference with itself |")
    print("|---|---|---|---|---|---|---|---|")
    for c in compared:
        counts = (" ".join(map(str, c.counts(engine))) for engine in ENGINES)
        alike = agreement(len(c.differing()), seeds), agreement(sum(c.itself()), len(c.itself()))
        print(f"| {c.model} | {c.threat.label} | {c.clean} | {' | '.join(counts)} | {c.excess():+d} | ", end="")
        print(f"{' | '.join(alike)} |")
    print("\n| disagreement: model | threat | seed | image | stands under |\n|---|---|---|---|---|")
    for c in compared:
        for seed, image, engine in c.differing():
            print(f"| {c.model} | {c.threat.label} | {seed} | {image} | {engine} |")


def criteria(compared: list[Compared], seeds: int, images: int) -> list[tuple[bool, str]]:
    """(met, words) each; the comparisons are of whole numbers, without rounding."""
    models, runs = len({c.model for c in compared}), len(compared) * seeds
    total = {engine: sum(sum(c.counts(engine)) for c in compared) for engine in ENGINES}
    worst = max(compared, key=Compared.excess)
    differing = sum(len(c.differing()) for c in compared)
    agreeing = sum(c.agreeing() for c in compared)
    own, pairs = sum(sum(c.itself()) for c in compared), sum(len(c.itself()) for c in compared)
    itself = f"{100 - 100 * own / (pairs * images):.2f}%" if pairs else "not measured"
    mean = {engine: f"{100 * count / (runs * images):.3f}%" for engine, count in total.items()}
    return [
        (
            total["fast"] <= total["reference"],
            f"mean robust accuracy of the fast engine {mean['fast']}, of the reference {mean['reference']}",
        ),
        (
            100 * worst.excess() <= images,
            f"most robust seed above the reference's by one image in 100 at most: {worst.excess():+d} of {images}, "
            f"at {worst.model} {worst.threat.label}",
        ),
        (
            100 * agreeing >= 99 * runs * images,
            f"mean agreement 99% or more: {100 * agreeing / (runs * images):.2f}% (the reference with itself: {itself})",
        ),
        (
            agreeing + differing == runs * images,
            f"every disagreement is listed: {differing}, beside {agreeing} agreements in {runs * images} verdicts",
        ),
        (
            models >= 8 and seeds >= 3 and images >= 100 and {c.threat for c in compared} == set(THREATS),
            f"8 models, 3 seeds and 100 images or more: {models}, {seeds} and {images}",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Verdicts of the fast engine against the reference's.")
    parser.add_argument("names", nargs="*", help="models (default: all)")
    parser.add_argument("--models", type=int, help="at most so many of them")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    asked = parser.parse_args()
    set_up("cpu")
    names, images = chosen(asked.names, asked.models), len(evaluation_images(asked.images)[1])

    def run(model: str, threat: ThreatModel, engine: str, seed: int) -> Run:
        return Run(model, threat.norm, threat.eps, engine, seed, images)

    seeds = range(asked.seeds)
    results = everything([run(m, t, e, s) for m in names for t in THREATS for s in seeds for e in ENGINES], asked.jobs)
    compared = []
    for model in names:
        for threat in THREATS:
            verdicts = {e: [results[run(model, threat, e, s)]["robust"] for s in seeds] for e in ENGINES}
            compared.append(Compared(model, threat, results[run(model, threat, "reference", 0)]["clean"], verdicts))
    print(f"{platform.machine()}, {os.cpu_count()} cores, one thread; {len(names)} models, {images} images, ", end="")
    print(f"seeds 0 to {asked.seeds - 1}; torch {version('torch')}, pyautoattack {version('pyautoattack')}\n")
    for met, words in criteria(compared, asked.seeds, images):
        print(f"- {'met' if met else '**not met**'}: {words}")
    for run_, found in results.items():
        if found["disputed"]:
            print(f"- **disputed**: {run_.path.stem}: the engine's own verdict differs at images {found['disputed']}")
    print()
    table(compared, asked.seeds, images)
    warned = sorted({f"{r.model} {r.norm} {r.engine}: {w}" for r, found in results.items() for w in found["warnings"]})
    print("".join(f"\n- warning: {line}" for line in warned))


if __name__ == "__main__":
    errors.run(main)
