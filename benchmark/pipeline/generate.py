"""Writes the DVC stages from the submissions: one small dvc.yaml per (track, submission, variant), committed.

DVC re-reads and re-writes a whole lock after every stage, so one large dvc.yaml costs hours at a thousand submissions
and these files cost minutes. They are JSON, which is YAML. Each stage depends on the project files that it really
imports, on the keys of the parameter files that it reads, and on the outs of the stages before it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmark.loading import submissions, tracks
from benchmark.loading.rows import Entry, entry, starts, study_folder
from benchmark.results.headline import headline_names
from benchmark.runtime import code, files
from benchmark.runtime.paths import PARAMS, WORK
from benchmark.runtime.yaml_file import read_yaml
from benchmark.specs.study import RUN_KEYS
from benchmark.specs.track import ADAPTIVE, Track
from benchmark.studies import grids
from benchmark.studies.ages import ages_file, published_files, published_grids
from benchmark.studies.grids import Grid

FOLDER = Path("pipelines")
DEFAULT_TRACK = "digits"
PYTHON = "python -m benchmark.stages"


def board_file(track: str) -> Path:
    """The dvc.yaml of a track's leaderboard: the root one for the default track."""
    return Path("dvc.yaml") if track == DEFAULT_TRACK else FOLDER / track / "dvc.yaml"


def data_file(track: str) -> Path:
    return FOLDER / track / "_data" / "dvc.yaml"


def row_file(track: str, row: str) -> Path:
    return FOLDER / track / row / "dvc.yaml"


def study_file(track: str, study: str) -> Path:
    """The dvc.yaml of a study, named `<submission>-<study>`; no other stage depends on it."""
    return FOLDER / track / "_studies" / study / "dvc.yaml"


def generate() -> dict[Path, str]:
    """Every generated file and what it should hold. Tracks without a submission have none."""
    generated: dict[Path, str] = {}
    for name in tracks.names():
        rows = [entry(name, submission.name, variant) for submission, variant in submissions.rows(name)]
        if rows or name == DEFAULT_TRACK:
            track = tracks.load(name)
            generated[data_file(name)] = _text(data_file(name), {"data": _data_stage(track)})
            generated[FOLDER / name / "rows.json"] = json.dumps([row.row for row in rows], indent=1) + "\n"
            board = {"study_ages": _ages_stage(track)} if published_files(name) else {}
            board["leaderboard"] = _board_stage(track, rows)
            generated[board_file(name)] = _text(board_file(name), board, board_of=track)
        for row in rows:
            stages = {stage: _row_stage(row, stage) for stage in row.stages()}
            generated[row_file(name, row.row)] = _text(row_file(name, row.row), stages)
    for grid in grids.load_all():
        file = study_file(grid.track.name, grid.id)
        generated[file] = _text(file, {"study": _study_stage(grid)})
    return generated


def stale() -> list[Path]:
    """Generated files that are missing, differ from what the submissions say, or belong to no submission."""
    wanted = generate()
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return sorted(changed) + _orphans(wanted)


def write() -> list[str]:
    """Brings the generated files up to date; what was done, a line a file. Locks of other rows are not touched."""
    wanted, done = generate(), []
    for path in stale():
        if path in wanted:
            files.write(path, wanted[path])
            done.append(f"updated {path}")
        else:
            shutil.rmtree(path.parent)
            done.append(f"removed {path.parent}, which belongs to no submission")
    return done


def _orphans(wanted: dict[Path, str]) -> list[Path]:
    found = [*FOLDER.glob("*/*/dvc.yaml"), *FOLDER.glob("*/_studies/*/dvc.yaml")]
    return sorted(path for path in found if path not in wanted)


def _text(path: Path, stages: dict[str, Any], *, board_of: Track | None = None) -> str:
    up = "/".join([".."] * (len(path.parts) - 1))
    if up:
        stages = {name: {"cmd": stage["cmd"], "wdir": up, **stage} for name, stage in stages.items()}
    content: dict[str, Any] = {"stages": stages}
    if board_of:
        content |= _board_extras(board_of, up)
    return json.dumps(content, indent=1) + "\n"


def _board_extras(track: Track, up: str) -> dict[str, Any]:
    """Top-level metrics and plots: one JSON and one CSV serve `dvc metrics` and `dvc plots` for the whole board."""
    folder = f"{up}/{WORK}/{track.name}" if up else f"{WORK}/{track.name}"
    table = f"{folder}/leaderboard.csv"
    plots = [
        {f"{track.name} {name}": {"x": name, "y": {table: "row"}, "template": "bar_horizontal"}}
        for name in headline_names(track)
    ]
    return {"metrics": [f"{folder}/leaderboard.json"], "plots": plots}


def _data_stage(track: Track) -> dict[str, Any]:
    reader = Path("benchmark/data") / f"{track.data.source}.py"
    deps = _paths(code.closure(Path("benchmark/stages/data.py"), reader))
    return {
        "cmd": f"{PYTHON}.data {track.name}",
        "deps": deps + ([track.data.path] if track.data.path else []),
        "params": [{_track_file(track.name): ["data"]}],
        "outs": [str(WORK / track.name / "data")],
    }


def _row_stage(row: Entry, stage: str) -> dict[str, Any]:
    kind, suite = row.program(stage), stage.partition("-")[2]
    command = f"{PYTHON}.{kind} {row.track.name} {row.submission.name} {row.variant}"
    place = f"variants.{row.variant}.tracks.{row.track.name}"
    track_file, submission_file = _track_file(row.track.name), f"submissions/{row.submission.name}/submission.yaml"
    weights, data = str(row.folder / "train"), str(row.data)
    model = [f"{place}.model"] if row.settings.model else []  # DVC refuses a key that the file lacks
    # only attacks have engines
    evaluation: list[Any] = [{str(PARAMS): ["evaluate" if kind == "attack" else "evaluate.device"]}]
    if kind == "train":
        inputs = [data, *([str(row.source / "train")] if row.source else [])]
        params: list[Any] = [{str(PARAMS): ["train"]}, {submission_file: [*model, f"{place}.training"]}]
    elif kind == "pretrained":
        given = row.settings.weights
        inputs = [given.path] if given and given.path else []
        params = [{track_file: ["data"]}, {submission_file: [*model, f"{place}.weights"]}]
    elif kind == "attack":
        command += f" {suite}"
        inputs = [data, weights]
        rules = ["evaluation"] if suite == ADAPTIVE else ["evaluation", f"suites.{suite}"]
        declared = ["division"] if row.submission.division == "open" else []
        brought = [f"{place}.{ADAPTIVE}"] if suite == ADAPTIVE else []
        params = [*evaluation, {track_file: rules}, {submission_file: [*declared, *model, *brought]}]
    elif kind == "certify":
        inputs = [data, weights]
        params = [*evaluation, {track_file: ["evaluation"]}]
        params.append({submission_file: [*model, f"{place}.certificate"]})
    elif kind == "reliability":
        inputs = [data, weights, *(str(row.folder / s) for s in row.stages() if s.startswith("attack-"))]
        params = [*evaluation, {track_file: ["evaluation", "suites"]}]
        params.append({submission_file: model})
    elif kind == "smooth":
        inputs = [data, weights]
        params = [*evaluation, {track_file: ["evaluation", "smoothing", "certified_radii"]}]
        params.append({submission_file: model})
    elif kind == "corrupt":
        inputs = [data, weights]
        params = [*evaluation, {track_file: ["evaluation", "corruptions"]}]
        params.append({submission_file: model})
    elif kind == "pictures":
        inputs = [data, weights]
        params = [*evaluation, {track_file: ["evaluation", "pictures"]}]
        params.append({submission_file: model})
    else:
        inputs = [data, *(str(row.folder / s) for s in row.stages()[:-1]), track_file, submission_file]
        params = []
    params = [file for file in params if all(file.values())]
    out = "record" if kind == "collect" else stage
    described = {"cmd": command, "deps": _paths(row.code(stage)) + inputs, "outs": [str(row.folder / out)]}
    return described | ({"params": params} if params else {})


def _study_stage(grid: Grid) -> dict[str, Any]:
    """Its outs follow from what is run alone: a title, claim or figure that changes costs no training."""
    asked = [key for key in read_yaml(grid.file) if key in RUN_KEYS]
    submission_file = f"submissions/{grid.submission.name}/submission.yaml"
    place = f"variants.{grid.study.variant}.tracks.{grid.track.name}"
    base = submissions.settings(grid.submission, grid.study.variant, grid.track.name)
    # DVC refuses a key that the file lacks
    keys = [key for key in ("model", "training", "certificate") if getattr(base, key)]
    return {
        "cmd": f"{PYTHON}.study {grid.track.name} {grid.submission.name} {grid.name}",
        "deps": [*_paths(grid.code()), str(WORK / grid.track.name / "data"), *_paths(starts(grid))],
        "params": [
            {str(PARAMS): ["train", "evaluate"]},
            {_track_file(grid.track.name): ["evaluation"]},
            {submission_file: [f"{place}.{key}" for key in keys]},
            {grid.file.as_posix(): asked},
        ],
        "outs": [str(study_folder(grid.track.name, grid.id))],
    }


def _ages_stage(track: Track) -> dict[str, Any]:
    """Its deps are what published studies would be made with today, so that plain `dvc repro` sees them age."""
    known = published_grids(track.name)
    submitted = {Path("submissions") / grid.submission.name / "submission.yaml" for grid in known}
    asked = sorted({*submitted, *(grid.file for grid in known)})
    today = {Path("benchmark/stages/study_ages.py"), *(path for grid in known for path in grid.code())}
    return {
        "cmd": f"{PYTHON}.study_ages {track.name}",
        "deps": [
            *_paths(code.closure(*sorted(today))),
            *_paths([*asked, *published_files(track.name)]),
            _track_file(track.name),
            str(WORK / track.name / "data"),
        ],
        "outs": [str(ages_file(track.name))],
    }


def _board_stage(track: Track, rows: list[Entry]) -> dict[str, Any]:
    folder = WORK / track.name
    published = published_files(track.name)
    deps = [*_paths(code.closure(Path("leaderboard/build.py"))), "leaderboard/templates", "leaderboard/static"]
    claimed = Path("leaderboard/claimed") / track.name
    deps += [claimed.as_posix()] if claimed.is_dir() else []
    deps += [str(FOLDER / track.name / "rows.json"), _track_file(track.name), *(str(r.folder / "record") for r in rows)]
    deps += [*_paths(published), str(ages_file(track.name))] if published else []
    return {
        "cmd": f"python -m leaderboard.build {track.name}",
        "deps": deps,
        "outs": [str(folder / name) for name in ("site", "leaderboard.json", "leaderboard.csv")],
    }


def _track_file(name: str) -> str:
    return str(tracks.FOLDER / f"{name}.yaml")


def _paths(paths: list[Path]) -> list[str]:
    return [path.as_posix() for path in paths]
