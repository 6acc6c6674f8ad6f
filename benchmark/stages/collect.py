"""Stage `collect`: a row's evidence and Record. `python -m benchmark.stages.collect <track> <submission> <variant>`"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save

from benchmark.data.images import evaluation_split
from benchmark.evaluation import evidence
from benchmark.loading.rows import Entry, entry, initial_row
from benchmark.results.attack import AttackResult, ModelFacts
from benchmark.results.certificate import Certificate
from benchmark.results.pictures import Picture
from benchmark.results.record import Record
from benchmark.results.reliability import Reliability
from benchmark.results.training import TrainingResult
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import to_json
from benchmark.specs.threat import AttackSpec


def collect_row(track: str, submission: str, variant: str) -> None:
    """Writes work/<track>/<row>/record: record.json, evidence.parquet, images.safetensors.

    Raises:
        BenchmarkError: the sandwich gate found a contradiction; no record is written.
    """
    row = entry(track, submission, variant)
    # keyed by this process: quick, and an orphan's record may have been made from older evidence, so it is never taken over
    with scratch.locked(f"{track}/{row.row}/collect", {"process": os.getpid()}, row.folder / "record") as folder:
        assert folder is not None
        merged = evidence.merge(_tables(row))
        evidence.check_sandwich(merged, row.row)
        if row.track.smoothing:
            evidence.check_smoothed(merged, row.track.smoothing, row.row)
        out = folder / "out"
        out.mkdir(exist_ok=True)
        pq.write_table(merged, out / "evidence.parquet")
        files.write(out / "images.safetensors", save(_images(row)))
        for picture in _pictures(row):
            files.write(out / "pictures" / picture.file, (row.folder / "pictures" / picture.file).read_bytes())
        record = _record(row, merged, files.sha256_file(out / "evidence.parquet"))
        files.write(out / "record.json", to_json(record))
        files.put_folder(out, row.folder / "record")
    print(
        f"{row.row}: clean {record.clean.value:.3f}, "
        + ", ".join(f"robust {r.threat.label} {r.accuracy.value:.3f}" for r in record.robust)
    )


def _tables(row: Entry) -> dict[str, pa.Table]:
    paths = {stage: row.folder / stage / "verdicts.parquet" for stage in row.stages() if stage.startswith("attack-")}
    if row.settings.certificate:
        paths["certify"] = row.folder / "certify" / "radii.parquet"
    if "reliability" in row.stages():
        paths["reliability"] = row.folder / "reliability" / "probes.parquet"
    if row.track.smoothing:
        paths["smooth"] = row.folder / "smooth" / "smoothed.parquet"
    if row.track.pictures:
        paths["pictures"] = row.folder / "pictures" / "pictures.parquet"
    if row.track.corruptions:
        paths["corrupt"] = row.folder / "corrupt" / "corrupted.parquet"
    missing = [path for path in paths.values() if not path.exists()]
    if missing:
        raise BenchmarkError(f"{missing[0]} is missing; run `rvb repro` to build it")
    return {stage: pq.read_table(path) for stage, path in paths.items()}


def _images(row: Entry) -> dict[str, np.ndarray]:
    """Clean images, and adversarial ones of the track's first suite and of the attacks brought against the row, each
    (n, c, h, w) float32: what a reader needs to replay them.
    """
    images = {"clean": evaluation_split(row.data, row.track.evaluation).floats()}
    for suite in [*row.track.suites][:1] + [suite for suite in row.suites if suite not in row.track.suites]:
        images |= load_file(row.folder / f"attack-{suite}" / "adversarial.safetensors")
    return images


def _record(row: Entry, merged: pa.Table, evidence_digest: str) -> Record:
    suites = [stage for stage in row.stages() if stage.startswith("attack-")]
    facts = [ModelFacts.model_validate(files.read_json(row.folder / stage / "model.json")) for stage in suites]
    if any(fact != facts[0] for fact in facts):
        raise BenchmarkError(
            f"{row.row}: attack stages saw different models; delete its folder under work/, run `rvb repro`"
        )
    certificate = None
    if row.settings.certificate:
        certificate = Certificate.model_validate(files.read_json(row.folder / "certify" / "certificate.json"))
    smoothed = None
    if row.track.smoothing:
        words = files.read_json(row.folder / "smooth" / "smoothing.json")["guarantee"]
        smoothed = evidence.smoothed(merged, row.track, row.track.smoothing, words)
    corrupted = None
    if row.track.corruptions:
        about_corruptions = files.read_json(row.folder / "corrupt" / "corruptions.json")
        corrupted = evidence.corrupted(merged, row.track.corruptions, **about_corruptions)
    reliability = None
    if "reliability" in row.stages():
        reliability = Reliability.model_validate(files.read_json(row.folder / "reliability" / "reliability.json"))
    about = {stage: files.read_json(row.folder / stage / "stage.json") for stage in row.stages() if stage != "collect"}
    environments = {stage: info["environment"] for stage, info in about.items()}
    return Record(
        track=row.track.name,
        track_version=row.track.version,
        submission=row.submission.name,
        variant=row.variant,
        title=row.submission.variants[row.variant].title,
        summary=row.submission.summary,
        paper=row.submission.paper,
        claims=tuple(c for c in row.submission.claims if c.variant in (None, row.variant)),
        trust="re-evaluated" if initial_row(row.settings, row.track.name, row.row).weights else "rebuilt",
        division=facts[0].division,
        division_reasons=facts[0].division_reasons,
        n=merged.num_rows,
        seed=row.track.evaluation.seed,
        clean=evidence.clean(merged),
        attacks=tuple(_attack_results(row, suites, merged)),
        robust=evidence.robust(merged, row.track, row.settings.adaptive),
        certificate=certificate,
        certified=evidence.certified(merged, row.track, certificate.name) if certificate else (),
        smoothed=smoothed,
        corrupted=corrupted,
        reliability=reliability,
        pictures=_pictures(row),
        parameters=facts[0].parameters,
        flops=facts[0].flops,
        training=_training(row),
        settings=row.settings,
        sha256=_digests(row, suites, evidence_digest, about),
        environment=_one_environment(environments),
    )


def _pictures(row: Entry) -> tuple[Picture, ...]:
    if row.track.pictures is None:
        return ()
    return tuple(Picture.model_validate(one) for one in files.read_json(row.folder / "pictures" / "pictures.json"))


def _training(row: Entry) -> TrainingResult | None:
    if row.settings.training is None:
        return None
    return TrainingResult.model_validate(files.read_json(row.folder / "train" / "training.json"))


def _attack_results(row: Entry, suites: list[str], merged: pa.Table) -> list[AttackResult]:
    results = []
    for stage in suites:
        for summary in files.read_json(row.folder / stage / "attacks.json"):
            spec = AttackSpec.model_validate(summary["spec"])
            results.append(
                AttackResult(
                    id=spec.id,
                    suite=stage.removeprefix("attack-"),
                    spec=spec,
                    engine=summary["engine"],
                    accuracy=evidence.after_attack(merged, spec.id),
                    remaining=summary["remaining"],
                    warnings=tuple(summary["warnings"]),
                )
            )
    return results


def _digests(row: Entry, suites: list[str], evidence_digest: str, about: dict[str, Any]) -> dict[str, str]:
    """sha256 of every input and output of the row: data by split, code by stage, weights, evidence, images."""
    data = files.read_json(row.data / "data.json")["sha256"]
    digests = {f"data {split}": digest for split, digest in data.items()}
    digests |= {f"code {stage}": info["code"] for stage, info in about.items()}
    digests["weights"] = files.sha256_file(row.folder / "train" / "model.safetensors")
    if row.settings.weights:
        digests["weights as given"] = files.read_json(row.folder / "train" / "pretrained.json")["sha256"]
    digests["evidence"] = evidence_digest
    for stage in suites:
        path: Path = row.folder / stage / "adversarial.safetensors"
        digests[f"adversarial images {stage.removeprefix('attack-')}"] = files.sha256_file(path)
    return digests


def _one_environment(environments: dict[str, dict[str, str]]) -> dict[str, str]:
    """The environment of all stages; where one differs, its value carries the stage's name."""
    merged: dict[str, str] = {}
    for stage, environment in environments.items():
        for name, value in environment.items():
            if merged.setdefault(name, value) != value:
                merged[f"{name} ({stage})"] = value
    return merged


if __name__ == "__main__":
    errors.run(lambda: collect_row(*sys.argv[1:]))
