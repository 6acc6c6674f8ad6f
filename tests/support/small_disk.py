"""A file system of so many KiB, to be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[None]:
    """Mounts one there; skips the test where this user may not mount."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a small file system to fill")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(file: Path) -> None:
    """Makes it as large as the space that is left."""
    left = os.statvfs(file.parent)
    file.write_bytes(bytes(left.f_bavail * left.f_frsize))


def enlarge(folder: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", str(folder)], check=True)
