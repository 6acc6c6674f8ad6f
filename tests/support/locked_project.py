"""A project that looks as DVC leaves it, without any stage run: results of a line each, and locks that fit them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from benchmark.loading import tracks
from benchmark.loading.rows import load_rows
from benchmark.pipeline import generate, inputs
from benchmark.pipeline.state import outputs
from benchmark.runtime import code, files
from benchmark.steps.base import inputs_file


def lock(track: str) -> None:
    """Results of every stage of the track in the working directory, and the locks that DVC would write for them."""
    generate.write()
    inputs.write(track)
    stages = generate.definitions(tracks.load(track), load_rows(track))
    for file, named in stages.items():
        for name, stage in named.items():
            for out in map(Path, () if "always_changed" in stage else outputs(stage)):
                _write_result(out, inputs_file(track, file.parent.name, name))
    for file, named in stages.items():
        content = {
            name: {"cmd": stage["cmd"], "deps": [*map(_entry, stage["deps"])], "outs": [*map(_entry, outputs(stage))]}
            for name, stage in named.items()
            if "always_changed" not in stage
        }
        file.with_name("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": content}))


def _write_result(out: Path, wanted: Path) -> None:
    if out.suffix:
        files.write(out, "{}")
        return
    about = {"code": code.combined(files.read_json(wanted)["code"])} if wanted.exists() else {}
    files.write_json(out / "stage.json", about)
    for name in {"train": ["model.safetensors"], "record": ["record.json"]}.get(out.name, []):
        files.write(out / name, "{}")


def _entry(path: str) -> dict[str, object]:
    """As DVC notes a file or folder."""
    place = Path(path)
    if place.is_file():
        return {"path": path, "md5": hashlib.md5(place.read_bytes()).hexdigest(), "size": place.stat().st_size}
    found = sorted(one for one in place.rglob("*") if one.is_file())
    digest = hashlib.md5(b"".join(one.read_bytes() for one in found)).hexdigest()
    return {"path": path, "md5": f"{digest}.dir", "size": sum(f.stat().st_size for f in found), "nfiles": len(found)}
