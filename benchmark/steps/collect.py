"""Step `collect`: checks a row's evidence for contradictions, and writes its Record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.machine import one_environment
from benchmark.specs.rows import Row, initial_settings
from benchmark.steps.base import Outcome, Step, Work

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class Collect(Step):
    """work/<track>/<row>/record: record.json, per_image.json, evidence.parquet, images.safetensors, and files that
    steps publish.

    It knows no other step: each left its evidence and its fields of the Record. Clean, robust and certified accuracy
    are counted here, from the evidence of all steps.
    """

    @property
    def components(self) -> list[Path]:
        return []

    @property
    def folder(self) -> Path:
        return self.row.folder / "record"

    @property
    def reads(self) -> list[Path]:
        return [self.row.data, *self.earlier]

    @property
    def settings(self) -> dict[str, Any]:
        row, submission = self.row, self.row.submission
        return {
            "track": row.track.rules,
            "submission": submission.model_dump(mode="json", exclude={"variants"}),
            "variant": submission.variants[row.variant].title,
            "settings": row.settings.model_dump(mode="json"),
            "start": initial_settings(row.settings, row.track.name, row.name).model_dump(mode="json"),
        }

    def run(self, work: Work) -> Outcome:
        """Raise BenchmarkError if the sandwich gate finds a contradiction, or steps disagree; no Record is written."""
        import io

        import pyarrow.parquet as pq
        from safetensors.numpy import save

        from benchmark.evaluation import evidence
        from benchmark.records.accuracy import chance_warnings
        from benchmark.records.record import Record
        from benchmark.specs.base import to_json

        row, folders = work.row, work.reads[1:]
        stages = {folder.name: files.read_json(folder / "stage.json") for folder in folders}
        tables = {f.name: pq.read_table(f / "evidence.parquet") for f in folders if (f / "evidence.parquet").exists()}
        merged = evidence.merge(tables, row.submission.division == "open")
        evidence.check_sandwich(merged, row.name)
        parts = {f.name: f / "fields.json" for f in folders if (f / "fields.json").exists()}
        fields = _joined(row, {name: files.read_json(path) for name, path in parts.items()})
        if changed := evidence.unsteady(tables):
            differ = f"the steps' clean passes differ on {changed} of {merged.num_rows} images"
            fields["division_reasons"].append(f"{differ}; clean accuracy counts those that all get right")
        if row.track.smoothing and "smooth" in tables:
            evidence.check_smoothed(merged, row.track.smoothing, row.name)
        written = io.BytesIO()
        pq.write_table(merged, written)
        fields["sha256"] |= {f"data {k}": v for k, v in files.read_json(row.data / "data.json")["sha256"].items()}
        fields["sha256"] |= {f"code {name}": about["code"] for name, about in stages.items()}
        fields["sha256"]["evidence"] = files.sha256_bytes(written.getvalue())
        fields["environment"] = one_environment({name: about["environment"] for name, about in stages.items()})
        own = {name: fields.pop(name) for name in [*fields] if name not in Record.model_fields}
        counted = _counted(row, merged)
        if twice := counted.keys() & fields.keys():
            words = f"a step gives {min(twice)}, which is counted from the evidence of all steps"
            raise BenchmarkError(f"{row.name}: {words}")
        for words in chance_warnings(counted["clean"].count, counted["clean"].n, row.track.data.classes):
            work.say(f"warning: {words}")
        record = Record.model_validate(counted | fields | ({"measured": own} if own else {}))
        beside = {
            path.relative_to(folder / "record").as_posix(): path.read_bytes()
            for folder in folders
            for path in sorted((folder / "record").rglob("*"))
            if path.is_file()
        }
        return Outcome(
            files={
                "record.json": to_json(record).encode(),
                "per_image.json": to_json(evidence.per_image(merged, record)).encode(),
                "evidence.parquet": written.getvalue(),
                "images.safetensors": save(_images(row, folders)),
                **beside,
            },
            summary=f"clean {record.clean.value:.3f}, "
            + ", ".join(f"robust {r.threat.label} {r.accuracy.value:.3f}" for r in record.robust),
        )


def _counted(row: Row, merged: pa.Table) -> dict[str, Any]:
    """Return the Record's fields about the row itself, and the accuracies counted from all evidence."""
    from benchmark.evaluation import evidence

    started = initial_settings(row.settings, row.track.name, row.name)
    certificate = row.settings.certificate
    return {
        "track": row.track.name,
        "track_version": row.track.version,
        "submission": row.submission.name,
        "variant": row.variant,
        "title": row.submission.variants[row.variant].title,
        "summary": row.submission.summary,
        "paper": row.submission.paper,
        "claims": tuple(claim for claim in row.submission.claims if claim.variant in (None, row.variant)),
        "trust": "re-evaluated" if started.weights else "rebuilt",
        "n": merged.num_rows,
        "seed": row.track.evaluation.seed,
        "clean": evidence.clean(merged),
        "robust": evidence.robust(merged, row.track, row.settings.adaptive),
        "certified": evidence.certified(merged, row.track, certificate.name) if certificate else (),
        "settings": row.settings,
    }


def _joined(row: Row, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the steps' fields of the Record, joined.

    Lists of objects are concatenated, objects merged; anything else must agree. Two fields are exceptions: each
    reason for the open division is listed once, and `wall` keeps the parts of the sandbox that all steps had. Raise a
    BenchmarkError where two steps give different values.
    """
    joined: dict[str, Any] = {}
    for stage, part in parts.items():
        for name, value in part.items():
            before = joined.get(name)
            if name not in joined or before == value:
                joined[name] = value
            elif isinstance(value, dict) and isinstance(before, dict) and value | before == before | value:
                joined[name] = before | value
            elif _objects(value) and _objects(before):
                joined[name] = before + value
            elif name == "wall":  # machines may lack parts of the sandbox
                joined[name] = ", ".join(p for p in str(before).split(", ") if p in str(value).split(", ")) or "none"
            elif name == "division_reasons" and row.submission.division == "open":  # each suite measures them
                joined[name] = list(dict.fromkeys(before + value))
            else:
                raise BenchmarkError(
                    f"{row.name}: {stage} and a step before it saw different models ({name}); delete the row's folder "
                    "under work/, run `rvb repro`"
                )
    return joined


def _objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _images(row: Row, folders: Sequence[Path]) -> dict[str, np.ndarray]:
    """Return clean images and those that the steps keep, (n, c, h, w) float32 each, from which a reader can replay them."""
    from safetensors.numpy import load_file

    from benchmark.data.images import evaluation_split

    images = {"clean": evaluation_split(row.data, row.track.evaluation).floats()}
    for path in (folder / "images.safetensors" for folder in folders):
        images |= load_file(path) if path.exists() else {}
    return images


step = Collect
