"""Landlock: a Linux process gives up for good the right to open most files
(https://docs.kernel.org/userspace-api/landlock.html).

Files that are already open stay open. The restriction also holds for all processes that it starts, whatever their user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # of files and folders
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # what a rule about a file may name
NETWORK = 0b11  # to bind and to connect TCP, from version 4 on
SCOPES = 0b11  # abstract sockets and signals of processes outside, from version 6 on
CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, the same on every architecture
VERSION, PATH_BENEATH = 1, 1
NO_NEW_PRIVILEGES = 38  # of prctl, without which an unprivileged process may not restrict itself
_LIBRARY = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("place", ctypes.c_int32))


def version() -> int:
    """Return the version of the running kernel's Landlock; 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _LIBRARY.syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION)))


def restrict(read: Iterable[Path], write: Iterable[Path], *, listed: Iterable[Path] = (), network: bool = False) -> None:
    """Restrict this process for good, as far as `version()` allows.

    It opens nothing but what lies beneath `read` and `write`, and executes nothing. It makes no TCP connection unless
    `network`, and signals no process outside its own restriction. It may list the folders beneath `listed`. Missing
    paths are left out.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    supported = version()
    rights = ALL_BY_VERSION[max((v for v in ALL_BY_VERSION if v <= supported), default=1)]
    rules = _Ruleset(rights, 0 if network or supported < 4 else NETWORK, SCOPES if supported >= 6 else 0)
    size = 8 if supported < 4 else 16 if supported < 6 else 24
    ruleset = _call(CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in read:
            _allow(ruleset, path, READ_FILE | READ_DIR)
        for path in listed:
            _allow(ruleset, path, READ_DIR)
        for path in write:
            _allow(ruleset, path, rights & ~EXECUTE)
        if _LIBRARY.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "Landlock: no new privileges")
        _call(RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def around(root: Path, hidden: Iterable[Path]) -> list[Path]:
    """Return the paths that together contain everything beneath `root` except what lies beneath `hidden`."""
    inside = [path for path in hidden if path.exists() and path.is_relative_to(root)]
    if root in inside:
        return []
    if not inside:
        return [root]
    return [path for entry in sorted(root.iterdir()) for path in around(entry, inside)]


def _allow(ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
            rule = _Beneath(rights if is_folder else rights & OF_FILES, place)
            _call(ADD, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
        finally:
            os.close(place)


def _call(number: int, *arguments: Any) -> int:
    result = _LIBRARY.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
