"""What a constructor's argument in a network's description may be: checks of plain JSON that somebody else wrote.

Each check returns the argument as the constructor takes it, or raises a ValueError that says what it should be.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], Any]

LARGEST_SIZE = 2**20
LARGEST_NUMBER = 2.0**127  # what float32 holds, about
LONGEST = 64  # of a list


def whole(least: int, most: int = LARGEST_SIZE) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"should be a whole number from {least} to {most}")
        return value

    return check


def wholes(least: int, most: int = LARGEST_SIZE, *, many: int | None = None) -> Check:
    """A list of `many` whole numbers, of 1 to LONGEST where that is None."""
    one = whole(least, most)

    def check(value: Any) -> tuple[int, ...]:
        if type(value) is not list or not 1 <= len(value) <= LONGEST or (many and len(value) != many):
            raise ValueError(f"should be a list of {many or f'1 to {LONGEST}'} whole numbers")
        return tuple(one(part) for part in value)

    return check


def number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LARGEST_NUMBER:  # a NaN too
        raise ValueError("should be a finite number that float32 holds")
    return value


def positive(value: Any) -> float:
    if not number(value) > 0:
        raise ValueError("should be positive")
    return value


def truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("should be true or false")
    return value


def one_of(*known: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or value not in known:
            raise ValueError(f"should be one of {', '.join(known)}")
        return value

    return check


def either(check: Check, other: Check) -> Check:
    """`other` for strings, `check` for all else."""
    return lambda value: other(value) if type(value) is str else check(value)


def shown(value: Any) -> str:
    """A value that somebody else wrote, in a few characters and without line breaks."""
    if type(value) is int and value.bit_length() > 100:
        return "of more than 30 digits"  # Python refuses to write thousands of them
    return " ".join(reprlib.repr(value).split())[:60]
