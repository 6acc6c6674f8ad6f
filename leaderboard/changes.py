"""Changes of published rows, from git's history of the Records: a feed, and before, after and reason of each row."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leaderboard.rank import label

MOST = 50  # entries of a feed
ATOM = "http://www.w3.org/2005/Atom"
FORMAT = "%x01%H%x02%cI%x02%s%x02%N%x02"  # of a commit in git's log: name, time, subject, note; its files follow


@dataclass(frozen=True)
class RowChange:
    """A row in a commit.

    Attributes:
        before, after: its headline numbers, as shares; None where it was not there.
        reason: the Record's own, else git's note of the commit, else the commit's subject.
    """

    track: str
    row: str
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None
    reason: str = ""

    @property
    def kind(self) -> str:
        """Return what happened to the row, in words."""
        if self.before is None or self.after is None:
            return "new" if self.after is not None else "removed"
        return "with other numbers" if self.moved else "published again with the same numbers"

    @property
    def words(self) -> str:
        """Return the row and its numbers before and after, in percent."""
        sides = [(name, [p for p in shares if p is not None]) for name, *shares in self.moved]
        numbers = "; ".join(f"{label(name)} {' → '.join(f'{p:.1%}' for p in shares)}" for name, shares in sides)
        return f"{self.row}, {self.kind}{': ' if numbers else ''}{numbers}."

    @property
    def moved(self) -> list[tuple[str, float | None, float | None]]:
        """Return the numbers that differ: name, before, after."""
        before, after = self.before or {}, self.after or {}
        names = dict.fromkeys([*before, *after])
        return [(n, before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)]


@dataclass(frozen=True)
class Change:
    """A commit that published, replaced or removed rows; its time in ISO 8601, and its subject line."""

    commit: str
    time: str
    subject: str
    rows: tuple[RowChange, ...]

    @property
    def unmoved(self) -> dict[str, list[RowChange]]:
        """Return, by track, the rows that were published again with the same headline numbers."""
        unmoved: dict[str, list[RowChange]] = {}
        for row in self.rows:
            if row.before is not None and row.after is not None and not row.moved:
                unmoved.setdefault(row.track, []).append(row)
        return unmoved

    @property
    def month(self) -> str:
        return self.time[:7]

    def title(self, titles: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return what happened to the rows, in words; `titles` are those of the tracks."""
        sentences = []
        for track in sorted({row.track for row in self.rows}):
            counts = Counter(row.kind for row in self.rows if row.track == track)
            rows = {kind: f"row{'s' if count != 1 else ''}" for kind, count in counts.items()}
            parts = [f"{n} new {rows[kind]}" if kind == "new" else f"{n} {rows[kind]} {kind}" for kind, n in counts.items()]
            sentences.append(f"{', '.join(parts)} ({titles.get(track, track)})")
        return "; ".join(sentences)


def changes(published: Path) -> list[Change]:
    """Return the last commits that touched Records in `published`, newest first; none where git does not know the folder."""
    commits: list[tuple[str, str, str, str, list[Path]]] = []
    log = _log(published, f"-{MOST}", f"--format={FORMAT}", "--name-only", "--relative", "--", "*/*-*.json")
    for part in log.split("\x01")[1:]:
        commit, time, subject, note, names = part.split("\x02")
        paths = [Path(name) for name in names.split("\n") if name]
        if records := [path for path in paths if len(path.parts) == 2]:
            commits.append((commit, time, subject, " ".join(note.split()), records))
    objects = [f"{commit}{side}:./{path}" for commit, *_, paths in commits for path in paths for side in ("^", "")]
    contents = iter(_records(published, objects))
    return [
        Change(
            commit, time, subject, tuple(_row_change(path, next(contents), next(contents), note or subject) for path in paths)
        )
        for commit, time, subject, note, paths in commits
    ]


def _row_change(path: Path, before: dict[str, Any] | None, after: dict[str, Any] | None, otherwise: str) -> RowChange:
    reason = str((after or {}).get("reason") or otherwise)
    return RowChange(path.parts[0], path.stem, before and _numbers(before), after and _numbers(after), reason)


def _numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return a Record's clean, robust and certified accuracy; the Records of a history may be of an older schema."""
    try:
        numbers = {"clean": float(record["clean"]["value"])}
        for kind in ("robust", "certified"):
            for result in record.get(kind, ()):
                threat = result["threat"]
                numbers[f"{kind} {threat['norm']} {threat['eps']:g}"] = float(result["accuracy"]["value"])
    except (KeyError, TypeError, ValueError):
        return {}
    return numbers


def _records(folder: Path, objects: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return the JSON objects that git names `objects`; None for one that is not there or no JSON object."""
    command = ["git", "cat-file", "--batch"]
    try:
        text = "".join(f"{name}\n" for name in objects).encode()
        output = subprocess.run(command, cwd=folder, input=text, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [None] * len(objects)
    records: list[dict[str, Any] | None] = []
    while len(records) < len(objects):
        head, _, output = output.partition(b"\n")
        if head.endswith(b" missing"):
            records.append(None)
            continue
        size = int(head.split()[-1])
        try:
            content = json.loads(output[:size])
        except ValueError:
            content = None
        records.append(content if isinstance(content, dict) else None)
        output = output[size + 1 :]
    return records


def commit_here() -> tuple[str, str]:
    """Return the commit that is checked out, shortened, and its day; "" each where there is no git or no history."""
    commit, _, day = _log(Path(), "-1", "--format=%h %cs").strip().partition(" ")
    return commit, day


def _log(folder: Path, *arguments: str) -> str:
    """Return what `git log` prints in a folder; "" where there is no git or no history."""
    try:
        return subprocess.run(["git", "log", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def last_change(history: Sequence[Change], track: str) -> str:
    """Return the day on which a row of `track` was last published; "" where none is known."""
    return next((change.time[:10] for change in history if any(row.track == track for row in change.rows)), "")


def feed(history: Sequence[Change], address: str, titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the changes as an Atom feed (RFC 4287), with the numbers before and after.

    Args:
        address: of the site, ending in "/"; "" where it has none, and links are relative.
        titles: of the tracks, by name.
    """
    ET.register_namespace("", ATOM)
    root = ET.Element(f"{{{ATOM}}}feed")

    def add(parent: ET.Element, name: str, text: str = "", **attributes: str) -> ET.Element:
        made = ET.SubElement(parent, f"{{{ATOM}}}{name}", attributes)
        made.text = text or None
        return made

    add(root, "title", "robust-vit-bench: published rows")
    add(root, "id", address or "tag:robust-vit-bench,2026:feed")
    add(root, "updated", history[0].time if history else "1970-01-01T00:00:00Z")
    if address:
        add(root, "link", rel="self", href=f"{address}feed.xml")
    author = add(root, "author")
    add(author, "name", "robust-vit-bench")
    for change in history:
        entry = add(root, "entry")
        add(entry, "title", change.title(titles))
        add(entry, "id", f"tag:robust-vit-bench,2026:{change.commit}")
        add(entry, "updated", change.time)
        add(entry, "link", href=f"{address}changes.html#{change.commit[:12]}")
        add(entry, "summary", "\n".join([*(row.words for row in change.rows), f"Commit: {change.subject}"]))
    ET.indent(root)
    head = '<?xml version="1.0" encoding="utf-8"?>\n<?xml-stylesheet type="text/css" href="static/feed.css"?>\n'
    return f"{head}{ET.tostring(root, encoding='unicode')}\n"
