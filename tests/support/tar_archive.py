"""Files as a shipment to other machines carries them."""

from __future__ import annotations

import io
import tarfile


def archive(files: dict[str, str], mode: int = 0o644) -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as opened:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), mode
            opened.addfile(entry, io.BytesIO(text.encode()))
    return kept.getvalue()
