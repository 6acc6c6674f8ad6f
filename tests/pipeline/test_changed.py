"""Which rows a branch's change can move."""

from __future__ import annotations

import json
import subprocess

import pytest
from tiny_project import Project

from benchmark.pipeline.changed import differences

BEFORE = {
    "code": {"benchmark/a.py": "1", "submissions/S/method.py": "2"},
    "settings": {"seed": 0},
    "arithmetic": "a",
    "reads": ["d"],
}


@pytest.mark.parametrize(
    ("part", "now", "found"),
    [
        ("code", BEFORE["code"], []),
        ("code", BEFORE["code"] | {"benchmark/a.py": "3"}, ["benchmark/a.py"]),
        ("code", {"benchmark/b.py": "1"}, ["benchmark/a.py", "benchmark/b.py", "submissions/S/method.py"]),
        ("settings", {"seed": 1, "model": {}}, ["model", "seed"]),
        ("arithmetic", "b", ["arithmetic"]),
        ("reads", [], ["reads"]),
    ],
)
def test_differences_name_the_files_and_settings(part, now, found) -> None:
    assert differences(BEFORE, BEFORE | {part: now}) == found


def test_what_was_not_there_is_new() -> None:
    assert differences(None, BEFORE) == ["new"]


@pytest.mark.slow
def test_a_row_counts_by_what_its_stages_depend_on(tmp_path) -> None:
    project = Project.new(tmp_path / "project")
    project.add("Tiny2026Net")
    project.add("Tiny2026Twin")
    yaml = project.root / "submissions/Tiny2026Twin/submission.yaml"
    extra = (
        yaml.read_text()
        .partition("variants:\n")[2]
        .replace("  small:", "  extra:")
        .replace("    tracks", "    default: false\n    tracks")
    )
    yaml.write_text(yaml.read_text() + extra)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=project.root, check=True)

    def changed(*options: str) -> list[str]:
        return project.rvb("diff", "--changed-rows", *options).stdout.split("\n")[:-1]

    git("add", "--all")
    git("commit", "-qm", "one")
    git("branch", "-M", "main")
    attack = project.root / "benchmark/attacks/pgd.py"
    attack.write_text("# a comment\n" + attack.read_text())
    assert changed() == []
    yaml.write_text(yaml.read_text().replace("epochs: 40", "epochs: 41"))
    assert changed("--track", "tiny") == ["Tiny2026Twin-extra", "Tiny2026Twin-small"], "their own folder"
    why = json.loads(project.rvb("diff", "--changed-rows", "--json").stdout)
    assert why[1] == {"track": "tiny", "row": "Tiny2026Twin-small", "why": ["train: training", "collect: settings"]}
    git("commit", "-qam", "two")
    attack.write_text(attack.read_text() + "\nNEW = 1\n")
    assert changed() == ["Tiny2026Net-small --track tiny", "Tiny2026Twin-small --track tiny"], "rows of the board"
    assert len(changed("--all")) == 3
    (project.root / "benchmark/pipeline/inputs.py").write_text("raise SystemExit('lost')\n")
    git("commit", "-qam", "three")
    subprocess.run(["git", "checkout", "-q", "HEAD~1", "--", "benchmark"], cwd=project.root, check=True)
    said = project.rvb("diff", "--changed-rows", check=False)
    assert said.returncode == 1
    assert "cannot say what its rows depend on (lost); build every row" in said.stderr
