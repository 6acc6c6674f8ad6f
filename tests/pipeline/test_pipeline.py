"""The pipeline end to end on a tiny track: real commands, real DVC."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stages import run_stage
from tiny_project import append, edit

from benchmark.pipeline import generate
from benchmark.runtime.errors import BenchmarkError

pytestmark = pytest.mark.slow


def locks(project) -> dict[str, str]:
    return {str(p.relative_to(project.root)): p.read_text() for p in project.root.glob("pipelines/**/dvc.lock")}


def ran(output: str) -> set[str]:
    """The stages that a `dvc repro` ran."""
    return set(re.findall(r"Running stage '([^']+)'", output))


@pytest.mark.long
def test_serial_and_side_by_side_give_the_same_bytes(project, finished) -> None:
    """`rvb repro --jobs 2` made the finished project; a plain `dvc repro` from scratch must end with the same bytes."""
    project.add("Tiny2026Net")
    project.add("Tiny2026Twin", epochs=1)
    project.rvb("pipeline")
    project.run("dvc", "repro", "pipelines/tiny/dvc.yaml")
    for name in ("Net", "Twin"):
        assert project.results(f"Tiny2026{name}-small") == finished.results(f"Tiny2026{name}-small")
    assert locks(project) == locks(finished)


@pytest.mark.long
def test_a_new_submission_runs_its_own_stages_and_the_board_alone(built) -> None:
    before = locks(built)
    assert "up to date" in built.rvb("repro", "--track", "tiny").stdout
    built.add("Tiny2026Third", epochs=1)
    built.rvb("pipeline")
    logs = built.root / "work/logs"
    shutil.rmtree(logs)
    output = built.rvb("repro", "--track", "tiny").stdout
    assert set(re.findall(r"(Tiny\S+): done in", output)) == {"Tiny2026Third-small"}
    board = ran((logs / "tiny-board.log").read_text())
    assert board - {"pipelines/tiny/_data/dvc.yaml:inputs"} == {"pipelines/tiny/dvc.yaml:leaderboard"}
    kept = {name: text for name, text in locks(built).items() if "Third" not in name and name in before}
    for changed in ("pipelines/tiny/dvc.lock", "pipelines/tiny/_data/dvc.lock"):
        assert kept.pop(changed) != before.pop(changed)
    assert kept == before
    index = (built.root / "work/tiny/site/index.html").read_text()
    assert all(f"Tiny2026{name}-small" in index for name in ("Net", "Twin", "Third"))


@pytest.mark.long
def test_changing_one_attack_runs_it_again_and_trains_nothing(built) -> None:
    append(built.root / "benchmark/attacks/fgsm.py", "\nCHANGED = True\n")
    output = built.run("dvc", "repro", "pipelines/tiny/dvc.yaml").stdout
    assert {stage.rpartition(":")[2] for stage in ran(output)} == {"inputs", "evaluate", "leaderboard"}
    kept = set(re.findall(r"Tiny2026Net-small: (\S+) is kept", output))
    assert kept == {"attack-standard", "certify", "smooth", "attention"}, "the suite, and what reads it, alone run again"


def test_a_comment_runs_nothing_and_corruptions_touched_concern_no_row_without_them(built) -> None:
    append(built.root / "benchmark/attacks/fgsm.py", "\n# a comment\n")
    append(built.root / "benchmark/steps/corrupt.py", "\nCHANGED = True\n")
    output = built.run("dvc", "repro", "pipelines/tiny/dvc.yaml").stdout
    assert {stage.rpartition(":")[2] for stage in ran(output)} <= {"inputs"}
    assert "up to date" in built.rvb("repro", "--track", "tiny").stdout


@pytest.mark.long
def test_a_removed_submission_leaves_the_board(built) -> None:
    shutil.rmtree(built.root / "submissions/Tiny2026Twin")
    assert built.rvb("pipeline", "--check", check=False).returncode == 1
    built.rvb("repro", "--track", "tiny")
    index = (built.root / "work/tiny/site/index.html").read_text()
    assert "Tiny2026Net" in index
    assert "Tiny2026Twin" not in index
    assert not (built.root / generate.row_file("tiny", "Tiny2026Twin-small")).exists()
    assert "Tiny2026Net-small" in (built.root / "work/tiny/site/times.js").read_text()


def test_metrics_and_plots_work(built) -> None:
    shown = json.loads(built.run("dvc", "metrics", "show", "--json").stdout)
    files = shown[""]["data"].values()  # the digits board stands beside, not built here
    numbers = next(file["data"] for file in files if "data" in file)["Tiny2026Net-small"]
    assert 0 <= numbers["robust Linf 0.15"] <= numbers["clean"] <= 1
    plots = built.root / "plots"
    built.run("dvc", "plots", "show", "-o", str(plots))
    assert "Tiny2026Net-small" in (plots / "index.html").read_text()


def test_a_stage_that_fails_names_its_reason_and_log_and_a_mended_one_goes_on(built) -> None:
    method = built.root / "submissions/Tiny2026Twin/method.py"
    right, wrong = "NormalisedHead(width, data.classes)", "NormalisedHead(width, data.classes + 1)"
    edit(method, right, wrong)
    result = built.rvb("repro", "--track", "tiny", check=False)
    assert result.returncode == 1
    assert "two images give (2, 11)" in result.stderr
    assert "log: work/logs" in result.stderr
    assert "Traceback" not in result.stderr
    edit(method, wrong, right)
    built.rvb("repro", "--track", "tiny")
    assert (built.root / "work/tiny/Tiny2026Twin-small/record/record.json").exists()


def test_a_lying_certificate_stops_the_pipeline(built, finished) -> None:
    """A certificate that is too large falls to an attack at its own radius; what was published before stays."""
    edit(built.root / "benchmark/certificates/local.py", "return low.clamp(max=largest)", "return low * 0 + 3.0")
    row = "Tiny2026Net-small"
    result = built.rvb("repro", row, "--track", "tiny", check=False)
    assert result.returncode == 1
    assert re.search(
        r"image \d+ is certified at l2 3 but pgd at the certified radius broke it there \(margin", result.stderr
    ), result.stderr
    record, before = built.results(row), finished.results(row)
    assert record["record/record.json"] == before["record/record.json"]
    assert not (built.root / "work/tiny" / row / "certify").exists()


@pytest.mark.parametrize(
    ("stage", "column", "lie", "words"),
    [
        ("certify", "certified_l2", lambda radius: 3.0 if radius > 0 else 0.0, r"is certified at l2 3 .*broke it .*"),
        ("smooth", "smoothed_l2", lambda radius: 2 * radius, r"has smoothed l2 radius .* "),
    ],
)
def test_a_radius_that_was_tampered_with_never_becomes_a_record(built, monkeypatch, stage, column, lie, words) -> None:
    """The gates of the collect stage: certified and broken, smoothed and not carried by its counts."""
    row = built.root / "work/tiny/Tiny2026Net-small"
    path = row / stage / "evidence.parquet"
    table = pq.read_table(path)
    path.unlink()
    lies = pa.array([lie(radius) for radius in table[column].to_pylist()])
    pq.write_table(table.set_column(table.column_names.index(column), column, lies), path)
    shutil.rmtree(row / "record")
    monkeypatch.chdir(built.root)
    with pytest.raises(BenchmarkError, match=rf"image \d+ {words}nothing is published"):
        run_stage("collect", "tiny", "Tiny2026Net-small")
    assert not (row / "record").exists()


@pytest.mark.long
def test_a_lock_that_a_killed_dvc_left_cut_short_is_written_anew_and_nothing_is_computed(built, finished) -> None:
    lock, rwlock = built.root / "pipelines/tiny/Tiny2026Net-small/dvc.lock", built.root / ".dvc/tmp/rwlock"
    lock.write_text(lock.read_text()[:200] + "\n   - [")
    rwlock.write_text('{"a": {"re')
    refused = built.rvb("repro", "--track", "tiny", check=False)
    assert "error: .dvc/tmp/rwlock is cut short, as by a killed dvc; once no dvc runs here, remove it" in refused.stderr
    rwlock.unlink()
    output = built.rvb("repro", "--track", "tiny").stdout
    assert "removed pipelines/tiny/Tiny2026Net-small/dvc.lock" in output
    assert len(re.findall(r"Tiny2026Net-small: \S+ is kept", output)) == 8, output
    assert locks(built) == locks(finished)
    assert built.results("Tiny2026Net-small") == finished.results("Tiny2026Net-small")


def test_a_dry_run_names_the_stages_and_runs_nothing_and_a_board_without_records_is_an_explained_page(project) -> None:
    project.add("Tiny2026Net")
    output = project.rvb("repro", "--track", "tiny", "--dry-run").stdout
    assert "pipelines/tiny/Tiny2026Net-small/dvc.yaml:evaluate\n" in output
    assert not (project.root / "work/tiny/Tiny2026Net-small").exists()
    (project.root / "pipelines/tiny/rows.json").write_text("[]\n")
    project.run("benchmark.pipeline.inputs", "tiny")
    project.run("leaderboard.build", "tiny")
    page = (project.root / "work/tiny/site/index.html").read_text()
    assert "No model has been evaluated on this track yet" in page
