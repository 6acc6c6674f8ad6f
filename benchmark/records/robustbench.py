"""RobustBench's published rows (`model_info/<dataset>/<threat model>/<name>.json`), read and written.

Units there: accuracies are percent, mostly as strings; eps is a fraction such as "8/255" or a decimal, in pixels of
[0, 1]. Rows that are read become `claimed`; rows that are written name their evidence in a footnote.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError, explain
from benchmark.specs.base import Frozen
from benchmark.specs.submission import WebAddress
from benchmark.specs.threat import Radius, ThreatModel, plain_number
from benchmark.specs.track import Track

CLAIMED = Path("leaderboard/claimed")
SAME = 1e-5  # relative difference up to which two radii are the same


# a fraction, from a number or text in percent
Percent = Annotated[
    float,
    BeforeValidator(plain_number),
    Field(ge=0, le=100, allow_inf_nan=False),
    AfterValidator(lambda percent: percent / 100),
]
Text = Annotated[str, BeforeValidator(lambda text: text or "")]
Share = Field(ge=0, le=1, allow_inf_nan=False)


class ClaimedRow(Frozen):
    """One model's numbers as they are published, none of them measured here. Accuracies are fractions.

    `external` is the robust accuracy under somebody's other attack, where that is lower than AutoAttack's. `source` is the
    published file, `sha256` its digest.
    """

    name: str = Field(min_length=1)
    title: str
    authors: str
    venue: str = ""
    link: WebAddress = ""
    architecture: str
    additional_data: bool | None = None
    threat: ThreatModel
    clean: float = Share
    autoattack: float = Share
    external: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    unreliable: bool = False
    footnote: str = ""
    source: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def robust(self) -> float:
        """The lowest robust accuracy known."""
        return self.autoattack if self.external is None else min(self.autoattack, self.external)

    @model_validator(mode="after")
    def _plausible(self) -> ClaimedRow:
        if self.robust > self.clean:
            raise ValueError(f"robust accuracy {self.robust:g} above clean accuracy {self.clean:g}")
        return self


class ClaimedBoard(Frozen):
    """`leaderboard/claimed/<track>/<board>.json`: the rows of another board that fit a track's data set and radii."""

    board: str
    url: str
    rows: tuple[ClaimedRow, ...]


class _File(BaseModel):
    """The fields of a published row that are read; others are left alone."""

    title: str = Field(alias="name")
    authors: str
    dataset: str
    architecture: str
    eps: Annotated[Radius, Field(gt=0, allow_inf_nan=False)]
    clean: Percent = Field(alias="clean_acc")
    autoattack: Percent = Field(alias="autoattack_acc")
    external: Annotated[Percent | None, BeforeValidator(lambda text: None if text == "" else text)] = None
    additional_data: bool | None = None
    venue: Text = ""
    link: Text = ""
    footnote: Text = ""
    unreliable: Annotated[bool, BeforeValidator(lambda value: value or False)] = False


def read_board(folder: Path, track: Track) -> tuple[ClaimedBoard, list[str]]:
    """Return the rows of `folder` (RobustBench's model_info) of the track's data set and radii, by name.

    Also return a line for each file left out, with the reason: broken, or of another radius. Raise a BenchmarkError where
    there is no file.
    """
    if track.robustbench is None:
        raise BenchmarkError(f"track {track.name} says no `robustbench` data set, so none of its rows are comparable")
    norms = sorted({threat.norm for threat in track.threats})
    paths = [path for norm in norms for path in sorted((folder / track.robustbench / norm).glob("*.json"))]
    if not paths:
        raise BenchmarkError(f"{folder} holds no {track.robustbench}/{' or '.join(norms)}/*.json; give model_info itself")
    rows, left_out = [], []
    for path in paths:
        try:
            row = read_row(path, track.robustbench)
        except BenchmarkError as error:
            left_out.append(str(error))
            continue
        if fitting := next((t for t in track.threats if same_threat(t, row.threat)), None):
            rows.append(row.model_copy(update={"threat": fitting}))
        else:
            left_out.append(f"{path}: {row.threat.label} is none of the track's radii")
    board = ClaimedBoard(board="RobustBench", url="https://robustbench.github.io", rows=tuple(rows))
    return board, left_out


def read_row(path: Path, dataset: str) -> ClaimedRow:
    """Return one published row; its folder names the norm. Raise a BenchmarkError for a file that is no row of `dataset`."""
    row = files.read_model(path, _File, "mend it, or take it out")
    if row.dataset != dataset:
        raise BenchmarkError(f"{path}: is of data set {row.dataset!r}, not {dataset}")
    if row.clean <= 0.01:
        raise BenchmarkError(f"{path}: clean_acc looks like a fraction; RobustBench writes percent")
    try:
        threat = ThreatModel.model_validate({"norm": path.parent.name, "eps": row.eps})
        source = "/".join(("model_info", *path.parts[-3:]))
        fields = row.model_dump(exclude={"dataset", "eps"})
        return ClaimedRow(name=path.stem, threat=threat, source=source, sha256=files.sha256_file(path), **fields)
    except ValidationError as error:
        raise explain(error, ClaimedRow, str(path)) from None


def same_threat(first: ThreatModel, second: ThreatModel) -> bool:
    return first.norm == second.norm and math.isclose(first.eps, second.eps, rel_tol=SAME)


def exported(record: Record, track: Track, threat: ThreatModel) -> dict[str, Any]:
    """Return a Record's numbers at `threat` as a RobustBench row: the fields of its ModelInfo, `external` and `unreliable`.

    `autoattack_acc` is accuracy under AutoAttack alone, `external` the lower number where another attack broke more. Raise a
    BenchmarkError where the row was not attacked by AutoAttack.
    """
    attacked = [attack for attack in record.attacks if attack.spec.attack == "autoattack"]
    alone = next((attack.accuracy for attack in attacked if same_threat(attack.spec.threat, threat)), None)
    robust = next((robust for robust in record.robust if same_threat(robust.threat, threat)), None)
    if not alone or not robust:
        known = ", ".join(attack.spec.threat.label for attack in attacked) or "nothing"
        raise BenchmarkError(f"{record.row} was not attacked by AutoAttack at {threat.label}, but at {known}")
    name = f"robust {threat.label}"
    claimed = (claim.value for claim in record.claims if (claim.track, claim.metric) == (record.track, name))
    start = record.settings.training.init_from if record.settings.training else None
    more_data = start is not None and start.track not in (None, record.track)
    row = {
        "link": record.paper.url,
        "name": record.paper.title,
        "authors": record.paper.authors,
        "additional_data": more_data if record.trust == "rebuilt" else None,  # unknown of weights trained elsewhere
        "number_forward_passes": 1,
        "dataset": track.robustbench or track.name,
        "venue": "N/A",
        "architecture": record.title,
        "eps": _eps(robust.threat.eps),
        "clean_acc": _percent(record.clean.value),
        "reported": next(map(_percent, claimed), None),
        "autoattack_acc": _percent(alone.value),
        "footnote": f"robust-vit-bench: {record.trust}, track {record.track} version {record.track_version}, {record.n} test "
        f"images (seed {record.seed}), {robust.accuracy.n} attacked; robust accuracy {_percent(robust.accuracy.low)} to "
        f"{_percent(robust.accuracy.high)}, evidence sha256 {record.sha256.get('evidence', '')[:12]}.",
    }
    if robust.accuracy.count < alone.count:
        row["external"] = _percent(robust.accuracy.value)
    if record.reliability:
        row["unreliable"] = bool(record.reliability.failing)
    return row


def _percent(share: float) -> str:
    return str(round(100 * share, 2))


def _eps(value: float) -> str:
    """Return eps as RobustBench writes it: k/255 where it is that."""
    levels = round(255 * value)
    return f"{levels}/255" if levels and math.isclose(255 * value, levels, rel_tol=SAME) else f"{value!r}"
