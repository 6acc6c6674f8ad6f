"""Adversarial images that others brought against published rows: what they break, and the numbers without those images.

leaderboard/results/<track>/broken/<row>.json, beside the published Record, which stays as it was measured: the board counts
what is lower. The images themselves are not kept; their file's sha256 is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, field_validator

from benchmark.records.proportion import Proportion
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen

FOLDER = "broken"
LONGEST = 120  # characters of a credit
UNNAMED = "unnamed"
Scores = dict[str, str]  # by the name of a number, a digit an image


class BrokenImage(Frozen):
    """An evaluation image that the Record counts as robust, or certified, and that was broken.

    Attributes:
        image: its place among the evaluation images.
        threat: the ball in which it was looked for, such as "Linf 0.15".
        linf, l2: how far it was moved, in pixels of [0, 1].
        prediction, margin: of the float32 model.
        lost: the track's threats within which it counts no longer.
        certified: the certified l2 radius that it contradicts; 0 where it contradicts none.
    """

    image: int = Field(ge=0)
    threat: str
    linf: float = Field(ge=0)
    l2: float = Field(ge=0)
    prediction: int
    margin: float = Field(le=0)
    lost: tuple[str, ...]
    certified: float = Field(default=0, ge=0)


class Brought(Frozen):
    """What one file of images broke. `sha256` is the file's, `weights` the network's; of other weights it says nothing."""

    credit: str = Field(min_length=1, max_length=LONGEST)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    weights: str = Field(pattern=r"^[0-9a-f]{64}$")
    images: tuple[BrokenImage, ...]

    @field_validator("credit")
    @classmethod
    def _one_line(cls, credit: str) -> str:
        if not credit.isprintable() or not credit.strip():
            raise ValueError("a credit is one line of printable characters")
        return credit

    @property
    def contradicted(self) -> tuple[BrokenImage, ...]:
        return tuple(one for one in self.images if one.certified)


class BrokenRow(Frozen):
    """All that was brought against one row, in the order in which it came."""

    track: str
    track_version: int
    row: str
    brought: tuple[Brought, ...]


class Lowered(Frozen):
    """How many images count within one of the track's balls without what is `lost`."""

    threat: str
    before: int
    after: int
    lost: tuple[int, ...]


def read(folder: Path, record: Record) -> tuple[Brought, ...]:
    """What was brought against this very network, by the file in `folder`, that of the track's broken images.

    A BenchmarkError for a file that is damaged, or names an image or a threat that the Record does not have.
    """
    path = folder / f"{record.row}.json"
    if not path.exists():
        return ()
    row = load(path)
    threats = {robust.threat.label for robust in record.robust}
    brought = tuple(one for one in row.brought if not _is_of_another(row, one, record))
    if any(image.image >= record.n or not {*image.lost} <= threats for one in brought for image in one.images):
        raise BenchmarkError(f"{path} names an image or a ball that {record.row} does not have; write it again")
    return brought


def load(path: Path) -> BrokenRow:
    """The file; a BenchmarkError where it is damaged."""
    return files.read_model(path, BrokenRow, "bring it back with git, or delete it")


def stale(row: BrokenRow, record: Record | None) -> str:
    """Why part of what was brought says nothing of the Record that is published, in words; "" where all of it does."""
    if record is None:
        return "images of a row that is not published"
    old = [one for one in row.brought if _is_of_another(row, one, record)]
    return f"images by {old[0].credit} of other weights or rules than the published Record's" if old else ""


def _is_of_another(row: BrokenRow, one: Brought, record: Record) -> bool:
    return row.track_version != record.track_version or one.weights != record.sha256.get("weights")


def lowered(record: Record, scores: Scores | None, brought: Sequence[Brought]) -> tuple[Record, Scores | None]:
    """The Record and its scores with what was brought counted: an image that is broken within a ball is lost there, and a
    certificate that is contradicted certifies nothing any more. A BenchmarkError where numbers by image are lacking.
    """
    if not brought:
        return record, scores
    robust, kept = [], dict(scores or {})
    for one in record.robust:
        name = f"robust {one.threat.label}"
        lost = {image.image for each in brought for image in each.images if one.threat.label in image.lost}
        if lost and name not in kept:
            raise BenchmarkError(
                f"{record.row}: others broke images of {name}, which it lacks by image; publish it again"
            )
        if lost:
            kept[name] = "".join("0" if image in lost else digit for image, digit in enumerate(kept[name]))
            one = one.model_copy(update={"accuracy": Proportion.of(kept[name].count("1"), len(kept[name]))})
        robust.append(one)
    certified = () if any(one.contradicted for one in brought) else record.certified
    return record.model_copy(update={"robust": tuple(robust), "certified": certified}), kept


def lowered_all(
    folder: Path, records: Sequence[Record], images: Mapping[str, Scores]
) -> tuple[list[Record], dict[str, Scores], dict[str, tuple[Brought, ...]]]:
    """A board's Records and scores, by row, with all that was brought against them counted; and what was, by row."""
    brought = {record.row: found for record in records if (found := read(folder, record))}
    kept, made = dict(images), []
    for record in records:
        counted, scores = lowered(record, images.get(record.row), brought.get(record.row, ()))
        made.append(counted)
        kept |= {record.row: scores} if scores is not None else {}
    return made, kept, brought


def effect(record: Record, scores: Scores, known: Sequence[Brought], new: Brought) -> tuple[Lowered, ...]:
    """What `new` takes of each robust accuracy after what was known before."""
    before, was = lowered(record, scores, known)
    after, _ = lowered(record, scores, [*known, new])
    found = []
    for one, other in zip(before.robust, after.robust, strict=True):
        label, standing = one.threat.label, (was or {}).get(f"robust {one.threat.label}", "")
        broken = {image.image for image in new.images if label in image.lost}
        lost = tuple(image for image in sorted(broken) if standing[image] == "1")
        found.append(Lowered(threat=label, before=one.accuracy.count, after=other.accuracy.count, lost=lost))
    return tuple(found)


def credits(brought: Sequence[Brought]) -> dict[str, str]:
    """By the name of a robust accuracy who lowered it, by how many images; an image is the first one's who brought it."""
    first: dict[str, dict[int, str]] = {}
    for one in brought:
        for image in one.images:
            for label in image.lost:
                first.setdefault(f"robust {label}", {}).setdefault(image.image, one.credit)
    counts = {name: Counter(images.values()) for name, images in first.items()}
    return {name: ", ".join(f"−{n} {who}" for who, n in each.items()) for name, each in counts.items()}
