"""The spread over seeds of the rows of a board, from published studies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from benchmark.records.record import Record
from benchmark.records.study import PublishedStudy
from benchmark.records.study_table import Column, Spread, columns
from benchmark.specs.seeds import robust_label, study_name, variant_of
from benchmark.specs.study import Verdicts
from benchmark.specs.submission import VariantOnTrack
from benchmark.specs.track import Track


@dataclass(frozen=True)
class Trainings:
    """A row's trainings: by headline number the spread, a share of images, and the verdicts of each training."""

    study: str
    seeds: tuple[int, ...]
    spreads: Mapping[str, Spread]
    verdicts: Mapping[str, tuple[str, ...]]


def trainings(records: Sequence[Record], track: Track, studies: Sequence[PublishedStudy]) -> dict[str, Trainings]:
    """Return by row the published study over its seeds, if it has the same rules, images and settings as the row."""
    by_id = {study.result.id: study for study in studies}
    trainings_of = {}
    for record in records:
        study = by_id.get(study_name(record.row))
        if study is not None and _is_of(study, record):
            trainings_of[record.row] = _trainings(study, track)
    return trainings_of


def belongs_on_page(study: PublishedStudy, record: Record) -> bool:
    """Whether a row's page shows a study: its submission's studies, and a study over seeds of this row alone."""
    if study.result.submission != record.submission:
        return False
    return variant_of(study.result.name) in ("", record.variant)


def _is_of(study: PublishedStudy, record: Record) -> bool:
    """Whether a study has the row's settings, with defaults for newer ones and without contributed attacks."""
    result = study.result
    try:
        settings = VariantOnTrack.model_validate(result.cells[0].settings)
    except ValidationError:
        return False
    same = (result.track_version, result.n) == (record.track_version, record.n)
    same = same and all(run.verdicts for run in result.runs)
    return same and settings == record.settings.model_copy(update={"adaptive": ()})


def _trainings(study: PublishedStudy, track: Track) -> Trainings:
    runs = study.result.runs
    spreads, verdicts = {}, {}
    for column in columns(study):
        name = _headline_name(column, track)
        spreads[name] = Spread(tuple(value for run in runs if (value := column.of(run.values[column.label])) is not None))
        verdicts[name] = tuple(_place(run.verdicts[column.label], column) for run in runs)
    return Trainings(study.result.id, tuple(run.seed for run in runs), spreads, verdicts)


def _place(verdicts: Verdicts, column: Column) -> str:
    return verdicts if isinstance(verdicts, str) else verdicts[column.index or 0]


def _headline_name(column: Column, track: Track) -> str:
    robust = {robust_label(threat): f"robust {threat.label}" for threat in track.threats}
    return f"certified L2 {column.x:g}" if column.x is not None else robust.get(column.label, column.label)
