"""Is a published study today's? Pure: what it was made with against what it would be made with now, reasons out.

Versions of packages are not compared: the pipeline does not run a study again for them, and each study says its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from benchmark.results.study import StudyResult
from benchmark.specs.study import MeasureSpec
from benchmark.specs.submission import VariantOnTrack

MOST = 3  # names in a reason


@dataclass(frozen=True)
class StudyToday:
    """What a study would be made with today: `cells` by name, sha256 of `code`, and of `data` by split (None: unknown)."""

    track_version: int
    images: int
    seeds: tuple[int, ...]
    measures: tuple[MeasureSpec, ...]
    cells: Mapping[str, VariantOnTrack]
    code: str
    data: Mapping[str, str] | None


def reasons(result: StudyResult, today: StudyToday) -> list[str]:
    """Why a study's result is not today's, in words; empty where it is. Unknown data are not compared."""
    found = ["made with other code"] if result.sha256.get("code") != today.code else []
    found += changed_settings(result, today)
    if today.data is not None:
        then = {name.removeprefix("data "): d for name, d in result.sha256.items() if name.startswith("data ")}
        splits = sorted(name for name in then.keys() | today.data.keys() if then.get(name) != today.data.get(name))
        found += [f"made with other data: {_some(splits)}"] if splits else []
    return found


def changed_settings(result: StudyResult, today: StudyToday) -> list[str]:
    """What was asked for then and is not now, in words: rules, images, seeds, cells, their settings, measures."""
    found = []
    seeds = dict.fromkeys(run.seed for run in result.runs)
    for what, then, now in (
        ("track version", result.track_version, today.track_version),
        ("images", result.n, today.images),
        ("seeds", _listed(sorted(seeds)), _listed(sorted(today.seeds))),
    ):
        if then != now:
            found.append(f"{what} {then} then, {now} now")
    cells = {cell.name: cell.settings for cell in result.cells}
    differ = [name for name in cells if name in today.cells and not _same(cells[name], today.cells[name])]
    measures = {m.label: m for m in result.measures}, {m.label: m for m in today.measures}
    differing = [label for label in measures[0] if label in measures[1] and measures[0][label] != measures[1][label]]
    for what, names in (
        ("settings differ: cell", differ),
        ("cell no longer asked for:", [name for name in cells if name not in today.cells]),
        ("cell not measured:", [name for name in today.cells if name not in cells]),
        ("measure differs:", differing),
        ("measure no longer asked for:", [label for label in measures[0] if label not in measures[1]]),
        ("measure not taken:", [label for label in measures[1] if label not in measures[0]]),
    ):
        if names:
            found.append(f"{what} {_some(names)}")
    if [*measures[0]] != [*measures[1]] and {*measures[0]} == {*measures[1]}:
        found.append("measures stand in another order")
    return found


def _same(then: Mapping[str, object], now: VariantOnTrack) -> bool:
    """Validated, since a setting that was not there yet when it was run has its default now."""
    try:
        return VariantOnTrack.model_validate(then) == now.model_copy(update={"adaptive": ()})
    except ValidationError:
        return False


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
