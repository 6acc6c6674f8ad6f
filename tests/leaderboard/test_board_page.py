"""The board's page says what its rows say: three numbers first, ties by name and test, all text as data."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from seeds_study import published, verdicts
from site_rows import board_row
from tiny_record import record

from benchmark.records.record import Record
from benchmark.specs import tracks
from leaderboard.charts.overview import front, overview
from leaderboard.pages import boards
from leaderboard.pages.board_data import Board, short
from leaderboard.rank import columns, common_radius, headline_columns, rank
from leaderboard.site import Site

TRACK = tracks.load("digits")
TRACK_NAMES = columns(TRACK)
HOSTILE = "<script>window.broken = 1</script> \u202eevil\u202c & \"quoted\" 'too' </script><!-- " + "x" * 10_000


def images(*records: Record) -> dict[str, dict[str, str]]:
    """Verdicts in which the first images are right, of the two first robust numbers."""
    return {made.row: {f"robust {r.threat.label}": verdicts(r.accuracy.count) for r in made.robust[:2]} for made in records}


def page(folder: Path, records: list[Record], *studies) -> str:
    rows = rank(records, TRACK, images(*records), studies)
    boards.write_pages(Site(folder), Board(TRACK, rows, folder, images=images(*records)))
    return (folder / "index.html").read_text()


def tip(index: str, row: str) -> str:
    content = re.search(r'role="tooltip"[^>]*>(.*?)</span>', board_row(index, row), re.S)
    return html.unescape(content[1]) if content else ""


def test_a_tab_a_threat_shows_its_numbers_and_the_rest_stand_behind_the_switch(tmp_path) -> None:
    assert headline_columns(TRACK) == ["clean", "robust Linf 0.15", "certified L2 0.5"]
    even = TRACK.model_copy(update={"certified_radii": (0.02, 0.05, 0.1, 0.14), "suites": {}})
    assert headline_columns(even) == ["clean", "certified L2 0.1"]
    photographs = tracks.load("cifar10_jpeg")
    assert [common_radius(track) for track in (TRACK, even, photographs)] == ["L2 0.5", "", "L2 0.1412"]
    real = Board(photographs, rank([], photographs), tmp_path)
    assert [view.title for view in boards.views(real)] == ["Linf 2/255", "Linf 8/255", "L2 36/255", "L2 0.5", "certified"]
    index = page(tmp_path, [record("A", 70, 30, certified=20, smoothed=50), record("B", 40, 10)])
    assert [(view.title, view.names) for view in boards.views(Board(TRACK, [], tmp_path))] == [
        ("Linf 0.15", ("clean", "robust Linf 0.15", "certified L2 0.5")),
        ("L2 0.5", ("clean", "robust L2 0.5", "certified L2 0.5", "smoothed L2 0.5")),
        ("L2 1", ("clean", "robust L2 1")),
        ("certified", ("clean", "certified L2 0.5", "certified L2 0.1", "certified L2 0.25")),
    ]
    assert "Models of the closed division have one" in " ".join(index.split()), "a smoothed version"
    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", index.partition("<thead>")[2].partition("</thead>")[0])
    assert [head.replace("<br>", " ").strip() for head in heads] == [
        "rank", "model", "clean", "robust Linf 0.15", "robust L2 0.5", "robust L2 1", "certified L2 0.1", "certified L2 0.25",
        "certified L2 0.5", "smoothed L2 0.1", "smoothed L2 0.25", "smoothed L2 0.5", "robust any L2", "certified any L2",
        "smoothed any L2", "trust", "parameters", "FLOPs", "training, s", "evaluation, s",
    ]  # fmt: skip
    assert ":is(:nth-child(n+17), :nth-child(5), :nth-child(6), :nth-child(7), :nth-child(8)," in index, "hidden at first"
    numbers = re.findall(r"<b>([0-9.]+)</b>|>(–)<", board_row(index, "A-v").partition("</th>")[2])
    assert [number or dash for number, dash in numbers] == [
        "97.0", "70.0", "30.0", "0.0", "20.0", "–", "–", "50.0", "–", "–", "–", "–",
    ]  # fmt: skip
    labels = re.findall(r'td:nth-child\((\d+)\)::before { content: "(.*?)"; }', index)
    assert [text.replace("\\A ", " ").strip() for _, text in labels] == [
        heads[int(k) - 1].replace("<br>", " ").strip() for k, _ in labels
    ]
    assert len(labels) == len(heads) - 3 - 3, "every number of a card says what it is; the script labels those at any radius"


def test_a_rank_says_with_which_rows_it_is_tied_and_by_which_test(tmp_path) -> None:
    counts = {"A": (70, 30), "B": (68, 80), "C": (30, 10), "D": (1, 0)}
    records = [record(name, *right, title=f"Model {name}") for name, right in counts.items()]
    index = page(tmp_path, records, published("A", [70, 70, 71]), published("C", [30, 80, 90, 20, 70]))
    assert tip(index, "A-v") == (
        "McNemar's exact test over the images does not tell it from \u2068Model B\u2069 (p 0.5) (an order needs p of at most "
        "0.0083). Not ordered against \u2068Model C\u2069: the images alone would, images and seeds together (Welch's interval) do not."
    )
    assert "does not tell it from \u2068Model A\u2069 (p 0.5)" in tip(index, "B-v")
    assert tip(index, "D-v") == ""
    assert "button" not in board_row(index, "D-v").partition("</td>")[0], "nothing to be said of a rank that is settled"
    content, place = numbers(index), TRACK_NAMES.index("robust L2 0.5")
    assert [own[place] for own in content["ranks"]] == ["1", "2-3", "2-3", "4"], "B, of ranks 1 to 2, stands before A"


def test_of_many_tied_rows_the_nearest_are_named_and_the_rest_counted(tmp_path) -> None:
    index = page(tmp_path, [record(f"R{place:02}", 40, 10, title=f"{place} " + "x" * 50) for place in range(30)])
    named = ", ".join(f"\u2068{place} {'x' * 37}…\u2069 (p 1)" for place in (12, 13, 14, 16, 17, 18))
    assert f"does not tell it from {named} and 23 more (an order" in tip(index, "R15-v")
    unknown = rank([record("A", 40, 10), record("B", 30, 10, title="Other")], TRACK)
    words = boards.tied(unknown[0], Board(TRACK, unknown, tmp_path), {"A-v": 0, "B-v": 1})
    assert "verdicts by image are missing, with \u2068Other" in words


def test_without_script_the_board_is_whole_and_sorted_and_what_needs_one_is_hidden(tmp_path) -> None:
    index = page(tmp_path, [record("B", 40, 10), record("A", 70, 30)])
    assert re.findall(r'<tr data-row="(.*?)">', index) == ["A-v", "B-v"]
    scripted = r'<(span|fieldset|details|p) class="[a-z ]+" hidden>.*?</\1>'
    plain = re.sub(scripted, "", index, flags=re.S)
    assert re.findall(r"<(?:input|select)[^>]*>", plain) == ['<input type="checkbox" id="all">']
    assert not re.search(r"\son[a-z]+=", index)


def numbers(index: str) -> dict:
    return json.loads(index.partition('id="numbers">')[2].partition("</script>")[0])


def test_hostile_text_is_data(tmp_path) -> None:
    made = record("Hostile", 40, 30).model_dump() | {"title": HOSTILE, "division_reasons": [HOSTILE]}
    made["paper"] |= {"title": HOSTILE, "authors": HOSTILE, "url": ""}
    index = page(tmp_path, [Record.model_validate(made), record("Other", 70, 30)])
    assert "<script>window" not in index
    assert "<!-- x" not in index
    assert f"<bdi>{html.escape(HOSTILE[:30])}" in index
    assert numbers(index)["papers"]["Hostile"] == f"{HOSTILE[:80]} (2026): {HOSTILE[:80]}"
    assert index.count("x" * 10_000) == 1, "a long name stands once"


def test_the_script_sorts_by_exact_counts_and_chooses_by_norms_and_tiers_that_are_there(tmp_path) -> None:
    index = page(tmp_path, [record("A", 70, 30, certified=20, smoothed=50), record("B", 40, 10)])
    content = numbers(index)
    assert content["names"] == TRACK_NAMES
    assert content["rows"] == [
        [97, 70, 30, 0, 20, None, None, 50, None, None, 1234, 5678],
        [97, 40, 10, 0, *[None] * 6, 1234, 5678],
    ]
    assert re.findall(r"<option>(.*?)</option>", index) == [
        "A", "B", "certified in L2", "robust in L2", "robust in Linf", "smoothed in L2", "other", "without attacks", "none",
        "10 GPU-minutes", "1 GPU-hour", "3 core-hours", "rebuilt",
    ]  # fmt: skip
    assert "<span>L2 certificate</span>" in board_row(index, "A-v")
    assert "certificate" not in board_row(index, "B-v")


def test_a_row_takes_few_bytes(tmp_path) -> None:
    """1,000 rows with names of usual length, in 2,000,000 bytes with the script's own numbers of 10,000 images."""

    def size(count: int) -> int:
        made = [
            record(f"Submission2026Word{place:04}", place % 90, 30, f"Vision transformer of width {place}", 20, 50)
            for place in range(count)
        ]
        return len(page(tmp_path, made).encode())

    assert (size(120) - size(20)) / 100 < 1800


points = st.lists(st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(0, 5)), max_size=12)


@given(points)
def test_a_front_holds_what_no_other_surpasses(content) -> None:
    for place, (x, y) in enumerate(content):
        complete = [p for p in content if None not in p]
        surpassed = None in (x, y) or any(a >= x and b >= y and (a, b) != (x, y) for a, b in complete)
        assert front(content)[place] is not surpassed


def test_the_charts_hold_the_boards_numbers_and_name_the_fronts(tmp_path) -> None:
    records = [record("A", 70, 30, title="Best"), record("B", 40, 10, certified=30), record("C", 70, 20, title="Equal")]
    charts = overview(rank(records, TRACK, images(*records)), TRACK)
    assert [chart.name for chart in charts] == ["accuracies", "cost"]
    page(tmp_path, records)
    for chart in charts:
        read = list(csv.DictReader((tmp_path / chart.file).open()))
        assert [(line["row"], line["clean"], line["attacked"], line["certified"]) for line in read] == [
            ("A-v", "97.0", "70.0", ""), ("C-v", "97.0", "70.0", ""), ("B-v", "97.0", "40.0", ""),
        ]  # fmt: skip
        assert [line["front"] for line in read] == ["attacked", "attacked", ""]
    assert charts[0].words == (
        "3 models. Pareto front for robust Linf 0.15: Best (70.0, clean 97.0); Equal (70.0, clean 97.0). Pareto front for "
        "certified L2 0.5: none."
    )
    assert "5,678 FLOPs" in charts[1].words
    assert overview([], TRACK) == []


def test_no_file_of_the_board_changes_by_itself(tmp_path) -> None:
    records = [record("A", 70, 30), record("B", 40, 10)]
    first, again = page(tmp_path / "first", records), page(tmp_path / "again", records)
    assert first == again
    assert {path.name for path in (tmp_path / "first").iterdir()} == {"index.html", "accuracies.csv", "cost.csv"}


def test_large_counts_are_short() -> None:
    counts = {0: "0", 999: "999", 1234: "1.23k", 26538: "26.5k", 86_567_656: "86.6M"}
    assert {count: short(count) for count in counts} == counts


def test_an_architecture_is_read_from_the_settings_of_the_model() -> None:
    models = {
        "XCiT": {"architecture": "xcit", "heads": 4}, "CNN": {"network": "4c3f"}, "ViT": {"mixer": "attention", "heads": 4},
        "convolution as mixer": {"mixer": "convolution"}, "other": {},
    }  # fmt: skip
    made = record("A", 70, 30)
    for family, model in models.items():
        settings = made.settings.model_copy(update={"model": model})
        assert boards.architecture(made.model_copy(update={"settings": settings})) == family


def test_a_track_without_attacks_draws_what_is_certified(tmp_path) -> None:
    track = TRACK.model_copy(update={"suites": {}})
    charts = overview(rank([record("A", 70, 30, certified=20), record("B", 40, 10)], track), track)
    assert charts[0].lines[0][charts[0].heads.index("attacked")] is None
    assert "Pareto front for certified L2 0.25" in charts[0].words
    assert "robust" not in charts[0].words + str(charts[0].spec)
