"""`rvb diff`: Records of a git repository's branch against those of its merge base."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import command
import pytest
import tiny_project
import tiny_record
from tiny_linear_row import TRACK
from tiny_project import Project, append, edit, git
from typer.testing import Result

from benchmark.runtime import files

ROW = "Tiny2026Net-small"
PUBLISHED, BUILT = Path("leaderboard/results/tiny"), Path("work/tiny") / ROW / "record"
NAME = "autoattack-Linf-0.15"


@pytest.fixture(autouse=True)
def _repository(tmp_path, monkeypatch) -> None:
    """A branch of a repository that has published a row, and on main a later commit that is not its merge base."""
    monkeypatch.chdir(tmp_path)
    files.write(Path("benchmark/tracks/tiny.yaml"), TRACK)
    publish()
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    git("switch", "-qc", "mine")
    git("switch", "-q", "main")
    (PUBLISHED / f"{ROW}.json").unlink()
    git("commit", "-qam", "two")
    git("switch", "-q", "mine")


def publish(variant: str = "small") -> None:
    tiny_record.write(tiny_record.changed("variant", to=variant), published=True)


def build(*path: str | int, to: object = None, flipped: tuple[tuple[str, int], ...] = ()) -> None:
    tiny_record.write(tiny_record.changed(*path, to=to), *flipped)


def rvb(*arguments: str) -> Result:
    return command.rvb("diff", *arguments)


def test_a_row_that_was_built_here_is_compared_by_image() -> None:
    result = rvb()
    assert result.exit_code == 0
    assert result.output.strip().endswith("0 new, 0 removed, 0 changed, 1 same")
    build("attacks", 0, "accuracy", to=tiny_record.proportion(41), flipped=(("robust Linf 0.15", 3),))
    result = rvb()
    assert result.exit_code == 1
    for cells in (
        f"{NAME} | 42 of 100 | 41 of 100 | ",
        f"images of {NAME} | image 41: 1 | image 41: 0 | 1",
        "images of robust Linf 0.15 | image 3: 1 | image 3: 0 | 1",
    ):
        assert f"| {ROW} on tiny, changed | {cells} |\n" in result.output
    assert rvb("--exit-zero").exit_code == 0
    assert rvb("--published").exit_code == 0, "what is in work/ is left out"


def test_other_bytes_alone_break_nothing_and_code_is_not_compared() -> None:
    build("sha256", to=tiny_record.content()["sha256"] | {"weights": "w2", "code train": "c2"})
    result = rvb()
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if line.startswith(f"| {ROW}")]
    assert line == f"| {ROW} on tiny, changed | sha256 of weights | w1 | w2 |  |"


def test_names_cannot_break_the_table() -> None:
    build("robust", 0, "accuracy", to=tiny_record.proportion(39))
    publish("more")
    publish("odd|[x]")
    lines = rvb("--exit-zero").output.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {6}
    assert "| Tiny2026Net-more on tiny, new | clean | – | 95 of 100 |  |" in table
    assert lines[2] == "2 new, 0 removed, 1 changed, 0 same"


def test_a_removed_row_breaks_and_a_new_one_does_not() -> None:
    publish("more")
    assert rvb().exit_code == 0
    (PUBLISHED / f"{ROW}.json").unlink()
    result = rvb("--track", "tiny")
    assert result.exit_code == 1
    assert f"{ROW} on tiny, removed" in result.output


def test_what_cannot_be_compared_is_one_line() -> None:
    error = partial(command.error, "diff")
    assert "no branch or commit 'other' here" in error("--base", "other")
    assert "did you mean 'tiny'" in error("--track", "tinny")
    assert "give both" in error("--all")
    git("switch", "-q", "--orphan", "alone")
    git("commit", "-q", "--allow-empty", "-m", "four")
    Path("benchmark/tracks").mkdir(parents=True, exist_ok=True)
    assert "no commit in common" in error("--base", "main")


def test_a_row_that_cannot_be_read_stops_no_other() -> None:
    publish("more")
    build()
    (BUILT / "per_image.json").write_text("half")
    result = rvb()
    assert result.exit_code == 1
    assert f"{ROW} on tiny, changed | {BUILT}/per_image.json is no valid JSON" in result.output
    assert "1 new, 0 removed, 1 changed, 0 same" in result.output
    (BUILT / "per_image.json").unlink()
    assert f"{ROW} on tiny, changed | {BUILT}/per_image.json " in rvb().output
    (PUBLISHED / f"{ROW}.json").write_text("{}")
    git("commit", "-qam", "three")
    assert f"{PUBLISHED}/{ROW}.json at " in rvb("--base", "HEAD").output
    publish()
    git("rm", "-q", "--cached", f"{PUBLISHED}/images/{ROW}.json")
    git("add", f"{PUBLISHED}/{ROW}.json")
    git("commit", "-qm", "four")
    output = rvb("--base", "HEAD", "--published").output
    assert f"{PUBLISHED}/images/{ROW}.json was not published at " in output


def test_origins_branch_stands_in_for_a_missing_one() -> None:
    git("update-ref", "refs/remotes/origin/main", "main")
    git("branch", "-qD", "main")
    assert rvb().exit_code == 0


@pytest.mark.slow
def test_a_row_counts_by_what_its_steps_read(tmp_path) -> None:
    project = Project.new(tmp_path / "project")
    project.add("Tiny2026Net")
    project.add("Tiny2026Twin")
    yaml = project.root / "submissions/Tiny2026Twin/submission.yaml"
    extra = yaml.read_text().partition("variants:\n")[2].replace("  small:", "  extra:")
    append(yaml, extra.replace("    tracks", "    default: false\n    tracks"))

    git = partial(tiny_project.git, cwd=project.root)

    def changed(*options: str) -> list[str]:
        return project.rvb("diff", "--changed-rows", *options).stdout.split("\n")[:-1]

    git("add", "--all")
    git("commit", "-qm", "one")
    git("branch", "-M", "main")
    assert changed() == []
    (project.root / "README.md").write_text("not read")
    append(project.root / "benchmark/steps/corrupt.py", "\nNEW = 1\n")  # of no row
    assert changed() == []
    edit(yaml, "epochs: 40", "epochs: 41")
    assert changed("--track", "tiny") == ["Tiny2026Twin-extra", "Tiny2026Twin-small"], "their own folder"
    git("commit", "-qam", "two")
    append(project.root / "benchmark/tracks/tiny.yaml", "# a note\n")
    assert changed("--base", "HEAD") == ["Tiny2026Net-small --track tiny", "Tiny2026Twin-small --track tiny"]
    git("commit", "-qam", "three")
    append(project.root / "benchmark/attacks/pgd.py", "\nNEW = 1\n")
    assert changed("--base", "HEAD") == ["Tiny2026Net-small --track tiny", "Tiny2026Twin-small --track tiny"]
    assert len(changed("--base", "HEAD", "--all")) == 3
