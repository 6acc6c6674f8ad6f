"""Which rows a branch's change can move."""

from __future__ import annotations

import subprocess

import pytest
from tiny_project import Project


@pytest.mark.slow
def test_a_row_counts_by_what_its_steps_read(tmp_path) -> None:
    project = Project.new(tmp_path / "project")
    project.add("Tiny2026Net")
    project.add("Tiny2026Twin")
    yaml = project.root / "submissions/Tiny2026Twin/submission.yaml"
    extra = yaml.read_text().partition("variants:\n")[2].replace("  small:", "  extra:")
    yaml.write_text(yaml.read_text() + extra.replace("    tracks", "    default: false\n    tracks"))

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=project.root, check=True)

    def changed(*options: str) -> list[str]:
        return project.rvb("diff", "--changed-rows", *options).stdout.split("\n")[:-1]

    git("add", "--all")
    git("commit", "-qm", "one")
    git("branch", "-M", "main")
    assert changed() == []
    (project.root / "README.md").write_text("not read")
    with (project.root / "benchmark/steps/corrupt.py").open("a") as of_no_row:
        of_no_row.write("\nNEW = 1\n")
    assert changed() == []
    yaml.write_text(yaml.read_text().replace("epochs: 40", "epochs: 41"))
    assert changed("--track", "tiny") == ["Tiny2026Twin-extra", "Tiny2026Twin-small"], "their own folder"
    git("commit", "-qam", "two")
    attack = project.root / "benchmark/attacks/pgd.py"
    attack.write_text(attack.read_text() + "\nNEW = 1\n")
    assert changed("--base", "HEAD") == ["Tiny2026Net-small --track tiny", "Tiny2026Twin-small --track tiny"]
    assert len(changed("--base", "HEAD", "--all")) == 3
