"""What DVC would run now and why, from its locks and what stands in work/. Only looks: no DVC, no torch, no file written.

`dvc status` needs the inputs files written anew; here what they would hold is compared with what the locks hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.loading import tracks
from benchmark.loading.rows import Row, load_rows
from benchmark.pipeline import generate, inputs
from benchmark.pipeline.locks import read_stages
from benchmark.runtime import code, files
from benchmark.runtime.paths import PUBLISHED
from benchmark.stages import catalogue

Entry = dict[str, Any]  # of a lock: path, md5, size, and of a folder nfiles
NEVER, GONE, CHANGED = "never run", "results not here", "results changed by hand"
Elsewhere = Callable[
    [Sequence[str]], dict[str, dict[str, str]]
]  # by digest of a folder that is found: its files' digests
NO_RESULTS = ("times.js",)  # .dvcignore


class State:
    """The stages of a track, named as DVC does, `<dvc.yaml>:<name>`.

    Folders are compared by the number and size of their files, so that nothing large is read.
    """

    def __init__(self, track: str, elsewhere: Elsewhere | None = None) -> None:
        """Reads the track's stages, and those of tracks from whose weights its rows start.

        Args:
            elsewhere: where it is given, results need not stand in work/: it finds those that the locks speak of.

        Raises:
            BenchmarkError: a submission, study or file of code that does not load.
        """
        self._stages: dict[str, dict[str, Any]] = {}
        self._writers: dict[str, str] = {}
        self._today: dict[str, bytes] = {}  # by file that a run writes before it begins
        self._why: dict[str, str] = {}
        self._locks: dict[str, dict[str, Any]] = {}
        self._listings: dict[str, dict[str, str]] | None = None
        waiting, seen = [track], set[str]()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += self._add(name)
        if elsewhere:
            locks = [self._lock(stage) for stage in self._stages]
            self._listings = elsewhere(
                [out["md5"] for lock in locks for out in lock.get("outs", []) if "nfiles" in out]
            )

    def _add(self, track: str) -> list[str]:
        rows = load_rows(track)
        self._today |= {path.as_posix(): files.to_json(content) for path, content in inputs.contents(track).items()}
        self._today |= {path.as_posix(): text.encode() for path, text in generate.board_rows(track, rows).items()}
        for file, stages in generate.definitions(tracks.load(track), rows).items():
            for name, stage in stages.items():
                if not stage.get("always_changed"):
                    self._stages[f"{file}:{name}"] = stage
                    self._writers |= {out: f"{file}:{name}" for out in outputs(stage)}
        starts = [row.settings.training.init_from for row in rows if row.settings.training]
        return [start.track for start in starts if start and start.track]

    @property
    def stages(self) -> list[str]:
        return [*self._stages]

    def why(self, stage: str) -> str:
        """Why DVC would run it, in a few words; "" where it would not."""
        if stage not in self._why:
            self._why[stage] = self._reason(stage)
        return self._why[stage]

    def _reason(self, key: str) -> str:
        stage, lock = self._stages[key], self._lock(key)
        if not lock:
            return NEVER
        if self._listings is None and any(not Path(out).exists() for out in outputs(stage)):
            return GONE
        if self._listings is not None and any(
            out["md5"] not in self._listings for out in lock["outs"] if "nfiles" in out
        ):
            return GONE
        deps, outs = ({entry["path"]: entry for entry in lock[kind]} for kind in ("deps", "outs"))
        if lock["cmd"] != stage["cmd"] or {*deps} != {*stage["deps"]} or {*outs} != {*outputs(stage)}:
            return "reads or writes other files"
        for dep in stage["deps"]:
            if dep in self._today and not _is(self._today[dep], deps[dep]):
                return self._difference(dep, deps[dep], Path(outputs(stage)[0]))
        writers = {self._writers[home] for dep in deps for home in self._homes(dep)}
        if stale := sorted(one.rpartition(":")[2] for one in writers if self.why(one)):
            return f"after {', '.join(dict.fromkeys(stale))}"
        for dep, entry in deps.items():
            if dep not in self._today and not self._same(dep, entry):
                return f"{dep} {'changed' if Path(dep).exists() else 'is missing'}"
        if self._listings is not None or all(_same_size(Path(out), entry) for out, entry in outs.items()):
            return ""
        return CHANGED

    def _homes(self, dep: str) -> Iterator[str]:
        """`dep` itself or the folder that it stands in, where a stage writes it."""
        yield from (home for home in (dep, Path(dep).parent.as_posix()) if home in self._writers)

    def _same(self, dep: str, entry: Entry) -> bool:
        """Whether `dep`, which no stale stage writes, is what the lock says."""
        if dep in self._writers:
            written = self._lock(self._writers[dep])["outs"]
            return any(one["path"] == dep and one.get("md5") == entry.get("md5") for one in written)
        if self._listings is not None and (home := next(self._homes(dep), "")):
            return self._listed(home, dep) == entry.get("md5")
        path = Path(dep)
        return _same_size(path, entry) and (path.is_dir() or _is(path.read_bytes(), entry))

    def _listed(self, home: str, dep: str) -> str:
        """The digest of a file in a folder that a stage wrote, wherever it is; "" where it is not in it."""
        written = self._lock(self._writers[home])["outs"]
        digest = next((one.get("md5", "") for one in written if one["path"] == home), "")
        return (self._listings or {}).get(digest, {}).get(Path(dep).relative_to(home).as_posix(), "")

    def _lock(self, key: str) -> dict[str, Any]:
        """What DVC noted when it last ran the stage; nothing where it did not, or where a kill cut the file short."""
        file, _, name = key.rpartition(":")
        if file not in self._locks:
            self._locks[file] = read_stages(Path(file).with_name("dvc.lock")) or {}
        found = self._locks[file].get(name)
        return found if isinstance(found, dict) and found.keys() >= {"cmd", "deps", "outs"} else {}

    def _difference(self, dep: str, entry: Entry, out: Path) -> str:
        """What of a file that a run writes before it begins is not what the results were made with."""
        now = json.loads(self._today[dep])
        if "code" not in now:
            return f"{dep} changed"
        if Path(dep).exists() and _is(Path(dep).read_bytes(), entry):
            return difference(files.read_json(Path(dep)), now)
        about = out / "stage.json"  # the inputs file is of a later edit already; the results say by which code they are
        if not about.exists():
            return "other code or settings"
        return "other settings" if files.read_json(about)["code"] == code.combined(now["code"]) else "other code"


def outputs(stage: Mapping[str, Any]) -> list[str]:
    """Paths of its outputs, of which some come with flags."""
    return [next(iter(out)) if isinstance(out, dict) else out for out in stage["outs"]]


def row_state(state: State, row: Row) -> str:
    """What `rvb list` says of a row: whether it is built and today's, else why not; whether it is published."""
    stale, stages = stale_stages(state, row), len(catalogue.plan(row))
    own = {name: words for name, words in stale.items() if not words.startswith("after ")} or stale
    if not stale:
        found = "built, today's"
    elif (row.folder / "record" / "record.json").exists():
        first, words = next(iter(own.items()))
        found = f"stale, {first}: {words}" + (f" (and {len(own) - 1} more)" if len(own) > 1 else "")
    else:
        found = f"{stages - len(stale)} of {stages} stages built" if len(stale) < stages else "never built here"
    return found + ("; published" if (PUBLISHED / row.track.name / f"{row.name}.json").exists() else "")


def stale_stages(state: State, row: Row) -> dict[str, str]:
    """Why DVC would run stages of a row, in order."""
    file = generate.row_file(row.track.name, row.name)
    why = {one.name: state.why(f"{file}:{one.name}") for one in catalogue.plan(row)}
    return {name: words for name, words in why.items() if words}


def difference(before: Any, now: Any) -> str:
    """What differs first between two inputs files: a file of code, or a setting with both its values."""
    changed = sorted(file for file in before["code"].keys() | now["code"].keys() if _at(before, file) != _at(now, file))
    if changed:
        return f"code: {changed[0]}" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
    for key in ("arithmetic", "settings"):
        found = list(_changes(before.get(key), now.get(key), key))
        if found:
            return found[0].removeprefix("settings.") + (f" and {len(found) - 1} more" if len(found) > 1 else "")
    return "reads other files"


def _at(content: Any, file: str) -> str | None:
    return content["code"].get(file)


def _changes(before: Any, now: Any, place: str) -> Iterator[str]:
    """`<place> <before> -> <now>` for each value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _changes(before.get(key), now.get(key), f"{place}.{key}")
    elif before != now:
        simple = all(isinstance(value, str | int | float | None) for value in (before, now))
        yield f"{place} {json.dumps(before)} -> {json.dumps(now)}" if simple else place


def _is(content: bytes, entry: Entry) -> bool:
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == entry.get("md5")


def _same_size(path: Path, entry: Entry) -> bool:
    if not path.exists():
        return False
    if path.is_file():
        return path.stat().st_size == entry.get("size")
    found = [one.stat().st_size for one in path.rglob("*") if one.is_file() and one.name not in NO_RESULTS]
    return (sum(found), len(found)) == (entry.get("size"), entry.get("nfiles"))
