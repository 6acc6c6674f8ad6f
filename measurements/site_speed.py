"""How long a site of many rows takes to build, how large its board is, and how long the board takes to sort and to filter.

    python measurements/site_speed.py [rows [images [kind of pages ...]]]

Writes synthetic rows (1,000 of 10,000 images unless told otherwise) into a temporary folder, and builds their site from
Records that are read already: ranks, tables, and each kind of pages of leaderboard/build.py (or those
named, such as `boards`): seconds by the clock, and those of processors, which count less what else runs on the machine.
Rows share one file of evidence and one of images. Then headless Chromium opens the board and times sorting and filtering
up to the finished layout: the median of RUNS each, beside the bytes.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from browsers import chromium, complaints
from safetensors.numpy import save_file
from tiny_record import record

from benchmark.loading import tracks
from benchmark.results.record import Record
from leaderboard import build
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank
from leaderboard.site import Site

RUNS = 9
TRACK = tracks.load("digits")
CLICK = "document.querySelectorAll('{}')[{}].click()"
PUT = "const box = document.getElementById('{}'); box.value = box.value ? '' : '{}'; box.dispatchEvent(new Event('{}'))"
STEPS = {
    "sort by clean": CLICK.format(".board thead button", 2),
    "filter by text": PUT.format("find", "width 7", "input"),
    "filter by norm": PUT.format("norm", "certified in L2", "change"),
    "all numbers": CLICK.format("#all", 0),
    "sort by AutoAttack L2 0.5, all numbers": CLICK.format(".board thead button", 6),
    "filter by text, all numbers": PUT.format("find", "width 7", "input"),
}
TIMED = "const begun = performance.now(); {}; document.body.offsetHeight; return performance.now() - begun"


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:3]]
    rows, images = (*sizes, *(1000, 10_000)[len(sizes) :])
    kinds = [pages for pages in build.PAGES if not sys.argv[3:] or pages.__name__.rpartition(".")[2] in sys.argv[3:]]
    print(f"{platform.machine()}, {os.cpu_count()} cores; {rows} rows of {images} images; seconds\n")
    with tempfile.TemporaryDirectory() as folder:
        site = measure(Path(folder), rows, images, kinds)
        look(site, Path(folder) / "profile")


def measure(folder: Path, count: int, images: int, kinds: list[Any]) -> Path:
    """Prints what each part of the build takes; the site."""
    records, scores = synthetic(folder, count, images)
    board: list[Board] = []
    begun = time.perf_counter()
    timed("ranks", lambda: board.append(Board(TRACK, rank(records, TRACK, scores), folder, images=scores)))
    timed("tables", lambda: (build.metrics(board[0].rows), build.table(board[0].rows, TRACK)))
    site = Site(folder / "site")
    timed("static files", lambda: static(site))
    for pages in kinds:
        timed(pages.__name__, lambda pages=pages: pages.write_pages(site, board[0]))
    print(f"whole site: {time.perf_counter() - begun:.2f}")
    (folder / "site" / "times.js").write_text("const TIMES = {};\n")
    print(f"board: {(folder / 'site' / 'index.html').stat().st_size:,} bytes")
    return folder / "site"


def static(site: Site) -> None:
    from leaderboard.charts import vega

    for path in sorted(build.STATIC.iterdir()):
        site.copy(f"static/{path.name}", path)
    site.write(vega.SCRIPT, vega.script())


def synthetic(folder: Path, count: int, images: int) -> tuple[list[Record], dict[str, dict[str, str]]]:
    """Rows whose models differ in skill; images differ in difficulty. A third has a certificate."""
    draws, records, scores = np.random.default_rng(0), [], {}
    difficulty = draws.normal(0, 1, images)
    shared = folder / "shared"
    shared.mkdir()
    evidence(shared, images)
    for place in range(count):
        skill = draws.normal(0, 1)
        right = {
            f"robust {threat.label}": (skill - loss + difficulty + draws.normal(0, 0.7, images) > 0).astype(np.uint8)
            for loss, threat in enumerate(TRACK.threats)
        }
        made = one(place, right, images, certified=place % 3 == 0)
        scores[made.row] = {name: (found + ord("0")).tobytes().decode() for name, found in right.items()}
        home = folder / made.row / "record"
        home.mkdir(parents=True)
        (home / "record.json").write_text(made.model_dump_json())
        for name in ("evidence.parquet", "images.safetensors"):
            os.link(shared / name, home / name)
        records.append(made)
    return records, scores


def one(place: int, right: dict[str, np.ndarray], images: int, certified: bool) -> Record:
    """A row of its own submission, whose robust counts are those of `right`."""
    name = f"Author{1000 + place}Word"
    made = record(name, 0, 0, f"Vision transformer of width {place}", 20 if certified else None, 50).model_dump()
    for robust, found in zip(made["robust"], right.values(), strict=True):
        robust["accuracy"] |= share(int(found.sum()), images)
    for word in ("certified", "smoothed"):
        made[word] = every_radius(made[word], place, images)
    made["clean"] |= share(images - 7 * place % images // 4, images)
    made |= {"n": images, "parameters": 10_000 + 977 * place, "flops": 100_000 + 7919 * (place * 37 % 1000)}
    made["paper"] |= {"title": f"On the robustness of models, part {place}", "authors": "Author, Other and Third"}
    return Record.model_validate(made)


def every_radius(found: Any, place: int, images: int) -> Any:
    """As `found`, at each of the track's radii."""
    lines = found["certified"] if isinstance(found, dict) else found
    made = [
        {**line, "threat": {"norm": "L2", "eps": radius}, "accuracy": share((1 + place * 31 % images) // loss, images)}
        for line in lines
        for loss, radius in enumerate(TRACK.certified_radii, 1)
    ]
    return {**found, "certified": made} if isinstance(found, dict) else made


def share(count: int, n: int) -> dict[str, Any]:
    value = count / n
    return {"value": value, "low": max(0, value - 0.01), "high": min(1, value + 0.01), "count": count, "n": n}


def evidence(folder: Path, images: int) -> None:
    """What a stage leaves of every image, and the images that a page shows."""
    draws = np.random.default_rng(1)
    columns: dict[str, Any] = {"image": np.arange(images), "label": draws.integers(0, 10, images)}
    columns |= {
        "clean_prediction": columns["label"],
        "clean_margin": draws.random(images),
        "certified_l2": draws.random(images),
    }
    pq.write_table(pa.table(columns), folder / "evidence.parquet")
    save_file({"clean": draws.random((100, 1, 8, 8), np.float32)}, folder / "images.safetensors")


def timed(name: str, call: Callable[[], object]) -> None:
    begun, worked = time.perf_counter(), processor()
    call()
    print(f"{name}: {time.perf_counter() - begun:.2f}, of processors {processor() - worked:.2f}", flush=True)


def processor() -> float:
    """Seconds that this process and those it has waited for have had of processors, whatever else ran."""
    return sum(os.times()[:4])


def look(site: Path, profile: Path) -> None:
    """Prints the milliseconds of each step of STEPS, and what the console says is wrong."""
    with chromium(profile) as browser:
        browser.set_window_size(1440, 1000)
        browser.get(f"file://{site}/index.html")
        for name, step in STEPS.items():
            took = [browser.execute_script(TIMED.format(step)) for _ in range(RUNS)]
            print(f"{name}: {statistics.median(took):.0f} ms, at most {max(took):.0f}", flush=True)
        print(f"console: {complaints(browser) or 'no error'}")


if __name__ == "__main__":
    main()
