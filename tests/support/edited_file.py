"""A change to a file of a copied project."""

from __future__ import annotations

from pathlib import Path


def edit(path: Path | str, old: str, new: str) -> None:
    """Writes `new` wherever the file has `old`, which it must have."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
