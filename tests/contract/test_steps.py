"""What every step of benchmark/steps keeps to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stages import stage_code, stage_names

from benchmark import protocol
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs import tracks
from benchmark.specs.rows import Row, load_row, load_rows

ROWS = ("Havens2024LoFAST-mean_pool", "Wong2020Fast-linf", "Debenedetti2022XCiT-adversarial")
SHARED = {"__init__", "base", "evaluation"}  # of all steps, or of those that evaluate
FOLDER = Path("benchmark/steps")
FILES = {path.stem for path in FOLDER.glob("*.py")} - SHARED


def test_each_file_is_one_step_named_as_its_file_and_stands_in_the_protocol() -> None:
    assert {*protocol.STEPS, "data"} == FILES
    assert all(protocol.load(name) for name in protocol.STEPS)


def test_every_step_of_a_row_is_part_of_one_of_two_stages_and_has_a_folder_of_its_own() -> None:
    for row in load_rows("digits"):
        stages = protocol.stages(row)
        assert [*stages] == ["train", "evaluate"]
        planned = protocol.plan(row)
        assert sorted(one.name for steps in stages.values() for one in steps) == sorted(one.name for one in planned)
        folders = [one.folder for one in planned]
        assert len(set(folders)) == len(folders), row.name


@pytest.mark.parametrize("row", ROWS)
def test_a_stage_reads_what_stages_before_it_leave_and_its_settings_are_json_and_stay(row) -> None:
    done: list[Path] = [load_row("digits", row).data]
    for one, again in zip(*(protocol.plan(load_row("digits", row)) for _ in range(2)), strict=True):
        for path in one.reads:
            assert path in done or path.parent in done, f"{one.name} reads {path}"
        done.append(one.folder)
        assert json.dumps(one.settings, sort_keys=True) == json.dumps(again.settings, sort_keys=True)


@pytest.mark.parametrize("row", ROWS)
def test_a_steps_code_holds_no_other_step_and_none_of_training_but_to_train(row) -> None:
    for name in stage_names("digits", row):
        code = stage_code(name, "digits", row)
        kind = name.partition("-")[0]
        others = {path.stem for path in code if path.parent == FOLDER} - SHARED - {kind}
        assert not others, f"{name} depends on steps {others}"
        assert all(path.exists() for path in code)
        training = [path for path in code if path.parent == Path("benchmark/training")]
        assert bool(training) == (kind == "train"), name


def bare() -> Row:
    """A row to which as few steps apply as can be."""
    row = load_row("digits", "Wong2020Fast-linf")
    track = row.track.model_copy(update={"smoothing": None, "pictures": None, "suites": {}})
    return Row(track, row.submission, row.variant, row.settings)


@pytest.mark.parametrize("name", [name for name in protocol.STEPS if not protocol.load(name).names(bare())])
def test_where_it_does_not_apply_it_says_why_in_one_line(name) -> None:
    error = protocol.load(name).refuse(bare(), f"{name}-x")
    assert isinstance(error, BenchmarkError)
    assert tracks.load("digits").name in str(error) or bare().name in str(error)
