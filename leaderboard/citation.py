"""How to cite a row's paper, the benchmark and a row of it: BibTeX, whatever a title holds. Pure."""

from __future__ import annotations

import re
import unicodedata
from importlib.metadata import version

from benchmark.results.record import Record
from benchmark.specs.submission import Paper, is_web_address

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''",
}  # fmt: skip


def bibtex(key: str, paper: Paper) -> str:
    """An entry of a kind that every style knows; the title keeps its capitals."""
    fields = {"title": f"{{{_text(paper.title)}}}", "author": _authors(paper.authors), "year": str(paper.year)}
    if is_web_address(paper.url):
        fields["url"] = _address(paper.url)
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@misc{{{re.sub('[^A-Za-z0-9_]', '', key) or 'paper'},\n{lines}\n}}\n"


def bibtex_of_row(record: Record) -> str:
    """The row, as numbers of this version of its track; the weights' digest says of which network."""
    title = f"robust-vit-bench: {record.row} on {record.track}, track version {record.track_version}"
    note = f"weights sha256 {record.sha256['weights']}" if "weights" in record.sha256 else ""
    return _own(f"rvb_{record.row}_{record.track}", title, note)


def bibtex_of_benchmark() -> str:
    title = "robust-vit-bench: clean, attacked and certified accuracy of vision transformers, per image, with evidence"
    return _own("robust_vit_bench", title, f"version {version('robust-vit-bench')}")


def _own(key: str, title: str, note: str) -> str:
    fields = {"title": f"{{{_text(title)}}}", "author": "{The robust-vit-bench authors}", "year": "2026"}
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in {**fields, "note": note}.items() if value)
    return f"@misc{{{re.sub('[^A-Za-z0-9_]', '', key)},\n{lines}\n}}\n"


def _text(words: str) -> str:
    """One line, without control and direction characters, LaTeX's own escaped.

    BibTeX counts braces even where a backslash stands before them, so those that do not pair are left out.
    """
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
    """Records list names with commas and "and"; BibTeX wants "and" between all, and "others" for the rest."""
    rest = re.sub(r"\bet al\.?\s*$", ", others", names.strip())
    listed = [part.strip() for part in re.split(r",|\band\b", rest) if part.strip()]
    return " and ".join("others" if name == "others" else _text(name) for name in listed) or "unknown"


def _address(url: str) -> str:
    """Braces, percent-encoded, cannot end the field."""
    return "".join(c if c.isprintable() and c not in '{}\\"<>^`| ' else _encoded(c) for c in url)


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
