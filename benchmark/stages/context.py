"""What every stage of one row shares: its names, its folders, its scratch key, its clock."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark import code, files, submissions, tracks
from benchmark.errors import BenchmarkError, explain, near_miss
from benchmark.recipes import misfit, too_far
from benchmark.records import ADAPTIVE, AttackSpec, Engine, Frozen, Submission, Track, VariantOnTrack

WORK = Path("work")
PARAMS = Path("params.yaml")
PUBLISHED = Path("leaderboard/results")  # records and studies that git keeps


class TrainRun(Frozen):
    """`params.yaml`, train: Fabric's accelerator and precision, and the seed."""

    seed: int = 0
    device: str = "cpu"
    precision: str = "32-true"


class EvaluateRun(Frozen):
    """`params.yaml`, evaluate: the device, and the engine that runs AutoAttack."""

    device: str = "cpu"
    engine: Engine = "fast"


class RunSettings(Frozen):
    """`params.yaml`: how this machine runs the pipeline."""

    train: TrainRun = TrainRun()
    evaluate: EvaluateRun = EvaluateRun()


@dataclass(frozen=True)
class Entry:
    """One row of one track."""

    track: Track
    submission: Submission
    variant: str
    settings: VariantOnTrack

    @property
    def row(self) -> str:
        return f"{self.submission.name}-{self.variant}"

    @property
    def folder(self) -> Path:
        return WORK / self.track.name / self.row

    @property
    def data(self) -> Path:
        return WORK / self.track.name / "data"

    @property
    def method(self) -> Path:
        return submissions.FOLDER / self.submission.name / "method.py"

    @property
    def suites(self) -> dict[str, tuple[AttackSpec, ...]]:
        """The suites that count for this row, in order: the track's, then the attacks brought against it."""
        return {**self.track.suites, **({ADAPTIVE: self.settings.adaptive} if self.settings.adaptive else {})}

    def stages(self) -> list[str]:
        """The stages that this row goes through, in order."""
        attacks = [f"attack-{suite}" for suite in self.suites]
        certify = ["certify"] if self.settings.certificate else []
        smooth = ["smooth"] if self.track.smoothing else []
        corrupt = ["corrupt"] if self.track.corruptions else []
        reliability = ["reliability"] if any(threat.eps for threat in self.track.threats) else []
        return ["train", *attacks, *reliability, *certify, *smooth, *corrupt, "collect"]

    def code(self, stage: str) -> list[Path]:
        """The project files that `stage` really imports for this row: those named by its settings and theirs."""
        kind = stage.split("-")[0]
        package = Path("benchmark")
        entries = [package / "stages" / f"{kind}.py"]
        if kind != "collect":
            entries.append(self.method)
        if kind == "train":
            entries.append(package / "training" / f"{self.settings.training.objective}.py")
            attacks = {spec.attack for spec in self.settings.training.attacks}
            attacks |= {"pgd"} if self.settings.training.attack else set()  # the probe for catastrophic overfitting
            entries += [package / "attacks" / f"{attack}.py" for attack in sorted(attacks)]
        if kind == "attack":
            suite = stage.removeprefix("attack-")
            specs = {**self.track.development, **self.suites}[suite]
            own = self.submission.name if suite == ADAPTIVE else ""
            entries += sorted({submissions.attack_file(spec.attack, own) for spec in specs})
        if kind == "certify" and self.settings.certificate:
            entries.append(package / "certificates" / f"{self.settings.certificate.name}.py")
        return code.closure(*entries)


def study_folder(track: str, study: str) -> Path:
    """Where the results of `<submission>-<study>` stand."""
    return WORK / track / "studies" / study


def entry(track: str, submission: str, variant: str) -> Entry:
    """The row of this name; a BenchmarkError with the near miss for an unknown track, submission or variant."""
    loaded = submissions.load(submission)
    rules = tracks.load(track)
    settings = submissions.settings(loaded, variant, track)
    place = f"submissions/{submission}/submission.yaml: variant {variant} on {track}"
    taken = {spec.id: suite for suite, specs in rules.suites.items() for spec in specs}
    for spec in settings.adaptive:
        if spec.id in taken:
            raise BenchmarkError(
                f"{place}: the adaptive attack {spec.id} has the id of one in the track's suite {taken[spec.id]}; "
                "give it a `name`"
            )
    wrong = misfit(settings.training, rules.data.shape)
    wrong = wrong or next((w for attack in settings.adaptive if (w := too_far(attack, rules.data.shape))), None)
    if wrong:
        raise BenchmarkError(f"{place}: {wrong}")
    return Entry(rules, loaded, variant, settings)


def entry_of_row(track: str, row: str) -> Entry:
    """The same, of `<submission>-<variant>`."""
    submission, _, variant = row.partition("-")
    if not variant:
        known = [f"{s.name}-{v}" for s, v in submissions.rows(track)]
        raise BenchmarkError(f"{row!r} names no row: use <submission>-<variant>{near_miss(row, known)}")
    return entry(track, submission, variant)


def run_settings() -> RunSettings:
    """`params.yaml`; a BenchmarkError for an unknown key or a bad value."""
    try:
        return RunSettings.model_validate(tracks.read_yaml(PARAMS) if PARAMS.exists() else {})
    except ValidationError as error:
        raise explain(error, RunSettings, str(PARAMS)) from None


def environment() -> dict[str, str]:
    """Versions that a result can depend on. No host name, no date."""
    packages = ("torch", "torchvision", "timm", "pyautoattack", "foolbox", "numpy", "scipy", "robust-vit-bench")
    found = {name: version(name) for name in packages}
    return {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine(), **found}


class Clock:
    """Seconds that a stage took, over all the runs it needed; kept in its scratch folder until it is done.

    Written beside the results and never into them, since no two runs take the same time.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "seconds.json"
        self._before: dict[str, float] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._wall, self._process = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        wall, process = time.perf_counter() - self._wall, time.process_time() - self._process
        return {
            "wall_seconds": round(self._before.get("wall_seconds", 0.0) + wall, 2),
            "process_seconds": round(self._before.get("process_seconds", 0.0) + process, 2),
        }

    def lap(self) -> None:
        """Keeps the time so far in case this process is killed."""
        files.write_json(self._path, self.seconds())


def evaluation_inputs(row: Entry, stage: str, rules: Any) -> dict[str, Any]:
    """Everything that an evaluation stage's result depends on: the key of its partial work. `rules` are its own."""
    return {
        "rules": rules,
        "evaluation": row.track.evaluation.model_dump(),
        "run": run_settings().evaluate.model_dump(),
        "data": files.read_json(row.data / "data.json"),
        "weights": files.sha256_file(row.folder / "train" / "model.safetensors"),
        "code": files.sha256_files(row.code(stage)),
        "torch": version("torch"),
    }


def finish(row: Entry, stage: str, out: Path, code_digest: str, clock: Clock) -> None:
    """Completes a stage: its environment and code beside its results, all moved to their place, its times apart."""
    files.write_json(out / "stage.json", {"environment": environment(), "code": code_digest})
    files.put_folder(out, row.folder / stage)
    files.write_json(row.folder / "times" / f"{stage}.json", clock.seconds())
