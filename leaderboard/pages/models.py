"""A page for each row, in the order of a reader's questions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.specs import components
from benchmark.specs.track import Track
from leaderboard.charts.lines import reliability_charts
from leaderboard.charts.per_image import per_image
from leaderboard.charts.sandwich import sandwich
from leaderboard.charts.training import read_history, training_charts
from leaderboard.citation import bibtex, bibtex_of_row
from leaderboard.formats import robustbench
from leaderboard.image_radii import ImageRadii, held
from leaderboard.pages.board_data import Board
from leaderboard.pages.model_evidence import WHOLE, evidence_csv, evidence_table
from leaderboard.pages.model_images import PICTURES, pictures, settled, state, words
from leaderboard.pages.papers import shown
from leaderboard.rank import Row, out_of_reach
from leaderboard.record_claims import compare
from leaderboard.seeds import belongs_on_page
from leaderboard.site import Site
from leaderboard.verdict import verdict

OWN = " (the submission's own)"


def write_page(site: Site, board: Board, row: Row, evidence: pa.Table | None, images: ImageRadii) -> None:
    """Write the page and what it links to; `evidence` is None of a row that is published and not built here."""
    record, place = row.record, f"models/{row.record.row}"
    source = board.source(record.row)
    if source:
        for picture in record.pictures:
            site.copy(f"{place}/pictures/{picture.file}", source / "pictures" / picture.file)
    citation = bibtex(record.submission, record.paper)
    site.write(f"{place}/paper.bib", citation)
    tables = (table for table in board.tables if belongs_on_page(table.study, record))
    studies, sheets = shown(tables, board.reproduced)
    charts = {"sandwich": sandwich(images, board.marks, board.attacked), "radii": per_image(images)}
    training = training_charts(record, read_history(board.folder / record.row, record))
    for chart in (*charts.values(), *training):
        if chart is not None:
            sheets[chart.file] = chart.csv
    for name, text in sheets.items():
        site.write(f"{place}/{name}", text)
    exported = robustbench(record, board.track)
    for file, content in exported.items():
        site.write(file, json.dumps(content, indent=2) + "\n")
    text = board.render(
        "model.html", "../../", row=row, headline=board.headline, sandwich=charts["sandwich"], radii=charts["radii"],
        on_attacked=_on_attacked(board, row, images), settled=settled(images, board.marks),
        attacked=images.n, distances=images.distances, beyond=out_of_reach(board.track),
        claims=compare(row, board.columns), studies=studies,
        verdict=verdict(record, row.contributions, len(row.trainings.seeds) if row.trainings else 0),
        curves=reliability_charts(record), shown=pictures(source, evidence, record) if source else None,
        shown_radius=_shown_radius(board.track),
        states=_states(images, _shown_radius(board.track)), training=training, recipe=[*recipe(record)],
        own_score=_scored_by_own(record), own_words=OWN,
        commands=commands(row), citation=citation,
        row_citation=bibtex_of_row(record), robustbench=exported,
        evidence=evidence_table(evidence, images, record) if evidence else None, whole=WHOLE,
        weights=_weights(site, board, record),
    )  # fmt: skip
    site.write(f"{place}/index.html", text)
    if evidence:
        site.write(f"{place}/evidence.csv", evidence_csv(evidence).to_pybytes())


def _weights(site: Site, board: Board, record: Record) -> str:
    """Put published weights beside the page and return their size in words; "" if none are published."""
    path = board.published / "weights" / f"{record.row}.safetensors"
    weights = path.read_bytes() if path.exists() else b""
    if files.sha256_bytes(weights) != record.sha256.get("weights"):
        return ""
    site.write(f"models/{record.row}/model.safetensors", weights)
    return f"{len(weights) / 2**20:.1f} MiB"


def _shown_radius(track: Track) -> float | None:
    """Return the l2 radius at which images are called certified, broken or between: the middle certified one."""
    radii = track.certified_radii or [threat.eps for threat in track.threats if threat.norm == "L2"]
    return sorted(radii)[len(radii) // 2] if radii else None


def _on_attacked(board: Board, row: Row, images: ImageRadii) -> dict[str, int]:
    """Return by large number counted on more images than were attacked how many of the attacked images it counts."""
    names = [board.columns[column] for *_, column in board.headline]
    counts = {"clean": int(images.right.sum())}
    if "certified" in images.reaches:
        radii = [(name, float(name.split()[-1])) for name in names if name.startswith("certified")]
        counts |= {name: int(held(images.reaches["certified"], np.array([radius]))[0]) for name, radius in radii}
    cells = dict(zip(board.columns, row.cells, strict=True))
    return {name: counts[name] for name in names if name in counts and (p := cells[name]) and p.n != images.n}


def _states(images: ImageRadii, radius: float | None) -> list[tuple[str, str]]:
    few = range(min(images.n, PICTURES))
    return [(state(images, i, radius) if radius is not None else "", words(images, i)) for i in few]


def recipe(record: Record) -> Iterator[tuple[str, str]]:
    """Return the settings that differ from the defaults: dotted names and values.

    Training components that the benchmark does not define are marked as the submission's own.
    """
    settings = record.settings.model_dump(mode="json", exclude_defaults=True, exclude={"adaptive"})
    if training := settings.get("training"):
        named = [("training", "objective", training)]
        named += [("training/penalties", "name", penalty) for penalty in training.get("penalties", ())]
        named += [("training/prepare", "name", step) for step in training.get("prepare", ())]
        for kind, key, entry in named:
            if _is_own(kind, entry[key]):
                entry[key] += OWN
    yield from _flat("", settings)


def _is_own(kind: str, name: str) -> bool:
    """Return whether a component that a submission names is none of the benchmark's."""
    return not components.defines(components.component_file(kind, name), kind)


def _scored_by_own(record: Record) -> bool:
    """Return whether the score of the submission's own objective selected the epoch."""
    spec = record.settings.training
    return spec is not None and spec.selection.by == "objective" and _is_own("training", spec.objective)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif value not in ({}, [], None, ""):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def commands(row: Row) -> list[tuple[str, str]]:
    """Return commands, each with its purpose."""
    record = row.record
    name, track = record.row, f"--track {record.track}"
    lines = [
        ("Check it: what is stored if you built it, else a few attacks anew", f"rvb verify {name} {track}"),
        ("Rebuild every number: train, attack and certify again", f"rvb repro {name} {track}"),
        ("The whole board", f"rvb repro {track}"),
    ]
    if record.certificate:
        lines.insert(1, ("Try harder to break its certificate", f"rvb audit {name} {track}"))
    if record.training:
        lines.append(("Train it with other seeds", f"rvb study {name} seeds {track}"))
    return lines
