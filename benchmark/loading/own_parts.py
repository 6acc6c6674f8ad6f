"""Parts of a submission's model: those that a function of its method.py names, else those that can be recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from benchmark.loading import methods, submissions
from benchmark.runtime.errors import BenchmarkError

Part = TypeVar("Part")


def own_parts(
    submission: str,
    model: nn.Module,
    function: str,
    recognised: Callable[[nn.Module], list[Part]],
    what: str,
    name: Callable[[str, Part], str],
) -> list[Part]:
    """`function`(model) of method.py where it defines one, else `recognised`(model).

    Args:
        what: the kind of entry, in words.
        name: of an entry, given its place in words; names must differ. A ValueError says what is wrong with the entry.

    Raises:
        BenchmarkError: method.py's fails or returns something else than a list of such entries; or it defines none and no
            part is recognised.
    """
    path = submissions.FOLDER / submission / "method.py"
    own = getattr(methods.imported(submission), function, None)
    if not callable(own):
        try:
            return recognised(model)
        except BenchmarkError as error:
            raise BenchmarkError(f"{path}: {error}") from None
    with methods.asked(path, f"{function} failed"):
        found = own(model)
    due = f"{path}: {function}(model) must return a list of {what}"
    if not isinstance(found, list) or not found:
        raise BenchmarkError(f"{due}, not {'an empty one' if found == [] else type(found).__name__}")
    names = list[str]()
    for place, entry in enumerate(found, 1):
        try:
            names.append(name(f"entry {place}", entry))
        except ValueError as error:
            raise BenchmarkError(f"{due}; {error}") from None
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise BenchmarkError(f"{path}: {function}(model) returns the name {twice!r} twice; names must differ")
    return found
