"""The data of a track's pages, and rendering a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from benchmark.records import study_table
from benchmark.records.reproduced import Reproduced
from benchmark.records.robustbench import ClaimedBoard
from benchmark.records.study import DeclaredPaper, PublishedStudy
from benchmark.specs.submission import is_web_address
from benchmark.specs.track import Track
from leaderboard.charts.sandwich import l2_radii, radii_of
from leaderboard.rank import TITLES, Row, ball, columns, common_radius, headline_columns, label, out_of_reach, ranking_name

TEMPLATES = Path(__file__).parent.parent / "templates"


@dataclass(frozen=True)
class About:
    """The contents of the foot of each page. Commit and day are "" if git knows none.

    Attributes:
        repository: the address of the source; "" for none.
        documentation: whether the documentation stands in docs/.
        address: where the site will be, ending in "/"; "" for one that is read from files.
        tracks: by submission those on which it has a published row or study, by name and title.
    """

    version: str
    commit: str = ""
    day: str = ""
    repository: str = ""
    documentation: bool = False
    tracks: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True)
class Board:
    """A track's rows in the order of its board, with what was published beside them.

    Attributes:
        folder: work/<track>, with the Records and evidence of rows that are built here.
        published: leaderboard/results/<track>; set for the whole site alone, since DVC does not follow its weights.
        claimed: what other boards say of the same data.
        reproduced: by row or study id when its published bytes were last reproduced.
        front: the way from the board to the front page of all tracks; "" where there is none.
        images: by row and name of a number, a digit an image (benchmark/records/per_image.py).
        papers: by submission what it declares on the track, run or not.
        about: of the whole site; None for the board of a track alone.
    """

    track: Track
    rows: Sequence[Row]
    folder: Path
    studies: Sequence[PublishedStudy] = ()
    claimed: Sequence[ClaimedBoard] = ()
    reproduced: Mapping[str, Reproduced] = field(default_factory=dict)
    front: str = ""
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    papers: Mapping[str, DeclaredPaper] = field(default_factory=dict)
    published: Path = Path()
    about: About | None = None

    @property
    def of_no_paper(self) -> bool:
        return of_no_paper(self.track)

    def source(self, row: str) -> Path | None:
        """Return the folder with a row's Record and evidence; None where the row is not built here."""
        folder = self.folder / row / "record"
        return folder if (folder / "record.json").exists() else None

    @cached_property
    def columns(self) -> list[str]:
        return columns(self.track)

    @cached_property
    def paired(self) -> list[str]:
        """Return the numbers that have one verdict an image: all but corruptions, and radii that no noise certifies."""
        beyond = out_of_reach(self.track)
        return [name for name in self.columns if name not in ("corrupted", *beyond)]

    @cached_property
    def headline(self) -> list[tuple[str, str, int]]:
        """Return what a model page's numbers in large are called, in which ball, and their column.

        They are clean accuracy, the robust one that ranks, and robust and certified accuracy at one l2 radius, if the
        track measures both at one.
        """
        names = headline_columns(self.track)
        if within := common_radius(self.track):
            ranked = [name for name in names if not name.startswith("certified")]
            names = list(dict.fromkeys([*ranked, f"robust {within}", f"certified {within}"]))
        parts = [(name, *name.partition(" ")[::2]) for name in names]
        return [(TITLES.get(kind, kind), ball(within), self.columns.index(name)) for name, kind, within in parts]

    @cached_property
    def ranking(self) -> str:
        return ranking_name(self.track)

    @cached_property
    def attacked(self) -> list[float]:
        """Return the l2 radii at which all rows are attacked."""
        return [threat.eps for threat in self.track.threats if threat.norm == "L2"]

    @cached_property
    def marks(self) -> list[float]:
        """Return the l2 radii that the track speaks of."""
        return l2_radii(self.track)

    @cached_property
    def radii(self) -> tuple[float, ...]:
        """Return evenly spaced l2 radii with `marks` among them; none if the track has none."""
        return radii_of(self.track)

    @cached_property
    def tables(self) -> list[study_table.Table]:
        return [study_table.table(_as_declared(study, self.papers)) for study in self.studies]

    def render(self, template: str, root: str, **shown: Any) -> str:
        """Return a page; `root` is the path from it to the site's folder, such as "../../"."""
        return ENVIRONMENT.get_template(template).render(root=root, board=self, **shown)


def _as_declared(study: PublishedStudy, papers: Mapping[str, DeclaredPaper]) -> PublishedStudy:
    """Return a study with the text and the claims that are declared now, where nothing else was changed since it was run."""
    paper = papers.get(study.result.submission)
    now = paper and paper.studies.get(study.result.name)
    if not now:
        return study
    words = ("title", "source", "note", "claims", "claims_comparable")
    told = study.study.model_copy(update={key: getattr(now, key) for key in words})
    return study.model_copy(update={"study": told}) if told == now else study


def of_no_paper(track: Track) -> bool:
    """Whether a track's data come with this repository: small data sets that no paper uses."""
    return track.data.path is None or track.data.path.startswith("benchmark/")


def short(count: int) -> str:
    """Return a count with three digits: 1.23k, 26.5k, 139k, 86.6M."""
    power = max(0, min(5, (len(str(count)) - 1) // 3))
    return f"{float(f'{count / 1000**power:.3g}'):g}{('', 'k', 'M', 'G', 'T', 'P')[power]}"


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    auto_reload=False,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.tests["web_address"] = is_web_address
ENVIRONMENT.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
ENVIRONMENT.filters["percent"] = lambda value: f"{100 * value:.1f}"
ENVIRONMENT.filters["printed"] = study_table.Column("a claim", share=True).printed
ENVIRONMENT.filters["short"] = short
ENVIRONMENT.filters["ball"] = ball
ENVIRONMENT.filters["label"] = label
ENVIRONMENT.filters["prose"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
ENVIRONMENT.filters["balls"] = lambda text: re.sub(r"\bL(?:inf|2) 0\.\d{3,}", lambda match: ball(match[0]), text)
