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
        self._kept: set[str] = set()

    @property
    def pages(self) -> list[str]:
        """Return the places of the pages, in order."""
        return sorted(place for place in self._kept if place.endswith(".html"))

    def write(self, place: str, content: str | bytes) -> None:
        """Write a file whole: aside, then renamed.

        The disk is not waited for, as files.write does: that would take most of the time of a large site.
        """
        if self.address and isinstance(content, str) and place.endswith(".html"):
            canonical = html.escape(self.address + place.removesuffix("index.html"))
            content = content.replace("<head>\n", f'<head>\n<link rel="canonical" href="{canonical}">\n', 1)
        data = content.encode() if isinstance(content, str) else content
        path = os.path.join(self.folder, place)
        self._kept.add(place)
        try:
            with open(path, "rb") as file:
                if file.read() == data:
                    return
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        aside = f"{path}.{os.getpid()}"
        try:
            with open(aside, "wb") as file:
                file.write(data)
            os.replace(aside, path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        self.written += 1

    def copy(self, place: str, source: Path) -> None:
        self.write(place, source.read_bytes())

    def add(self, part: Site) -> None:
        """Add what another writer has written to the same folder."""
        self._kept |= part._kept
        self.written += part.written

    def close(self) -> None:
        """Remove files that were neither written nor copied, and empty folders."""
        for folder, folders, names in os.walk(self.folder, topdown=False):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for path in (os.path.join(folder, name) for name in (*names, *links)):
                if os.path.relpath(path, self.folder) not in self._kept:
                    os.unlink(path)
            if folder != os.fspath(self.folder) and not os.listdir(folder):
                os.rmdir(folder)
