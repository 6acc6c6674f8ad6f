"""README.md: its table is the published Records', its examples run, and it stays short."""

from __future__ import annotations

from pathlib import Path

import pytest
import seeds_study
import tiny_record
import torch
import yaml
from seeds_study import verdicts

from benchmark.records.beside import AttentionResult
from benchmark.records.per_image import PerImage
from benchmark.records.record import Record
from benchmark.records.study import PublishedStudy
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.base import to_json
from benchmark.specs.data import DataSpec
from benchmark.specs.submission import Submission
from leaderboard import readme

README = Path(__file__).parents[2] / "README.md"
HEAD = f"# A project\n\n{readme.BEGIN}\n"
TAIL = f"{readme.END}\n\nAfter.\n"


def record(name: str, linf: int, certified: int | None = None) -> Record:
    return tiny_record.record(name, linf, 30, f"{name} | a model", certified)


def put(folder: Path, made: Record) -> None:
    """Publishes the row with its verdicts by image."""
    images = PerImage(row=made.row, scores={"robust Linf 0.15": verdicts(made.robust[0].accuracy.count)})
    (folder / f"{made.row}.json").write_text(to_json(made))
    (folder / "images" / f"{made.row}.json").write_text(to_json(images))


def updated() -> list[str]:
    """The lines of the README with its table written anew."""
    readme.main([])
    return readme.PLACES[0].file.read_text().splitlines()


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """Two published Records of digits, a study and the machine beside them, and a README whose table is not written yet."""
    folder = tmp_path / "results/digits"
    (folder / "studies").mkdir(parents=True)
    (folder / "images").mkdir()
    for other in ("studies/Some-study.json", "machine.json"):
        (folder / other).write_text("no Record")
    for made in (record("Weak", 4, certified=80), record("Strong", 76)):
        put(folder, made)
    monkeypatch.setattr(readme, "PUBLISHED", tmp_path / "results")
    monkeypatch.setattr(readme, "PLACES", (readme.Place(tmp_path / "README.md", "digits"),))
    (tmp_path / "README.md").write_text(HEAD + TAIL)
    return folder


def test_the_table_ranks_the_published_records(published) -> None:
    lines = updated()
    text = readme.PLACES[0].file.read_text()
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)
    strong = r"| 1 | [Strong \| a model](submissions/Strong) | 97 | 76 | 30 | 0 | – | – | – |"
    weak = r"| 2 | [Weak \| a model](submissions/Weak) | 97 | 4 | 30 | 0 | 80 | – | – |"
    assert lines[lines.index(strong) + 1] == weak
    (head,) = [line for line in lines if line.startswith("| #")]
    assert "robust Linf 0.15 | robust L2 0.5 | robust L2 1 | certified L2 0.1" in head
    assert head.count("|") == weak.replace(r"\|", "").count("|")
    assert "Percent of 100 test images, 95% intervals up to ±10.0 points. #: ranks not ruled out." in lines


def another(published: Path, **more: object) -> None:
    """Publishes a second row of Strong, of 20 robust images."""
    put(published, record("Strong", 20).model_copy(update={"variant": "w", "title": "another of it", **more}))


def test_of_each_submission_its_first_row_is_shown_with_its_rank_among_all(published) -> None:
    another(published)
    text = "\n".join(updated())
    assert "another of it" not in text
    assert r"| 3 | [Weak \| a model]" in text
    assert "#: ranks not ruled out of 3; each submission's first row is shown." in text


def test_a_page_may_show_all_rows_with_what_their_attention_does(published, tmp_path, monkeypatch) -> None:
    uniform = {"clean": tiny_record.proportion(31), "changed": 60}
    another(published, attention=AttentionResult.model_validate({"uniform": uniform, "none": uniform}))
    page = tmp_path / "page.md"
    page.write_text(HEAD + TAIL)
    monkeypatch.setattr(readme, "PLACES", (readme.Place(page, "digits", all_rows=True),))
    lines = updated()
    assert "| 2 | Strong-w | 97 | 20 | 30 | 0 | – | – | – | 31 |" in lines
    assert "| 1 | Strong-v | 97 | 76 | 30 | 0 | – | – | – | – |" in lines
    (head,) = [line for line in lines if line.startswith("| #")]
    assert head.endswith("| clean, attention uniform |")
    assert "#: ranks not ruled out." in page.read_text()


def test_no_file_is_written_where_one_cannot_be_and_each_is_checked(published, tmp_path, monkeypatch) -> None:
    first, second = (readme.Place(tmp_path / f"{name}.md", "digits") for name in ("first", "second"))
    monkeypatch.setattr(readme, "PLACES", (first, second))
    first.file.write_text(HEAD + TAIL)
    second.file.write_text("no markers")
    with pytest.raises(BenchmarkError, match=r"second\.md needs the lines"):
        readme.main([])
    assert first.file.read_text() == HEAD + TAIL
    second.file.write_text(HEAD + TAIL)
    readme.main([])
    readme.main(["--check"])
    second.file.write_text(HEAD + TAIL)
    with pytest.raises(BenchmarkError, match=r"the table in .*second\.md is not"):
        readme.main(["--check"])


def test_seeds_that_may_turn_the_order_leave_it_open(published) -> None:
    for name, robust in (("Weak", [4, 90, 60, 95, 70]), ("Strong", [76, 75, 77, 74, 78])):
        study = seeds_study.published(name, robust).model_dump()
        row = record(name, robust[0], certified=80 if name == "Weak" else None)
        study["result"]["cells"][0]["settings"] = row.settings.model_dump(mode="json")
        text = to_json(PublishedStudy.model_validate(study))
        (published / f"studies/{name}-v-seeds.json").write_text(text)
    assert [line[:8] for line in updated() if "a model" in line] == ["| 1–2 | "] * 2


def test_rows_published_without_their_images_are_not_ordered(published) -> None:
    (published / "images/Weak-v.json").unlink()
    assert sum("| 1–2 | " in line for line in updated()) == 2


def test_check_fails_on_a_stale_table_and_passes_after_writing(published) -> None:
    stale = r"is not that of the Records .* run `python -m leaderboard.readme`"
    with pytest.raises(BenchmarkError, match=stale) as raised:
        readme.main(["--check"])
    assert "\n" not in str(raised.value)
    assert readme.PLACES[0].file.read_text() == HEAD + TAIL, "a check changes nothing"
    readme.main([])
    readme.main(["--check"])
    (published / "Strong-v.json").write_text(to_json(record("Strong", 75)))
    with pytest.raises(BenchmarkError, match=stale):
        readme.main(["--check"])
    readme.main([])
    readme.main(["--check"])


@pytest.mark.parametrize("text", ["", TAIL + HEAD, HEAD + HEAD + TAIL, HEAD])
def test_a_readme_without_its_markers_is_left_alone(published, text) -> None:
    readme.PLACES[0].file.write_text(text)
    with pytest.raises(BenchmarkError, match="needs the lines"):
        readme.main([])
    assert readme.PLACES[0].file.read_text() == text


def test_no_record_or_a_broken_one_is_said_in_a_line(published) -> None:
    (published / "Weak-v.json").write_text('{"track": "digits"}')
    with pytest.raises(BenchmarkError, match=r"Weak-v.json: \w+: Field required"):
        readme.main([])
    for path in published.glob("*.json"):
        path.unlink()
    with pytest.raises(BenchmarkError, match="holds no Record; run `rvb repro`, then `rvb publish --all`"):
        readme.main([])


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 700


def code(language: str) -> list[str]:
    """The README's blocks of code in a language, in order."""
    return [part.partition("```")[0] for part in README.read_text().split(f"```{language}\n")[1:]]


@pytest.mark.slow
def test_the_readmes_evaluation_runs_and_gives_the_published_numbers(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code("python")[0], names)
    place = README.parent / "leaderboard/results/digits/Wong2020Fast-linf.json"
    published = Record.model_validate_json(place.read_text())
    attack = next(number for number in published.attacks if number.id == "autoattack-Linf-0.15")
    assert names["report"].numbers["clean"].count == published.clean.count
    assert names["report"].numbers["AutoAttack Linf 0.15"].count == attack.accuracy.count
    assert "AutoAttack Linf 0.15" in Path("report.html").read_text()


def test_the_readmes_model_loads_and_builds() -> None:
    (settings,) = Submission.model_validate(yaml.safe_load(code("yaml")[0])).variants["small"].tracks.values()
    names: dict = {}
    exec(code("python")[1], names)
    data = DataSpec(source="digits", validation=1, shape=(1, 8, 8), classes=10)
    assert names["build"](data, **settings.model)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
