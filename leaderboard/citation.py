"""BibTeX of a row's paper, of the benchmark and of a row, valid whatever a title contains; the benchmark's version."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from benchmark.records.record import Record
from benchmark.specs.submission import Paper, is_web_address

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''",
}  # fmt: skip
SAFE = ":/?#[]@!$&'()*+,;=%~"  # what a web address has besides letters and digits; braces, encoded, cannot end the field
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"  # of the checkout, if the code lies in one
OURS = "{The robust-vit-bench authors}"


def bibtex(key: str, paper: Paper) -> str:
    """Return an entry of the paper, of a kind that every style has; the title keeps its capitals."""
    url = quote(paper.url, safe=SAFE, errors="replace") if is_web_address(paper.url) else ""
    return _entry(key, paper.title, _authors(paper.authors), str(paper.year), url=url)


def bibtex_of_row(record: Record) -> str:
    """Return an entry of the row: its numbers on this version of the track, and the weights' digest."""
    title = f"robust-vit-bench: {record.row} on {record.track}, track version {record.track_version}"
    note = f"weights sha256 {record.sha256['weights']}" if "weights" in record.sha256 else ""
    return _entry(f"rvb_{record.row}_{record.track}", title, OURS, "2026", note=note)


def bibtex_of_benchmark() -> str:
    title = "robust-vit-bench: clean, attacked and certified accuracy of vision transformers, per image, with evidence"
    return _entry("robust_vit_bench", title, OURS, "2026", note=f"version {version()}")


def version() -> str:
    """Return the benchmark's version: that of the checkout, since an editable install keeps the one it was made with."""
    if PYPROJECT.exists():
        return str(tomllib.loads(PYPROJECT.read_text())["project"]["version"])
    return metadata.version("robust-vit-bench")


def _entry(key: str, title: str, author: str, year: str, **more: str) -> str:
    fields = {"title": f"{{{_text(title)}}}", "author": author, "year": year, **more}
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items() if value)
    return f"@misc{{{re.sub('[^A-Za-z0-9_]', '', key) or 'paper'},\n{lines}\n}}\n"


def _text(words: str) -> str:
    """Return one line without control or direction characters, escaped for LaTeX, and without unpaired braces."""
    kept = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in words)
    if not _paired(kept):
        kept = kept.replace("{", "").replace("}", "")
    return "".join(SPECIAL.get(character, character) for character in " ".join(kept.split()))


def _paired(words: str) -> bool:
    depth = 0
    for character in words:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _authors(names: str) -> str:
    """Return names joined by "and", with "others" for the rest; Records list them with commas and "and"."""
    rest = re.sub(r"\bet al\.?\s*$", ", others", names.strip())
    listed = [part.strip() for part in re.split(r",|\band\b", rest) if part.strip()]
    return " and ".join("others" if name == "others" else _text(name) for name in listed) or "unknown"
