"""`rvb publish` and `rvb regress`: on files of Records that nothing was computed for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import command
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_record
from command import tiny_error as error
from command import tiny_rvb as rvb
from tiny_linear_row import METHOD, SUBMISSION, TRACK
from tiny_project import ROOT, edit

from benchmark.commands import verify
from benchmark.pipeline import generate, inputs
from benchmark.records import reproduced
from benchmark.records.per_image import PerImage
from benchmark.runtime import files, git

ROWS = ("Tiny2026Linear-small", "Tiny2026Other-small")
PUBLISHED = Path("leaderboard/results/tiny")
REALLY = inputs.present_code


def as_recorded(_: str) -> dict[str, dict[str, str]]:
    """The code of every row is what `tiny_record` says."""
    return {row: {"train": "c1"} for row in ROWS}


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch) -> None:
    """A track of two rows, both built, as working directory."""
    monkeypatch.chdir(tmp_path)
    for row in ROWS:
        put(row)
        folder = Path("submissions") / row.partition("-")[0]
        folder.mkdir(parents=True)
        (folder / "method.py").write_text(METHOD)
        text = SUBMISSION.replace(
            "epochs: 2, batch_size: 64, learning_rate: 0.01", "epochs: 1, batch_size: 2, learning_rate: 0.1"
        )
        (folder / "submission.yaml").write_text(text.replace("Tiny2026Linear", folder.name))
    monkeypatch.setattr(inputs, "present_code", as_recorded)
    Path("benchmark/tracks").mkdir(parents=True)
    Path("benchmark/tracks/tiny.yaml").write_text(TRACK)
    for part in ("attacks", "training"):  # names in the files are looked up there
        (Path("benchmark") / part).symlink_to(ROOT / "benchmark" / part)


@pytest.fixture
def published(_project) -> None:
    assert rvb("publish", "--all").exit_code == 0


def put(row: str, *path: str | int, to: object = None) -> None:
    """A built Record of `row` with one value changed, and its images."""
    record = tiny_record.changed(*path, to=to)
    tiny_record.write(record.model_copy(update={"submission": row.partition("-")[0]}))


def put_better(row: str) -> None:
    put(row, "clean", to=tiny_record.proportion(96))


def record_file(row: str) -> Path:
    return Path("work/tiny") / row / "record" / "record.json"


def test_all_rows_are_published_with_their_machine_and_regress_finds_them_the_same(published) -> None:
    names = [*(f"{row}.json" for row in ROWS), "images", "machine.json", "times.json", "track.json"]
    assert sorted(path.name for path in PUBLISHED.iterdir()) == names
    for row in ROWS:
        for kept, built in ((f"{row}.json", "record.json"), (f"images/{row}.json", "per_image.json")):
            assert (PUBLISHED / kept).read_bytes() == record_file(row).with_name(built).read_bytes()
    machines = json.loads((PUBLISHED / "machine.json").read_text())
    assert set(machines) == {*ROWS}
    assert set(machines[ROWS[0]]) == {"processor", "capability", "blas", "accelerator", "pyarrow"}
    result = rvb("regress")
    assert result.exit_code == 0
    assert f"{ROWS[0]}: 28 of 28 numbers and facts are as published" in result.output
    assert "2 rows are what was published" in result.output


def test_rows_that_are_byte_identical_are_marked_until_they_are_published_anew(published, monkeypatch) -> None:
    assert "git knows no commit of this checkout" in error("regress", "--mark")
    monkeypatch.setattr(git, "clean_commit", lambda: "0123456789ab")
    monkeypatch.setattr(inputs, "present_code", lambda _: {row: {"train": "c2"} for row in ROWS})
    assert f"{ROWS[0]}: its code, its settings or the track's version changed since it was built" in error("publish", "--all")
    assert "Tiny2026Linear-small is not marked: older code built it" in rvb("regress", "--mark").output
    assert reproduced.read(PUBLISHED) == {}
    monkeypatch.setattr(inputs, "present_code", as_recorded)
    put_better(ROWS[0])
    assert "not what was published: Tiny2026Linear-small" in error("regress", "--mark")
    ((row, made),) = reproduced.read(PUBLISHED).items()
    assert (row, made.commit, made.what) == (ROWS[1], "0123456789ab", "row")
    put_better(ROWS[1])
    rvb("publish", ROWS[1], "--reason", "better")
    assert reproduced.read(PUBLISHED) == {}
    (PUBLISHED / reproduced.FILE).write_text('{"a": {"commit": "main", "date": "2026-01-01", "what": "row"}}')
    assert "reproduced.json: a.commit: String should match pattern" in error("regress", "--mark")
    assert "leave one out" in error("regress", "--mark", "--published")


def test_nothing_is_published_where_a_row_is_missing_or_options_do_not_fit() -> None:
    record_file(ROWS[1]).unlink()
    missing = "not built yet: Tiny2026Other-small; run `rvb repro --track tiny`; nothing published"
    assert error("publish", "--all") == missing
    record_file(ROWS[1]).write_text("{}")
    assert "Tiny2026Other-small/record/record.json: track: Field required; delete it" in error("publish", "--all")
    assert error("publish") == "name what to publish: a row, <submission>-<variant>, or --all"
    assert "leave out the row and --study" in error("publish", ROWS[0], "--all")
    assert "did you mean 'tiny'" in command.error("publish", "--all", "--track", "tinny")
    assert not PUBLISHED.exists()


def test_rows_on_other_images_are_neither_published_nor_passed(published) -> None:
    put(ROWS[1], "sha256", "data test", to="d2")
    words = f"{ROWS[0]} and {ROWS[1]} of tiny were tested on different images; build both on the same"
    assert error("publish", ROWS[1], "--reason", "Other images.") == f"{words}; nothing published"
    path = PUBLISHED / f"{ROWS[1]}.json"
    edit(path, '"data test": "d1"', '"data test": "d2"')
    assert words in error("regress", "--published")


def test_distances_of_the_evidence_are_published_and_nobody_misses_them_in_older_files(published) -> None:
    older, kept = PUBLISHED / "images" / f"{ROWS[0]}.json", record_file(ROWS[0]).with_name("per_image.json")
    attack = "autoattack-Linf-0.15"
    lost = [image >= 42 for image in range(100)]
    table = pa.table(
        {f"{attack}:success": lost, f"{attack}:l2": [0.25] * 100, "probed L2 0.125": [image == 99 for image in range(100)]}
    )
    evidence = record_file(ROWS[0]).with_name("evidence.parquet")
    pq.write_table(table, evidence)
    assert f"{evidence} is not the evidence of the Record; run `rvb repro" in error("publish", ROWS[0])
    put(ROWS[0], "sha256", "evidence", to=files.sha256_file(evidence))
    before, built = older.read_bytes(), kept.read_bytes()
    assert rvb("publish", ROWS[0], "--reason", "new evidence").exit_code == 0
    images = PerImage.model_validate_json(older.read_text())
    assert images.broken == (*[None] * 42, *[0.25] * 57, 0.125)
    assert images.model_copy(update={"broken": ()}) == PerImage.model_validate_json(built)
    assert kept.read_bytes() == built, "the step's output stays"
    for content in (before, older.read_bytes()):
        older.write_bytes(content)
        assert rvb("regress").exit_code == 0
        assert rvb("publish", ROWS[0]).exit_code == 0, "no number moves"
        assert len(verify.targets("tiny", ROWS[0])) == 1, "built and published are the same"


def test_one_row_keeps_the_machines_of_the_others(published) -> None:
    there = json.loads((PUBLISHED / "machine.json").read_text())
    there[ROWS[0]]["processor"] = there[ROWS[1]]["processor"] = "Other Chip"
    (PUBLISHED / "machine.json").write_text(json.dumps(there))
    assert rvb("publish", ROWS[0]).exit_code == 0
    now = json.loads((PUBLISHED / "machine.json").read_text())
    assert now[ROWS[0]]["processor"] != "Other Chip"
    assert now[ROWS[1]] == there[ROWS[1]]
    assert "is compared by chance" not in rvb("regress").output, "portable arithmetic is the same on every processor"


def test_a_flipped_image_fails_its_row_alone(published) -> None:
    put(ROWS[0], "robust", 0, "accuracy", to=tiny_record.proportion(41))
    assert error("regress") == (
        "1 of 2 rows are not what was published: Tiny2026Linear-small; find out why, or publish them anew with --reason"
    )
    lines = [line for line in rvb("regress").output.splitlines() if "OUTSIDE" in line]
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines] == [
        ["robust Linf 0.15", "40 of 100", "41 of 100", "", "", "OUTSIDE"],
        ["images of robust", "image 40: 0", "image 40: 1", "1", "", "OUTSIDE"],
    ]
    assert rvb("regress", ROWS[1]).exit_code == 0
    assert "did you mean 'Tiny2026Other-small'" in error("regress", "Tiny2026Othr-small")


def test_what_is_published_moves_for_a_reason_alone_which_stays_with_it(published) -> None:
    head, rest = "# Changelog\n\nWords.\n\n## Published Records\n\n", "- old\n\n## digits, version 1\n\nMore.\n"
    Path("CHANGELOG.md").write_text(head + rest)
    before = (PUBLISHED / f"{ROWS[0]}.json").read_bytes()
    put_better(ROWS[0])
    assert error("publish", "--all") == (
        "Tiny2026Linear-small would change (clean: 95 of 100 to 96 of 100); say why: --reason '...'; nothing published"
    )
    assert (PUBLISHED / f"{ROWS[0]}.json").read_bytes() == before
    assert rvb("publish", "--all", "--reason", "A better schedule.").exit_code == 0
    assert Path("CHANGELOG.md").read_text() == f"{head}- tiny, Tiny2026Linear-small: A better schedule.\n{rest}"
    assert rvb("publish", ROWS[0]).exit_code == 0, "nothing changes"
    reasons = [json.loads((PUBLISHED / f"{row}.json").read_text()).get("reason") for row in ROWS]
    assert reasons == ["A better schedule.", None]
    assert rvb("regress").exit_code == 0
    Path("CHANGELOG.md").write_text("# Changelog\n")
    assert "for a reason that CHANGELOG.md does not give: A better schedule." in error("regress")
    Path("CHANGELOG.md").unlink()
    put(ROWS[0])
    rvb("publish", "--all", "--reason", "new")
    section = "## Published Records\n\n- tiny, Tiny2026Linear-small: new\n"
    assert Path("CHANGELOG.md").read_text() == f"# Changelog\n\n{section}"


def test_rules_that_change_without_their_version_fail(published) -> None:
    track = Path("benchmark/tracks/tiny.yaml")
    edit(track, "images: 20", "images: 19")
    told = "track tiny has other evaluation than version 1 was published with; raise its version and say in CHANGELOG"
    for arguments in (["regress"], ["regress", "--published"], ["publish", "--all"]):
        assert told in error(*arguments)
    edit(track, "images: 19", "images: 20")
    edit(track, "title: ", "title: A better ")
    assert rvb("regress").exit_code == 0, "words are no rules"


def test_a_published_record_that_its_images_do_not_add_up_to_fails(published) -> None:
    path = PUBLISHED / f"{ROWS[0]}.json"
    edit(path, '"count": 95', '"count": 97')
    assert "Tiny2026Linear-small: clean is 97 and its images give 95 over 100 images" in error("regress", "--published")
    path.unlink()
    assert rvb("regress", "--published").exit_code == 0


def test_a_file_that_is_of_another_row_is_refused(published) -> None:
    for path in (PUBLISHED / f"{ROWS[1]}.json", PUBLISHED / f"images/{ROWS[1]}.json"):
        own = path.read_bytes()
        path.write_bytes(path.with_name(f"{ROWS[0]}.json").read_bytes())
        assert f"{path} is of the row '{ROWS[0]}', not of {ROWS[1]}; bring it back" in error("regress", "--published")
        path.write_bytes(own)


@pytest.mark.slow
def test_a_row_without_its_numbers_by_image_stops_no_other_and_is_published_again(published) -> None:
    by_image = PUBLISHED / f"images/{ROWS[0]}.json"
    whole = by_image.read_bytes()
    by_image.unlink()
    message = error("regress", "--published")
    assert message.startswith(f"{by_image} ")
    other = PUBLISHED / f"{ROWS[1]}.json"
    record = other.read_bytes()
    edit(other, '"count": 95', '"count": 97')
    assert re.fullmatch(re.escape(message) + r" \(and \d faults more\)", error("regress", "--published"))
    other.write_bytes(record)
    (damaged, of), *_ = verify.targets("tiny", ROWS[0])[::-1]
    assert (str(damaged), of) == (message, "published")
    for arguments in (["--all"], [ROWS[0]]):
        told = error("publish", *arguments)
        assert told.startswith(f"{ROWS[0]} would change (it is published without its numbers by image); say why")
        assert rvb("publish", *arguments, "--reason", "lost").exit_code == 0
        assert by_image.read_bytes() == whole
        by_image.unlink()
    rvb("publish", ROWS[0], "--reason", "lost")
    record_file(ROWS[0]).with_name("per_image.json").unlink()
    assert error("regress").startswith(f"1 of 2 rows are not what was published: {ROWS[0]};")
    output = rvb("regress").output
    assert f"{ROWS[0]} cannot be compared: {record_file(ROWS[0]).with_name('per_image.json')} " in output
    assert f"{ROWS[1]}: 28 of 28 numbers and facts are as published" in output
    shown = rvb("show", ROWS[0])
    assert (shown.exit_code, "40 of 100" in shown.output) == (0, True)


def test_a_track_without_rows_publishes_and_compares_nothing(published, monkeypatch) -> None:
    monkeypatch.setattr(generate, "DEFAULT_TRACK", "tiny")
    shutil.rmtree("submissions")
    for arguments in (["publish", "--all"], ["regress"]):
        assert error(*arguments).startswith("no submission enters track 'tiny' yet; there is nothing to publish")


def test_rows_that_are_missing_on_either_side(published) -> None:
    by_hand = PUBLISHED / "Tiny2026Linear-large.json"
    record = tiny_record.changed("variant", to="large").model_copy(update={"submission": "Tiny2026Linear"})
    tiny_record.write(record, published=True)
    result = rvb("regress")
    assert result.exit_code == 0, "rvb repro does not build it"
    assert "Tiny2026Linear-large is published and not built here" in result.output
    assert "not what was published: Tiny2026Linear-large" in error("regress", by_hand.stem), "it was asked for"
    record_file(ROWS[0]).unlink()
    (PUBLISHED / f"{ROWS[1]}.json").unlink()
    output = rvb("regress").output
    assert "Tiny2026Linear-small is published and not built; run `rvb repro`" in output
    assert "Tiny2026Other-small is built and not published; run `rvb publish Tiny2026Other-small`" in output
    (PUBLISHED / f"{ROWS[0]}.json").unlink()
    assert "Tiny2026Linear-small is neither published nor built; run `rvb repro`" in rvb("regress").output


@pytest.mark.parametrize("content", ["", "{", '{"track": 3}', "[]"])
def test_damaged_files_are_one_line(published, content) -> None:
    for name in (f"{ROWS[0]}.json", "machine.json"):
        whole = (PUBLISHED / name).read_text()
        (PUBLISHED / name).write_text(content)
        message = error("regress", ROWS[0])
        assert re.match(f"{PUBLISHED / name}(: | is no )", message)
        assert "bring it back with git, or " in message
        (PUBLISHED / name).write_text(whole)
    (PUBLISHED / f"{ROWS[0]}.json").write_text(content)
    assert rvb("regress", ROWS[1]).exit_code == 0, "another row's damage"


@pytest.mark.parametrize("content", ["[]", '{"Tiny2026Linear-small": []}', "3"])
@pytest.mark.parametrize("name", ["machine.json", "times.json", "track.json", "reproduced.json"])
def test_nothing_is_published_beside_a_damaged_file(published, name, content) -> None:
    put_better(ROWS[0])
    (PUBLISHED / name).write_text(content)
    before = {path: path.read_bytes() for path in PUBLISHED.rglob("*") if path.is_file() and path.name != "times.json"}
    message = error("publish", ROWS[0], "--reason", "better")
    assert re.match(f"{PUBLISHED / name}: .*; bring it back with git, or ", message)
    assert all(path.read_bytes() == data for path, data in before.items())
    if name == "times.json":
        assert message in error("plan")


@pytest.mark.slow
def test_what_the_pipeline_made_is_what_was_published(built, monkeypatch) -> None:
    monkeypatch.chdir(built.root)
    monkeypatch.setattr(inputs, "present_code", REALLY)
    assert rvb("publish", "--all").exit_code == 0
    built.rvb("repro", "--track", "tiny")
    monkeypatch.setattr(git, "clean_commit", lambda: "0123456789ab")
    told = rvb("regress", "--mark").output
    assert "is compared by chance" not in told
    assert "OUTSIDE" not in told
    assert len(reproduced.read(PUBLISHED)) == 2, "the present code built them"
    path = PUBLISHED / "Tiny2026Net-small.json"
    content = json.loads(path.read_text())
    content["sha256"]["weights"] = "0" * 64
    path.write_text(json.dumps(content))
    assert error("regress").startswith("1 of 2 rows are not what was published: Tiny2026Net-small; find out why")
    assert "Tiny2026Net-small: 39 of 40 numbers and facts are as published" in rvb("regress").output
