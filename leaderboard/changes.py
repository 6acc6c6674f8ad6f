"""What was published when: git's history of the published Records, as a feed."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MOST = 50  # entries of a feed
ATOM = "http://www.w3.org/2005/Atom"


@dataclass(frozen=True)
class Change:
    """A commit that published, replaced or removed rows: its time in ISO 8601, and the rows by track."""

    commit: str
    time: str
    rows: tuple[tuple[str, str], ...]  # (track, row)

    @property
    def title(self) -> str:
        tracks = sorted({track for track, _ in self.rows})
        return "; ".join(f"{track}: {', '.join(row for t, row in self.rows if t == track)}" for track in tracks)


def changes(published: Path) -> list[Change]:
    """The last commits that touched Records in `published`, newest first; none where git does not know the folder."""
    found = []
    told = _log(published, f"-{MOST}", "--format=%x01%H %cI", "--name-only", "--relative", "--", "*/*-*.json")
    for part in told.split("\x01")[1:]:
        head, *names = part.split("\n")
        paths = [Path(name) for name in names if name]
        rows = tuple((path.parts[0], path.stem) for path in paths if len(path.parts) == 2)
        if rows:
            commit, time = head.split()
            found.append(Change(commit, time, rows))
    return found


def commit_here() -> tuple[str, str]:
    """The commit that is checked out, shortened, and its day; "" each where there is no git or no history."""
    commit, _, day = _log(Path(), "-1", "--format=%h %cs").strip().partition(" ")
    return commit, day


def _log(folder: Path, *arguments: str) -> str:
    """What `git log` prints in a folder; "" where there is no git or no history."""
    try:
        return subprocess.run(["git", "log", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def last_change(found: Sequence[Change], track: str) -> str:
    """The day on which a row of `track` was last published; "" where none is known."""
    return next((change.time[:10] for change in found if any(t == track for t, _ in change.rows)), "")


def feed(found: Sequence[Change], address: str) -> str:
    """Atom (RFC 4287). `address`: of the site, ending in "/"; "" where it has none, and links are relative."""
    ET.register_namespace("", ATOM)
    root = ET.Element(f"{{{ATOM}}}feed")

    def add(parent: ET.Element, name: str, text: str = "", **attributes: str) -> ET.Element:
        made = ET.SubElement(parent, f"{{{ATOM}}}{name}", attributes)
        made.text = text or None
        return made

    add(root, "title", "robust-vit-bench: published rows")
    add(root, "id", address or "tag:robust-vit-bench,2026:feed")
    add(root, "updated", found[0].time if found else "1970-01-01T00:00:00Z")
    add(root, "link", rel="self", href=f"{address}feed.xml")
    author = add(root, "author")
    add(author, "name", "robust-vit-bench")
    for change in found:
        entry = add(root, "entry")
        add(entry, "title", change.title)
        add(entry, "id", f"tag:robust-vit-bench,2026:{change.commit}")
        add(entry, "updated", change.time)
        add(entry, "link", href=f"{address}{change.rows[0][0]}/index.html")
        add(entry, "summary", f"{len(change.rows)} rows published, replaced or removed in commit {change.commit[:12]}.")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
