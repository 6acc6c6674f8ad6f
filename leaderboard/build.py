"""Renders one track's board as a static site. `python -m leaderboard.build <track>`

Reads the records that the track's rows name, writes work/<track>/site and, beside those rows' names and for git to keep,
leaderboard.json and leaderboard.csv. Nothing is fetched when the site is viewed. Times differ from run to run, so they
stand in `times.js`, which no hash covers; the pages show them when the file is there.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import yaml
from PIL import Image
from pydantic import ValidationError
from safetensors.numpy import load_file

from benchmark.results import study_table
from benchmark.results.brought import FOLDER, lowered_all
from benchmark.results.claimed import ClaimedBoard
from benchmark.results.headline import headline
from benchmark.results.per_image import PerImage
from benchmark.results.record import Record
from benchmark.runtime import errors
from benchmark.specs.submission import is_web_address
from benchmark.specs.track import Track
from leaderboard.charts import reliability_charts
from leaderboard.rank import Row, columns, heads, rank
from leaderboard.study_pages import on_page

HERE = Path(__file__).parent
WORK = Path("work")
PUBLISHED = HERE / "results"
PICTURES = 12  # images shown on a model's page


def build(name: str, *options: str) -> None:
    """Writes the board of track `name`; an explained empty page when it has no record.

    Args:
        options: `all` for the board with the rows that the default one leaves out, in a folder of its own; `--times` to
            write anew how long stages took, and nothing else; `--partial` for a board without the rows that
            work/<track>/partial/missing.json names, in that folder.
    """
    track = Track.model_validate({"name": name, **yaml.safe_load(Path(f"benchmark/tracks/{name}.yaml").read_text())})
    named, work = Path("pipelines") / name / ("_all" if "all" in options else ""), WORK / name
    folder = work / "partial" if "--partial" in options else work / "all" if "all" in options else work
    numbers = folder if "--partial" in options else named
    missing = json.loads((folder / "missing.json").read_text()) if "--partial" in options else {}
    wanted = json.loads((named / "rows.json").read_text())
    studies = study_table.read(PUBLISHED / name / "studies")
    records = [read_record(work / row / "record" / "record.json") for row in wanted if row not in missing]
    images = {record.row: read_images(work / record.row / "record" / "per_image.json") for record in records}
    records, images, brought = lowered_all(PUBLISHED / name / FOLDER, records, images)
    rows = rank(records, track, images, studies, brought)
    if "--times" in options:
        write_times(folder / "site", work, rows)
        return
    _write(numbers / "leaderboard.json", json.dumps(metrics(rows), indent=1, sort_keys=True) + "\n")
    _write(numbers / "leaderboard.csv", table(rows, track))
    site = folder / f".site.{os.getpid()}"
    shutil.rmtree(site, ignore_errors=True)
    ages = read_ages(work / "inputs" / "study_ages.json") if studies else {}
    render(site, track, rows, work, read_claimed(Path("leaderboard/claimed") / name), ages, missing)
    write_times(site, work, rows)
    shutil.rmtree(folder / "site", ignore_errors=True)
    os.replace(site, folder / "site")
    print(f"{len(rows)} rows: open {folder / 'site' / 'index.html'}")


def read_record(path: Path) -> Record:
    """A record; exits with one line when it is missing or not one."""
    try:
        return Record.model_validate_json(path.read_text())
    except FileNotFoundError:
        sys.exit(f"error: {path} is missing; run `rvb repro` to build it")
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        sys.exit(f"error: {path} is no record ({place}: {first['msg']}); delete it and run `rvb repro`")


def read_images(path: Path, again: str = "delete the row's folder and run `rvb repro`") -> dict[str, str]:
    """By name of a number, a digit an image; exits with one line when the file is missing or damaged."""
    try:
        return PerImage.model_validate_json(path.read_text()).scores
    except FileNotFoundError:
        sys.exit(f"error: {path} is missing; {again}")
    except ValidationError as error:
        sys.exit(f"error: {path} holds no numbers by image ({error.errors()[0]['msg']}); {again}")


def read_claimed(folder: Path) -> list[ClaimedBoard]:
    """What other boards say, by file; exits with one line when a file is not such a board."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(ClaimedBoard.model_validate_json(path.read_text()))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            sys.exit(f"error: {path} holds no claimed rows ({place}: {first['msg']}); import it again or delete it")
    return found


def read_ages(path: Path) -> dict[str, list[str]]:
    """By published study why it is not today's; exits with one line when the file is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        sys.exit(f"error: {path} is missing; run `rvb repro` to build it")
    except ValueError as error:
        sys.exit(f"error: {path} is no valid JSON ({error}); delete it and run `rvb repro`")


def metrics(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Headline numbers by row, for `dvc metrics`."""
    return {row.record.row: {name: p.value for name, p in headline(row.record).items()} for row in rows}


def table(rows: list[Row], track: Track) -> str:
    """The board as CSV, for `dvc plots`: a line a row; numbers that a model lacks are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *columns(track)])
    for row in rows:
        writer.writerow([row.record.row, *("" if cell is None else cell.value for cell in row.cells)])
    return text.getvalue()


def write_times(site: Path, folder: Path, rows: list[Row]) -> None:
    _write(site / "times.js", f"const TIMES = {json.dumps(times(folder, rows), sort_keys=True)};\n")


def times(folder: Path, rows: list[Row]) -> dict[str, dict[str, float]]:
    """Wall seconds of training and of everything after it, by row, where this machine measured them."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        seconds = {
            path.stem: json.loads(path.read_text())["wall_seconds"]
            for path in sorted((folder / row.record.row / "times").glob("*.json"))
        }
        if "train" in seconds:
            training = seconds.pop("train")
            found[row.record.row] = {"evaluation": round(sum(seconds.values()), 1)}
            if row.record.training:  # where weights were only taken over, nothing was trained
                found[row.record.row]["training"] = round(training, 1)
    return found


def render(
    site: Path,
    track: Track,
    rows: list[Row],
    folder: Path,
    claimed: Sequence[ClaimedBoard] = (),
    ages: Mapping[str, Sequence[str]] = MappingProxyType({}),
    missing: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes every page of the site into the new folder `site`; `ages` says by study why it is not today's, `missing` by
    row why the board lacks it."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.tests["web_address"] = is_web_address
    pages.filters["percent"] = lambda value: f"{100 * value:.1f}"
    shutil.copytree(HERE / "static", site / "static")
    shown = {"track": track, "rows": rows, "columns": columns(track), "heads": heads(columns(track)), "ages": ages}
    _write(
        site / "index.html", pages.get_template("board.html").render(root="", claimed=claimed, missing=missing, **shown)
    )
    tables = [study_table.table(published) for published in study_table.read(PUBLISHED / track.name / "studies")]
    for row in rows:
        source, target = folder / row.record.row / "record", site / "models" / row.record.row
        evidence = pq.read_table(source / "evidence.parquet")
        target.mkdir(parents=True)
        shutil.copy(source / "record.json", target)
        for picture in row.record.pictures:
            (target / "pictures").mkdir(exist_ok=True)
            shutil.copy(source / "pictures" / picture.file, target / "pictures")
        pyarrow.csv.write_csv(evidence, target / "evidence.csv")
        details = {"evidence": evidence.to_pylist(), "pictures": pictures(source, evidence.to_pylist(), row.record)}
        details["charts"] = reliability_charts(row.record)
        details["studies"] = on_page(row.record, tables, ages, target)
        text = pages.get_template("model.html").render(root="../../", row=row, **shown, **details)
        _write(target / "index.html", text)


def pictures(source: Path, evidence: list[dict[str, Any]], record: Record) -> list[dict[str, Any]]:
    """The first evaluation images as the model saw them: clean, then under each attack whose images are kept."""
    images = load_file(source / "images.safetensors")
    kept = [attack.id for attack in record.attacks if attack.id in images]
    return [
        {
            "image": index,
            "label": seen["label"],
            "clean": {"src": _png(images["clean"][index]), "prediction": seen["clean_prediction"]},
            "attacked": [
                {
                    "attack": attack,
                    "src": _png(images[attack][index]),
                    "prediction": seen[f"{attack}:prediction"],
                    "success": seen[f"{attack}:success"],
                }
                for attack in kept
            ],
        }
        for index, seen in enumerate(evidence[:PICTURES])
    ]


def _png(image: np.ndarray) -> str:
    """(c, h, w) in [0, 1] to a data URI; the browser scales it."""
    pixels = np.rint(image * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


if __name__ == "__main__":
    errors.run(lambda: build(*sys.argv[1:]))
