"""What a study is: a paper's table or figure as a grid of trainings.

Units: radii in pixels of [0, 1]; accuracies as fractions.
"""

from __future__ import annotations

import itertools
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from benchmark.runtime.errors import near_miss
from benchmark.specs.base import Frozen, repeated
from benchmark.specs.threat import AttackSpec, CertificateName, check_distinct

Setting = int | float | bool | str | None
Value = float | tuple[float | None, ...]  # one number, or a curve
Verdicts = str | tuple[str, ...]  # 1 or 0 for each image, in order; of a curve, one string for each place
BUILTIN = ("clean", "attack", "certified")


class Cell(Frozen):
    """One setting of a study: `set` changes settings of the variant, by their dotted names."""

    name: str = Field(min_length=1)
    set: dict[str, JsonValue] = Field(default={})


class GridCell(Cell):
    """A cell of the whole grid: `levels` is its level on each axis; the axis of the named cells is "cell"."""

    levels: dict[str, str]


class MeasureSpec(Frozen):
    """A measure of each network.

    One of: `clean` accuracy; accuracy under an `attack`; l2 `certified` accuracy at `radii`, by the variant's
    certificate or another; or a function of the submission's measures.py. `name` is its name in the table. A measure
    that `needs` a package that is not installed is left out, and the result gives the reason. A function may take only
    the first `images` of the study; its label gives their number. With `cells`, only networks of these cells are
    measured.
    """

    measure: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    name: str = ""
    attack: AttackSpec | None = None
    radii: tuple[float, ...] = ()
    certificate: CertificateName | None = None
    parameters: dict[str, Setting | tuple[Setting, ...]] = Field(default={})
    needs: str = Field(default="", pattern=r"^[A-Za-z_0-9]*$")
    images: int | None = Field(default=None, gt=0)
    cells: tuple[str, ...] = ()

    def of(self, cell: str) -> bool:
        """Return whether it is measured on a cell's networks."""
        return not self.cells or cell in self.cells

    @property
    def is_function(self) -> bool:
        """Whether it is a function of the submission's measures.py."""
        return self.measure not in BUILTIN

    @property
    def label(self) -> str:
        words = self.name or (self.attack.id if self.attack else self.measure)
        return f"{words} (first {self.images} images)" if self.images else words

    @model_validator(mode="after")
    def _fits(self) -> MeasureSpec:
        if self.measure in ("seconds", "training_seconds"):
            raise ValueError("times are no results: every study keeps them beside its own; leave this measure out")
        if (self.measure == "attack") != (self.attack is not None):
            raise ValueError(
                "`measure: attack` needs an `attack`, such as {attack: apgd, norm: Linf, eps: 0.15}, others none"
            )
        if (self.measure == "certified") != bool(self.radii):
            raise ValueError("`measure: certified` needs `radii`, such as [0.1, 0.25], others none")
        if self.certificate and self.measure != "certified":
            raise ValueError("a `certificate` is for `measure: certified`")
        if self.parameters and self.measure in ("clean", "attack"):
            raise ValueError(f"{self.measure} takes no `parameters`; those of an attack stand inside `attack`")
        if self.images and not self.is_function:
            raise ValueError(f"{self.measure} is of all images of the study; `images` is for measures of your own")
        return self


class FigureSpec(Frozen):
    """The figure of a study: what to `draw`, and the labels of the measures in it (default: all that fit).

    bars: one for each cell, with the spread of its seeds.
    lines: a measure over the axis `x`, one line for each combination of the other axes.
    curves: a measure that is a curve, one curve for each cell.
    together: all curves of a cell in one panel.
    violins: one for each curve that holds the quantiles of a distribution, at 21 levels or more from 0 to 1.
    scatter: the points of each cell's first seed.
    """

    draw: Literal["bars", "lines", "curves", "together", "violins", "scatter"]
    x: str = ""
    measures: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> FigureSpec:
        if (self.draw == "lines") != bool(self.x):
            raise ValueError("lines need `x`, the axis that they run over; other figures have none")
        return self


class Study(Frozen):
    """`submissions/<name>/studies/<study>.yaml`: what varies, from `variant` on `track`, and what is measured.

    The cells are the product of `axes` (dotted setting to its values) and of `cells`. `against` chooses the cell with
    which each is compared: the `first` (if axes vary named cells, of the same name), or the `previous`, on which it
    builds. The first `images` of the track's evaluation images are used and attacked; more than it has are a larger draw
    of its seed. Unless given, the track's rules hold: all are used, and as many attacked as in its rows. `claims` are a
    paper's numbers by cell and measure, shown and never ranked; those of the measures in `claims_comparable` are of the
    track's images, by the same method at the same radius. `shares` are the labels of measures of your own that are shares
    of images: they are shown in percent. `findings` names a function of the submission's findings.py that tests the
    paper's statements.
    """

    title: str
    source: str  # the table or figure of the paper
    note: str = ""
    track: str
    variant: str  # every cell starts from its settings
    seeds: tuple[int, ...] = (0, 1, 2)  # one training of every cell for each
    axes: dict[str, tuple[Setting, ...]] = Field(default={})
    cells: tuple[Cell, ...] = ()
    measures: tuple[MeasureSpec, ...]
    images: int | None = Field(default=None, gt=0)
    against: Literal["first", "previous"] = "first"
    claims: dict[str, dict[str, Value]] = Field(default={})
    claims_comparable: tuple[str, ...] = ()
    figure: FigureSpec | None = None
    shares: tuple[str, ...] = ()
    findings: str = Field(default="", pattern=r"^([a-z][a-z0-9_]*)?$")

    def is_share(self, label: str) -> bool:
        """Return whether a number is a share of images."""
        counted = tuple(measure.label for measure in self.measures if not measure.is_function)
        return is_named(label, counted + self.shares)

    def grid(self) -> tuple[GridCell, ...]:
        """Return every cell, in order; cells of axes are named after their settings' last words and values."""
        cells = []
        for named in self.cells or (Cell(name="all"),):
            for values in itertools.product(*self.axes.values()):
                settings = dict(zip(self.axes, values, strict=True))
                words = [named.name] if self.cells or not self.axes else []
                words += [f"{last_word(key)} {in_words(value)}" for key, value in settings.items()]
                levels = ({"cell": named.name} if self.cells else {}) | {k: in_words(v) for k, v in settings.items()}
                cells.append(GridCell(name=", ".join(words), set={**named.set, **settings}, levels=levels))
        return tuple(cells)

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        cells, labels = [cell.name for cell in self.grid()], [measure.label for measure in self.measures]
        for what, names in (("seed", self.seeds), ("cell", cells), ("measure", labels)):
            if (twice := repeated(names)) is not None:
                named = "" if what == "seed" else ", with a `name`"
                raise ValueError(f"the {what} {twice} stands twice; give each once{named}")
            if not names:
                raise ValueError(f"no {what}: give at least one")
        for measure in self.measures:
            for cell in measure.cells:
                if cell not in cells:
                    raise ValueError(f"measure {measure.label!r}: no cell {cell!r}{near_miss(cell, cells)}")
        for label in self.claims_comparable:
            if label not in labels:
                raise ValueError(f"claims_comparable: no measure {label!r}{near_miss(label, labels)}")
        check_distinct([measure.attack for measure in self.measures if measure.attack], "in measures")
        for key, values in self.axes.items():
            if not values:
                raise ValueError(f"the axis {key} has no value")
        if self.figure and self.figure.x and self.figure.x not in self.axes:
            raise ValueError(f"figure.x {self.figure.x!r} is no axis; axes: {', '.join(self.axes) or 'none'}")
        return self


def measure_of(label: str) -> str:
    """Return the measure that a label belongs to."""
    return label.partition(": ")[0]


def measure_named(study: Study, label: str) -> MeasureSpec | None:
    """Return the measure that a column's label belongs to; None if the study has none of this name."""
    measures = {measure.label: measure for measure in study.measures}
    return measures.get(label) or measures.get(measure_of(label))


def is_named(label: str, measures: tuple[str, ...]) -> bool:
    """Whether `measures` name this label: in full, or by its part before a colon."""
    return any(label == name or label.startswith(f"{name}: ") for name in measures)


def run_command(study: str, track: str) -> str:
    """Return the command that runs the study `<submission>-<study>`, or `<row>-seeds`."""
    owner, _, name = study.rpartition("-")
    return f"rvb study {owner} {name}{_of_row_on(owner, track)}"


def publish_command(study: str, track: str) -> str:
    """Return the command that publishes it."""
    owner, _, name = study.rpartition("-")
    return f"rvb publish {owner} --study {name}{_of_row_on(owner, track)}"


def _of_row_on(owner: str, track: str) -> str:
    return f" --track {track}" if "-" in owner and track != "digits" else ""


def last_word(key: str) -> str:
    """Return `weight decay` for `training.weight_decay`."""
    return key.rpartition(".")[2].replace("_", " ")


def in_words(value: Setting) -> str:
    return {True: "on", False: "off", None: "none"}[value] if isinstance(value, bool) or value is None else f"{value}"
