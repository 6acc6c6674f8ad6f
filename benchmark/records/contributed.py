"""Adversarial images that others contributed against published rows: what they break, and the numbers without those images.

leaderboard/results/<track>/broken/<row>.json lies beside the published Record, which stays as measured; the board counts the
lower numbers. The images are not kept; the sha256 of their file is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, field_validator

from benchmark.records.accuracy import Proportion
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import Frozen

FOLDER = "broken"
LONGEST = 120  # characters of a credit
UNNAMED = "unnamed"
Scores = dict[str, str]  # by the name of a number, a digit an image


class BrokenImage(Frozen):
    """A broken evaluation image that the Record counts as robust or certified.

    Attributes:
        image: its index among the evaluation images.
        threat: the attacked ball, such as "Linf 0.15".
        linf, l2: the perturbation's norms, in pixels of [0, 1].
        prediction, margin: of the float32 model.
        lost: the track's threats within which the image no longer counts.
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


class Contribution(Frozen):
    """The images that one file broke. `sha256` is the file's, `weights` the network's; it says nothing of other weights."""

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
        return tuple(image for image in self.images if image.certified)

    def lost(self, threat: str) -> set[int]:
        """Return the images that no longer count within a threat's ball."""
        return {image.image for image in self.images if threat in image.lost}


class BrokenRow(Frozen):
    """All contributed images against one row, in the order of their arrival."""

    track: str
    track_version: int
    row: str
    contributions: tuple[Contribution, ...]

    def apply(self, contribution: Contribution, record: Record) -> bool:
        """Whether contributed images are against this Record's weights and rules."""
        return self.track_version == record.track_version and contribution.weights == record.sha256.get("weights")


class Lowered(Frozen):
    """How many images count within one of the track's balls without the `lost` ones."""

    threat: str
    before: int
    after: int
    lost: tuple[int, ...]


def read(folder: Path, record: Record) -> tuple[Contribution, ...]:
    """Return the images contributed against this very network, from the row's file in `folder`.

    Raise a BenchmarkError for a damaged file, or one that names an image or a threat that the Record lacks.
    """
    path = folder / f"{record.row}.json"
    if not path.exists():
        return ()
    row = load(path)
    threats = {robust.threat.label for robust in record.robust}
    contributions = tuple(file for file in row.contributions if row.apply(file, record))
    if any(image.image >= record.n or not {*image.lost} <= threats for file in contributions for image in file.images):
        raise BenchmarkError(f"{path} names an image or a ball that {record.row} does not have; write it again")
    return contributions


def load(path: Path) -> BrokenRow:
    """Return the file's content; raise a BenchmarkError where it is damaged."""
    return files.read_model(path, BrokenRow, "bring it back with git, or delete it")


def stale(row: BrokenRow, record: Record | None) -> str:
    """Return why some contributed images do not apply to the published Record; "" where all apply."""
    if record is None:
        return "images of a row that is not published"
    old = [file.credit for file in row.contributions if not row.apply(file, record)]
    return f"images by {old[0]} of other weights or rules than the published Record's" if old else ""


def lowered(record: Record, scores: Scores | None, contributions: Sequence[Contribution]) -> tuple[Record, Scores | None]:
    """Return the Record and its scores without the broken images, and without certified numbers where one is contradicted.

    Raise a BenchmarkError where a number that falls is not known by image.
    """
    if not contributions:
        return record, scores
    robust, kept = [], dict(scores or {})
    for result in record.robust:
        name = f"robust {result.threat.label}"
        if lost := set[int]().union(*(file.lost(result.threat.label) for file in contributions)):
            if name not in kept:
                raise BenchmarkError(
                    f"{record.row}: others broke images of {name}, which it lacks by image; publish it again"
                )
            kept[name] = "".join("0" if image in lost else digit for image, digit in enumerate(kept[name]))
            result = result.model_copy(update={"accuracy": Proportion.of(kept[name].count("1"), len(kept[name]))})
        robust.append(result)
    certified = () if any(file.contradicted for file in contributions) else record.certified
    return record.model_copy(update={"robust": tuple(robust), "certified": certified}), kept


def lowered_all(
    folder: Path, records: Sequence[Record], images: Mapping[str, Scores]
) -> tuple[list[Record], dict[str, Scores], dict[str, tuple[Contribution, ...]]]:
    """Return a board's Records and scores, by row, without the broken images; and the contributed images, by row."""
    contributions = {record.row: files for record in records if (files := read(folder, record))}
    kept, counted = dict(images), []
    for record in records:
        without, scores = lowered(record, images.get(record.row), contributions.get(record.row, ()))
        counted.append(without)
        kept |= {record.row: scores} if scores is not None else {}
    return counted, kept, contributions


def effect(record: Record, scores: Scores, known: Sequence[Contribution], new: Contribution) -> tuple[Lowered, ...]:
    """Return what `new` takes from each robust accuracy beyond the known contributions."""
    before, was = lowered(record, scores, known)
    after, _ = lowered(record, scores, [*known, new])
    effects = []
    for old, now in zip(before.robust, after.robust, strict=True):
        label = old.threat.label
        lost = tuple(image for image in sorted(new.lost(label)) if (was or {})[f"robust {label}"][image] == "1")
        effects.append(Lowered(threat=label, before=old.accuracy.count, after=now.accuracy.count, lost=lost))
    return tuple(effects)


def credits(contributions: Sequence[Contribution]) -> dict[str, str]:
    """Return who lowered each robust accuracy, and by how many images. An image is credited to its first contributor."""
    first: dict[str, dict[int, str]] = {}
    for file in contributions:
        for image in file.images:
            for label in image.lost:
                first.setdefault(f"robust {label}", {}).setdefault(image.image, file.credit)
    counts = {name: Counter(images.values()) for name, images in first.items()}
    return {name: ", ".join(f"−{n} {who}" for who, n in each.items()) for name, each in counts.items()}
