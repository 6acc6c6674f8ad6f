"""What would run and why: against locks as DVC writes them, and against what DVC then runs."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_linear_row
from edited_file import edit
from locked_project import lock

from benchmark.loading.rows import load_row
from benchmark.pipeline import generate, inputs
from benchmark.pipeline.dry_run import dry_run
from benchmark.pipeline.locks import entry_of
from benchmark.pipeline.state import State, row_state
from benchmark.runtime.errors import BenchmarkError

ROW = "Tiny2026Linear-small"
STAGES = ["train", "attack-papers", "reliability", "attention", "collect"]


@pytest.fixture
def locked(tmp_path, monkeypatch) -> Path:
    """A project of one row in which everything is done, as working directory."""
    project = tiny_linear_row.new(tmp_path / "project")
    monkeypatch.chdir(project.root)
    lock("tiny")
    return project.root


def would_run() -> dict[str, str]:
    """Each stage of the row that would run, with the reason."""
    state, file = State("tiny"), generate.row_file("tiny", ROW)
    return {name: words for name in STAGES if (words := state.why(f"{file}:{name}"))}


def shown() -> str:
    return row_state(State("tiny"), load_row("tiny", ROW))


def told(**options) -> list[str]:
    lines: list[str] = []
    dry_run("tiny", 2, lines.append, **options)
    return lines


def edit_attack() -> None:
    edit("benchmark/attacks/pgd.py", "def attack(", "CHANGED = True\n\n\ndef attack(")


def test_where_everything_is_done_nothing_would_run(locked) -> None:
    state = State("tiny")
    assert not [stage for stage in state.stages if state.why(stage)]
    assert shown() == "built, today's"
    assert told() == ["everything is up to date; nothing would run"]


def test_an_edited_attack_is_named_and_trains_nothing(locked) -> None:
    edit_attack()
    reason = "code: benchmark/attacks/pgd.py"
    assert would_run() == {
        "attack-papers": reason,
        "reliability": reason,
        "collect": "after attack-papers, reliability",
    }
    assert shown() == f"stale, attack-papers: {reason} (and 1 more)"


def test_an_edited_setting_is_named_with_both_values_and_all_that_follows_would_run(locked) -> None:
    edit("submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 3")
    found = would_run()
    assert found["train"] == "training.epochs 2 -> 3"
    assert found["attack-papers"] == "after train"
    assert [*found] == STAGES
    board = State("tiny").why(f"{generate.board_file('tiny')}:leaderboard")
    assert board == "after collect"


def test_after_a_run_that_was_cut_the_results_say_whether_code_or_settings_changed(locked) -> None:
    """The inputs files are then of today already."""
    edit("submissions/Tiny2026Linear/submission.yaml", "epochs: 2", "epochs: 3")
    inputs.write("tiny")
    assert would_run()["train"] == "other settings"
    edit("submissions/Tiny2026Linear/method.py", "def build", "WIDTH = 3\n\n\ndef build")
    inputs.write("tiny")
    assert would_run()["train"] == "other code"


def test_results_that_went_or_were_changed_are_noticed(locked) -> None:
    folder = Path("work/tiny") / ROW
    (folder / "attack-papers" / "stage.json").write_text("longer than it was")
    assert would_run()["attack-papers"] == "results changed by hand"
    shutil.rmtree(folder / "attack-papers")
    assert would_run()["attack-papers"] == "results not here"
    lock("tiny")
    (folder / "train" / "model.safetensors").write_text("[]")  # as long as it was
    assert would_run()["attack-papers"] == f"{folder}/train/model.safetensors changed"


def test_a_row_that_was_built_in_part_or_never_says_so_and_whether_it_is_published(locked) -> None:
    shutil.rmtree(Path("work/tiny") / ROW / "record")
    assert shown() == "4 of 5 stages built"
    published = Path("leaderboard/results/tiny") / f"{ROW}.json"
    published.parent.mkdir(parents=True)
    published.write_text("{}")
    shutil.rmtree(Path("work"))
    assert shown() == "never built here; published"


def test_results_may_stand_elsewhere_alone(locked) -> None:
    """As on a coordinator of many machines: the remote's listings say what files a folder has, by their digests."""
    state, listings = State("tiny"), {}
    for stage in state.stages:
        for out in entry_of(stage)["outs"]:
            folder = Path(out["path"])
            found = (path for path in folder.rglob("*") if path.is_file())
            digests = {str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest() for path in found}
            listings |= {out["md5"]: digests} if "nfiles" in out else {}
    for folder in ("data", ROW):
        shutil.rmtree(Path("work/tiny") / folder)
    asked: list[str] = []

    def elsewhere(wanted: Sequence[str]) -> dict[str, dict[str, str]]:
        asked.extend(wanted)
        return {digest: listings[digest] for digest in wanted if digest in listings}

    file = generate.row_file("tiny", ROW)

    def why() -> dict[str, str]:
        state = State("tiny", elsewhere)
        return {name: words for name in STAGES if (words := state.why(f"{file}:{name}"))}

    assert State("tiny").why(f"{file}:train") == "results not here"
    assert why() == {}
    assert {*asked} == {*listings}
    edit_attack()
    assert [*why()] == ["attack-papers", "reliability", "collect"], "and no training"
    digest = entry_of(f"{file}:train")["outs"][0]["md5"]
    trained = listings.pop(digest)
    assert why()["train"] == "results not here"
    listings[digest] = {**trained, "model.safetensors": "another"}
    assert why()["attention"] == f"work/tiny/{ROW}/train/model.safetensors is missing"


def test_a_lock_that_a_kill_cut_short_is_one_of_a_stage_that_never_ran(locked) -> None:
    file = generate.row_file("tiny", ROW).with_name("dvc.lock")
    file.write_text(file.read_text()[:200] + "\n   - [")
    assert set(would_run().values()) == {"never run"}


def test_a_dry_run_says_stages_times_and_what_they_add_up_to_and_writes_nothing(locked) -> None:
    times = Path("work/tiny") / ROW / "times"
    times.mkdir()
    (times / "attack-papers.json").write_text('{"wall_seconds": 125.0}')
    edit_attack()
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    lines = told()
    assert lines[0] == ROW
    assert re.fullmatch(r"  attack-papers +2 min last time  code: benchmark/attacks/pgd\.py", lines[1])
    assert re.fullmatch(r"  reliability +8 s typical    code: .*", lines[2])
    assert lines[-2] == "pipelines/tiny/dvc.yaml:leaderboard: after collect"
    unknown = (
        "3 stages of 1 row would run with 2 at a time, for how long is unknown (rvb plan estimates it); nothing was run"
    )
    assert lines[-1] == unknown, "reliability and collect never ran here"
    for stage in ("reliability", "collect"):
        (times / f"{stage}.json").write_text('{"wall_seconds": 3.0}')
    assert told()[-1] == "3 stages of 1 row would run with 2 at a time, about 2 min; nothing was run"
    for stage in ("reliability", "collect"):
        (times / f"{stage}.json").unlink()
    assert not any("leaderboard" in line for line in told(names=[ROW])), "a row by its name renders no board"
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_dry_run_of_a_row_that_is_new_says_what_would_be_written(locked) -> None:
    shutil.copytree("submissions/Tiny2026Linear", "submissions/Tiny2026Other")
    edit("submissions/Tiny2026Other/submission.yaml", "Tiny2026Linear", "Tiny2026Other")
    lines = told(names=["Tiny2026Other-small"])
    assert "pipelines/tiny/Tiny2026Other-small/dvc.yaml: would be written" in lines
    assert not Path("pipelines/tiny/Tiny2026Other-small").exists()
    assert lines[-1].startswith("5 stages of 1 row would run")
    shutil.rmtree("submissions/Tiny2026Linear")
    assert f"pipelines/tiny/{ROW}: would be removed" in told()


def test_an_unknown_row_is_refused_with_the_near_miss(locked) -> None:
    with pytest.raises(BenchmarkError, match=r"no variant 'smal'; did you mean 'small'\?"):
        told(names=["Tiny2026Linear-smal"])


@pytest.mark.slow
@pytest.mark.long
def test_a_dry_run_says_what_dvc_then_runs(built) -> None:
    """Real locks: nothing where all is done, and after edits the very stages that `rvb repro` runs."""
    assert "nothing would run" in built.rvb("repro", "--track", "tiny", "--dry-run").stdout
    with (built.root / "benchmark/attacks/fgsm.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    submission = built.root / "submissions/Tiny2026Twin/submission.yaml"
    submission.write_text(submission.read_text().replace("epochs: 40", "epochs: 1"))
    said, row = set(), ""
    for line in built.rvb("repro", "--track", "tiny", "--dry-run").stdout.splitlines():
        row = line if re.fullmatch(r"\w+-\w+", line) else row
        if line.startswith("  "):
            said.add((row, line.split()[0]))
    listed = built.rvb("list", "--track", "tiny").stdout
    assert "stale, attack-papers: code: benchmark/attacks/fgsm.py (and 1 more)" in listed
    assert re.search(r"Tiny2026Twin-small .*stale, train: training\.epochs 40 -> 1", listed)
    ran = built.rvb("repro", "--track", "tiny").stdout
    assert {(row, stage) for stage, row in re.findall(r"^Stage (\S+) of (\S+), ", ran, re.MULTILINE)} == said
    assert ("Tiny2026Net-small", "attack-papers") in said
    assert ("Tiny2026Net-small", "train") not in said
    assert "nothing would run" in built.rvb("repro", "--track", "tiny", "--dry-run").stdout
    assert built.rvb("list", "--track", "tiny").stdout.count("built, today's") == 2
