"""The folder of pages, each row's files, how long stages took, and the front page with its feed and its site map."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import site_rows
import yaml
from tiny_project import ROOT
from tiny_record import proportion, record

from benchmark.records.per_image import PerImage, contradictions
from benchmark.records.record import Record
from benchmark.runtime import files
from benchmark.specs import tracks
from benchmark.specs.training import TrainingSpec
from leaderboard import build, changes, citation, formats, front
from leaderboard.changes import commit_here
from leaderboard.charts.sandwich import counts_over_radii
from leaderboard.image_radii import published_radii
from leaderboard.pages import row_files
from leaderboard.pages.board_data import Board
from leaderboard.rank import rank
from leaderboard.site import Site
from leaderboard.times import budgets, times

DIGITS, PHOTOGRAPHS = tracks.load("digits"), tracks.load("cifar10_jpeg")


def test_a_site_writes_what_changed_and_removes_what_nobody_wrote(tmp_path) -> None:
    for content, written in (("one", 2), ("one", 0), ("two", 1)):
        site = Site(tmp_path)
        site.write("index.html", content)
        site.write("models/a/index.html", b"a")
        site.close()
        assert site.written == written
    (tmp_path / "models/b").mkdir()
    (tmp_path / "models/b/index.html").write_text("gone")
    stamp = (tmp_path / "index.html").stat().st_mtime_ns
    site = Site(tmp_path)
    site.write("index.html", "two")
    site.close()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["index.html"]
    assert (tmp_path / "index.html").stat().st_mtime_ns == stamp
    assert site.pages == ["index.html"]


def test_machines_get_the_boards_numbers_and_their_schema() -> None:
    rows = rank([record("A", 40, 30, title="=cmd()"), record("B", 50, 30, certified=10)], DIGITS)
    made = formats.machine_board(Board(DIGITS, rows, Path()))
    assert [row.row for row in made.rows] == ["B-v", "A-v"]
    assert made.rows[0].numbers["certified L2 0.1"].count == 10
    assert "certified L2 0.1" not in made.rows[1].numbers
    photographs = formats.machine_board(Board(PHOTOGRAPHS, [], Path())).labels
    assert photographs["robust Linf 0.0314"] == "robust Linf 8/255"
    assert formats.MachineBoard.model_validate_json(made.model_dump_json()) == made
    head, *lines = formats.as_csv(made).splitlines()
    assert head.startswith("rank,row,title,trust,division,clean,clean low,clean high,robust Linf 0.15,")
    assert len(lines) == 2
    assert set(formats.MachineBoard.model_json_schema()["required"]) <= set(json.loads(made.model_dump_json()))


def publish(track: str, made: Record, images: PerImage | None = None) -> None:
    """The track, the row's Record and, where given, its verdicts by image, in the working directory."""
    source = Path(tracks.__file__).parent.parent / f"tracks/{track}.yaml"
    files.write(Path(f"benchmark/tracks/{track}.yaml"), source.read_text())
    files.write(Path("results") / track / f"{made.row}.json", made.model_dump_json())
    if images:
        files.write(Path("results") / track / "images" / f"{made.row}.json", images.model_dump_json())


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A repository with one published row, built too, and a track without any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "PUBLISHED", tmp_path / "results")
    made = record("A", 40, 30, certified=20, title="Name <b>")
    publish("sst2", made)
    shutil.rmtree("results/sst2")
    publish("digits", made)
    images = {"row": "A-v", "scores": {"clean": "1"}}
    files.write_json(site_rows.write(made, tmp_path / "work/digits") / "per_image.json", images)
    files.write(Path("pipelines/digits/rows.json"), '["A-v"]')
    return tmp_path


def test_the_front_page_has_a_card_a_track_and_a_second_time_nothing_to_write(project) -> None:
    assert front.render(Path("site"), "") > 0
    page = Path("site/index.html").read_text()
    assert '<a href="digits/index.html">Handwritten digits, 8x8</a>' in page
    assert "1 model;" in page
    link = '<a href="digits/models/A-v/index.html"><bdi>Name &lt;b&gt;</bdi></a>'
    assert link in page, "a number leads to its evidence"
    assert "<b>40.0%</b><small>30.0–50.0</small>" in page, "the best robust one, with its interval"
    assert "SST-2, 32 words (<code>sst2</code>)" in page
    assert 'href="../index.html"' in Path("site/digits/index.html").read_text()
    assert not Path("site/sitemap.xml").exists()
    assert front.render(Path("site"), "") == 0


@pytest.mark.parametrize("place", ["index.html", "digits/index.html", "digits/models/A-v/index.html"])
def test_each_page_says_version_source_and_how_to_cite(project, monkeypatch, place) -> None:
    monkeypatch.setattr(citation.metadata, "version", lambda _: "0.0.1")  # an editable install keeps that of its making
    files.write(Path("build/docs/index.html"), "Documentation")
    git("init")
    git("commit", "--allow-empty", "-m", "First")
    front.render(Path("site"), "", "https://example.org/me/bench")
    foot = Path("site", place).read_text().partition("<footer>")[2]
    version = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert f"version {version}}}" in citation.bibtex_of_benchmark()
    assert f"robust-vit-bench {version}, <a" in foot
    assert f"MIT licence</a>, commit {commit_here()[0]} of" in foot
    commands = Path("site", place).read_text().count("<code>pip install git+https://example.org/me/bench")
    assert commands == (place != "digits/index.html")
    assert '<a href="https://example.org/me/bench">Source</a>' in foot
    links = {"Documentation": "docs/index.html", "Cite": "index.html", "MIT licence": "LICENSE.txt"}
    for name, target in (links | {"Boards": "index.html"}).items():
        href = foot.partition(f">{name}</a>")[0].rpartition('href="')[2].strip('"').partition("#")[0]
        assert Path("site", target).exists()
        assert (Path("site", place).parent / href).resolve() == Path("site", target).resolve()
    monkeypatch.setattr(front.build, "HERE", Path("elsewhere"))  # of an installed package
    front.render(Path("site"), "", "javascript:alert(1)")
    assert "MIT License" in Path("site/LICENSE.txt").read_text()
    assert "javascript" not in Path("site", place).read_text()
    assert ("pip install -e ." in Path("site", place).read_text()) == bool(commands)


def kept_images() -> PerImage:
    """Of a row with 97 of 100 images right, 40, 30 and none robust, and 20 certified at 0.1."""
    counts = {"clean": 97, "robust Linf 0.15": 40, "robust L2 0.5": 30, "robust L2 1": 0}
    scores = {name: "1" * count + "0" * (100 - count) for name, count in counts.items()}
    return PerImage(row="A-v", scores=scores, radii={"certified": (0.1,) * 20 + (0.0,) * 80})


def test_a_row_that_is_published_alone_has_its_pages(project) -> None:
    shutil.rmtree(project / "work/digits/A-v")
    publish("digits", record("A", 40, 30, certified=20), kept_images())
    front.render(Path("site"), "")
    assert 'href="digits/leaderboard.json"' in Path("site/index.html").read_text()
    assert 'href="models/A-v/index.html"' in Path("site/digits/index.html").read_text()
    home = Path("site/digits/models/A-v")
    page = (home / "index.html").read_text()
    assert "benchmark.load_model(&#34;A-v&#34;" in page or 'benchmark.load_model("A-v"' in page
    assert "adversarial images are not in git" in page
    assert PerImage.model_validate_json((home / "per_image.json").read_text()) == kept_images()
    assert {path.name for path in home.iterdir()} >= {"record.json", "images.js", "paper.bib"}
    assert not [*home.glob("evidence.*")]
    assert "the radius of the ball in which an attack broke it" in page
    assert ("broken within an l2 ball of radius" in page, "nearest adversarial image" in page) == (True, False)
    publish(
        "digits", record("A", 40, 30, certified=20), kept_images().model_copy(update={"broken": (*[None] * 40, *[0.4] * 60)})
    )
    front.render(Path("site"), "")
    page = (home / "index.html").read_text()
    assert "counts by its l2 distance, whichever attack found it" in page
    assert "Margins and adversarial images are not in git" in page


def test_what_git_keeps_of_a_row_says_within_which_ball_an_image_was_lost() -> None:
    made = record("A", 40, 30, certified=20)
    result = published_radii(kept_images(), made, pixels=64)
    assert result.right.sum() == 97
    assert set(result.broken[:30]) == {1.0}, "held at 0.5, lost at 1"
    assert set(result.broken[30:]) == {0.5}
    assert result.certified is not None
    assert (result.certified > 0).sum() == 20
    assert result.smoothed is None
    assert not result.contradicted.any()
    near = kept_images().model_copy(update={"broken": (0.3, *[None] * 99)})
    assert set(published_radii(near, made, pixels=64).broken[:30]) == {0.3, 1.0}, "a known distance is nearer than its ball"
    assert PerImage.model_validate_json(near.model_dump_json()) == near
    assert "broken" not in kept_images().model_dump_json(), "files without distances stay as they are"
    within = "robust L2 0.5 counts an image whose nearest adversarial image lies within it"
    assert contradictions(made, near)[-1].words == within
    cut = near.model_copy(update={"broken": (0.3,)})
    problems = [problem.words for problem in contradictions(made, cut)]
    assert problems[-2:] == ["1 distances of 100 attacked images", within]
    far = near.model_copy(update={"broken": (0.5, *[None] * 99)})
    assert within not in [problem.words for problem in contradictions(made, far)]
    assert result.evaluated == 100
    assert counts_over_radii(result, [0, 0.1, 0.5, 1]) == {"robust": [100, 97, 97, 30, 0], "certified": [100, 20, 20, 0, 0]}
    linf = published_radii(kept_images(), made.model_copy(update={"robust": made.robust[:1]}), pixels=64)
    assert set(linf.broken[40:]) == {0.15 * 8}, "a loss in a Linf ball counts in the l2 ball around it"
    assert np.isinf(linf.broken[:40]).all()


def test_real_images_stand_first(project) -> None:
    track = PHOTOGRAPHS
    threats = [{"threat": part.model_dump(), "accuracy": proportion(9), "attacks": []} for part in track.threats]
    made = record("B", 1, 1).model_dump() | {"track": track.name, "robust": threats}
    scores = {f"robust {part.label}": "1" * 9 + "0" * 91 for part in track.threats} | {"clean": "1" * 97 + "000"}
    publish("cifar10_jpeg", Record.model_validate(made), PerImage(row="B-v", scores=scores))
    front.render(Path("site"), "")
    page = Path("site/index.html").read_text()
    assert page.index("cifar10_jpeg/index.html") < page.index("digits/index.html")
    assert "Most robust, Linf 2/255" in page
    model = Path("site/cifar10_jpeg/models/B-v/index.html").read_text()
    assert "Linf 0.0" not in re.sub(r"<script.*?</script>|<pre.*?</pre>", "", model, flags=re.DOTALL)


def test_the_site_map_names_every_page_of_an_address(project) -> None:
    front.render(Path("site"), "https://example.org/bench/")
    assert Path("site/og.png").read_bytes().startswith(b"\x89PNG")
    assert 'content="https://example.org/bench/og.png"' in Path("site/index.html").read_text()
    assert front.render(Path("site"), "https://example.org/bench/") == 0
    places = [node.text for node in ET.parse("site/sitemap.xml").getroot().iter() if node.tag.endswith("loc")]
    assert {"https://example.org/bench/", "https://example.org/bench/digits/models/A-v/"} <= {*places}
    for place in places:
        page = Path("site", str(place).removeprefix("https://example.org/bench/"), "index.html")
        assert f'<link rel="canonical" href="{place}">' in page.read_text()


def git(*words: str) -> None:
    about = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *about, *words], check=True, capture_output=True)


def test_the_feed_is_the_history_of_published_records(project) -> None:
    assert changes.changes(project / "results") == []
    git("init")
    git("add", "results")
    git("commit", "-m", "Rows <published>")
    files.write(Path("results/digits/studies/A-study.json"), "{}")
    git("add", "results")
    git("commit", "-m", "A study, which is no row")
    (result,) = changes.changes(project / "results")
    (row,) = result.rows
    assert (row.track, row.row, row.before, row.reason) == ("digits", "A-v", None, "Rows <published>")
    assert row.after == {
        "clean": 0.97,
        "robust Linf 0.15": 0.4,
        "robust L2 0.5": 0.3,
        "robust L2 1": 0,
        "certified L2 0.1": 0.2,
    }
    assert changes.last_change([result], "digits") == result.time[:10]
    assert changes.last_change([result], "sst2") == ""
    feed = ET.fromstring(changes.feed([result], "https://example.org/"))
    names = {name: f"{{{changes.ATOM}}}{name}" for name in ("entry", "title", "updated", "link", "id")}
    (entry,) = feed.findall(names["entry"])
    assert entry.findtext(names["title"]) == "1 new row (digits)"
    assert entry.findtext(names["updated"]) == result.time == feed.findtext(names["updated"])
    assert entry.find(names["link"]).attrib["href"] == f"https://example.org/changes.html#{result.commit[:12]}"
    assert all(feed.findtext(names[name]) for name in ("id", "title", "updated"))


def test_what_changed_stands_with_numbers_before_and_after_and_the_reason(project) -> None:
    git("init")
    (project / "results/digits/Old-v.json").write_text("no JSON")
    git("add", "results")
    git("commit", "-m", "First")
    publish("digits", record("A", 50, 30, certified=20).model_copy(update={"reason": "Other <seeds>."}))
    (project / "results/digits/Old-v.json").unlink()
    git("add", "results")
    git("commit", "-m", "Second & last")
    last, first = changes.changes(project / "results")
    assert last.title({"digits": "D"}) == "1 row with other numbers, 1 row removed (D)"
    words = "A-v, with other numbers: robust Linf 0.15 40.0% → 50.0%.\nOld-v, removed.\nCommit: Second & last"
    feeds = [changes.feed([last], address) for address in ("", "https://example.org/")]
    assert all(ET.fromstring(text).findtext(f".//{{{changes.ATOM}}}summary") == words for text in feeds)
    assert ['rel="self" href="https://example.org/feed.xml"' in text for text in feeds] == [False, True]
    changed, gone = last.rows
    assert changed.moved == [("robust Linf 0.15", 0.4, 0.5)]
    assert (gone.row, gone.after, [row.row for row in first.rows]) == ("Old-v", None, ["A-v", "Old-v"])
    front.render(Path("site"), "", "https://example.org/b")
    page = " ".join(Path("site/changes.html").read_text().split())
    for words in (
        '<th scope="row">robust Linf 0.15</th><td class="number">40.0%</td><td class="number">50.0%</td>', "Other &lt;seeds&gt;.",
        "Second &amp; last", "Old-v (Handwritten digits, 8x8): removed.", f'<a href="https://example.org/b/commit/{last.commit}">',
        '<a href="digits/models/A-v/index.html">A-v</a>',
        f"<h2 id=\"m{last.month}\">",
    ):  # fmt: skip
        assert words in page
    site_rows.Page(Path("site/changes.html"))


def board(work: Path, count: int) -> Board:
    records = [record(f"Model{place}", 40, place, certified=20) for place in range(count)]
    for made in records:
        site_rows.write(made, work, images=3, certified_l2=0.2)
    return Board(DIGITS, rank(records, DIGITS), work)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_processes_side_by_side_write_what_one_writes(tmp_path, monkeypatch) -> None:
    made = board(tmp_path / "work", 5)
    alone, together, again = (
        Site(tmp_path / name, "https://example.org/digits/") for name in ("alone", "together", "together")
    )
    row_files.write_pages(alone, made)
    monkeypatch.setattr(row_files, "MANY", 2)
    monkeypatch.setattr(row_files, "TOGETHER", 1)
    row_files.write_pages(together, made)
    assert contents(together.folder) == contents(alone.folder)
    assert (together.pages, together.written) == (alone.pages, alone.written)
    assert len(together.pages) == 5
    place = together.pages[0]
    page = (together.folder / place).read_text()
    assert f'<link rel="canonical" href="https://example.org/digits/{place.removesuffix("index.html")}">' in page
    assert page.count('<meta name="description"') == 1
    row_files.write_pages(again, made)
    assert again.written == 0
    again.close()
    assert contents(again.folder) == contents(alone.folder), "what other processes wrote is kept"


def test_a_row_that_cannot_be_written_ends_the_build(tmp_path, monkeypatch) -> None:
    made = board(tmp_path / "work", 5)
    (tmp_path / "work" / made.rows[3].record.row / "record" / "evidence.parquet").unlink()
    monkeypatch.setattr(row_files, "MANY", 2)
    with pytest.raises(FileNotFoundError, match="evidence"):
        row_files.write_pages(Site(tmp_path / "site"), made)


def named(seconds: float, device: str, **more: object) -> dict:
    return {"wall_seconds": seconds, "device": device, **more}


@pytest.mark.parametrize(
    ("stages", "training", "evaluation", "devices", "held"),
    [
        (  # seconds are summed, in all and by device
            {
                "train": named(10.0, "A CPU"), "attack-standard": named(3.0, "A GPU"),
                "certify": named(4.5, "A CPU"), "collect": named(0.5, "A CPU"),
            },
            10.0, 8.0, {"training": {"A CPU": 10.0}, "evaluation": {"A GPU": 3.0, "A CPU": 5.0}}, ["3 core-hours"],
        ),
        (  # a GPU for as long as it was held, a processor by its cores
            {
                "train": named(9.0, "A GPU", core_seconds=30.0, device_seconds=18.0, cost_seconds=18.0),
                "certify": named(9.0, "A CPU", core_seconds=17.0, cost_seconds=17.0),
            },
            18.0, 17.0, {"training": {"A GPU": 18.0}, "evaluation": {"A CPU": 17.0}}, [],  # another GPU than budgets name
        ),
    ],
)  # fmt: skip
def test_seconds_are_summed_in_all_and_by_device(tmp_path, stages, training, evaluation, devices, held) -> None:
    for stage, part in stages.items():
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", part)
    result = times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))])
    assert result == {"Mine-v": {"training": training, "evaluation": evaluation, "devices": devices, "budgets": held}}


def test_a_model_that_starts_from_weights_of_another_has_no_budget(tmp_path) -> None:
    files.write_json(tmp_path / "Mine-v" / "times" / "train.json", named(1.0, "A CPU"))
    trained = record("Mine", 1, 2)
    recipe = TrainingSpec.model_validate(
        {"objective": "standard", "epochs": 1, "batch_size": 8, "learning_rate": 0.1, "init_from": {"row": "Other-v"}}
    )
    tuned = trained.model_copy(update={"settings": trained.settings.model_copy(update={"training": recipe})})
    assert "budgets" not in times(tmp_path, [SimpleNamespace(record=tuned)])["Mine-v"]


@pytest.mark.parametrize(
    ("device", "seconds", "held"),
    [
        ("NVIDIA H100 80GB HBM3", {"device_seconds": 600.0, "core_seconds": 9000.0}, ["10 GPU-minutes", "1 GPU-hour"]),
        ("NVIDIA H200", {"device_seconds": 600.1}, ["1 GPU-hour"]),
        ("NVIDIA B200", {"device_seconds": 60.0}, []),  # faster
        ("NVIDIA H200", {"device_seconds": 3600.1}, []),
        ("AMD EPYC", {"core_seconds": 10800.0}, ["3 core-hours"]),
        ("AMD EPYC", {"core_seconds": 10800.1}, []),
    ],
)
def test_a_budget_follows_from_what_training_was_measured_to_cost(device, seconds, held) -> None:
    cost = seconds.get("device_seconds", seconds.get("core_seconds"))
    assert budgets({"device": device, "wall_seconds": 1.0, "cost_seconds": cost, **seconds}) == held


def test_stages_that_named_no_device_count_in_all_alone_and_taken_weights_as_no_training(tmp_path) -> None:
    for stage in ("train", "certify"):
        files.write_json(tmp_path / "Mine-v" / "times" / f"{stage}.json", {"wall_seconds": 2.0})
    taken = SimpleNamespace(record=record("Mine", 1, 2).model_copy(update={"training": None}))
    assert times(tmp_path, [taken]) == {"Mine-v": {"evaluation": 2.0, "devices": {"evaluation": {}}}}
    published = {"Mine-v": {"train": named(3.0, "A CPU")}}
    (row,) = times(tmp_path, [SimpleNamespace(record=record("Mine", 1, 2))], published).values()
    assert (row["training"], "evaluation" in row, row["devices"]) == (3.0, False, {"training": {"A CPU": 3.0}})
    assert times(tmp_path, [SimpleNamespace(record=record("Other", 1, 2))]) == {}
