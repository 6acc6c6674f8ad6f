"""A folder of pages. Files appear whole, unchanged ones stay untouched, and those of no page are removed."""

from __future__ import annotations

import html
import os
from pathlib import Path


class Site:
    """A folder that pages are written to; `written` counts the files that changed.

    `address` is where the folder will be, ending in "/": each page then names its own address. "" for none.
    """

    def __init__(self, folder: Path, address: str = "") -> None:
        self.folder, self.address, self.written = folder, address, 0
        self._kept: set[Path] = set()

    @property
    def pages(self) -> list[str]:
        """Return the places of the pages, in order."""
        return sorted(str(path.relative_to(self.folder)) for path in self._kept if path.suffix == ".html")

    def write(self, place: str, content: str | bytes) -> None:
        if self.address and isinstance(content, str) and place.endswith(".html"):
            canonical = html.escape(self.address + place.removesuffix("index.html"))
            content = content.replace("<head>\n", f'<head>\n<link rel="canonical" href="{canonical}">\n', 1)
        data = content.encode() if isinstance(content, str) else content
        path = self.folder / place
        self._kept.add(path)
        if not path.is_file() or path.read_bytes() != data:
            _write(path, data)
            self.written += 1

    def copy(self, place: str, source: Path) -> None:
        self.write(place, source.read_bytes())

    def add(self, part: Site) -> None:
        """Add what another writer has written to the same folder."""
        self._kept |= part._kept
        self.written += part.written

    def close(self) -> None:
        """Remove files that were neither written nor copied, and empty folders."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in self._kept:
                path.unlink()


def _write(path: Path, data: bytes) -> None:
    """Write aside, then rename, so that readers see whole files. Not forced to the disk, as files.write does: that would
    take most of the time of a large site.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
