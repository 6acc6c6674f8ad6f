"""The workflows: a contributed pull request gets no secret and no token that writes, and steps are scripts of .ci.

The workflow that comments on a pull request runs after CI, on main's files. It may write to pull requests, and checks out
nothing of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tiny_project import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPT = re.compile(r"(\.ci/[a-z-]+)( \"\$[A-Z]+\")*")
README = ("python3 -m venv .venv && .venv/bin/pip install --quiet tox && .venv/bin/tox", ".venv/bin/tox -e lint")


def problems(workflow: dict) -> list[str]:
    """The parts of a workflow that break the rules above; `on` is True where YAML 1.1 reads it."""
    triggers = workflow.get("on", workflow.get(True))
    triggers = [triggers] if isinstance(triggers, str) else [*triggers]
    after, allowed = triggers == ["workflow_run"], ("pull_request", "push", "schedule", "workflow_dispatch")
    broken = [f"trigger {name}" for name in triggers if name not in allowed and not after]
    if "secrets" in yaml.safe_dump(workflow):
        broken.append("secrets")
    if workflow.get("permissions") != {"contents": "read"}:
        broken.append("permissions of the workflow")
    for name, job in workflow["jobs"].items():
        steps = job["steps"]
        wider = {key for key, value in job.get("permissions", {}).items() if value != "read"}
        runs = any("run" in step for step in steps)
        in_public = wider and ("pull_request" in triggers or wider - {"pages", "id-token"} or runs)
        if wider - {"pull-requests"} if after else in_public:
            broken.append(f"permissions of {name}")
        if after and any({"ref", "repository"} & {*step.get("with", ())} for step in steps):
            broken.append(f"{name} checks out another commit than main's")
        unpacked = [step.get("with", {}).get("path", "") for step in steps if "download-artifact" in step.get("uses", "")]
        if after and not all(place.startswith("${{ runner.temp }}/") for place in unpacked):
            broken.append(f"{name} unpacks contributed files over main's")
        if not job.get("timeout-minutes"):
            broken.append(f"no time limit of {name}")
        broken += [f"{name}: {words}" for step in steps for words in step_problems(step)]
    return broken


def step_problems(step: dict) -> list[str]:
    command, uses = step.get("run"), step.get("uses", "")
    if command is not None:
        script = SCRIPT.fullmatch(command)
        if command not in README and not (script and os.access(ROOT / script[1], os.X_OK)):
            return [f"run: {command}"]
    elif not (uses.startswith("./.github/actions/") or re.fullmatch(r"actions/[a-z-]+@v\d+", uses)):
        return [f"uses: {uses}"]
    if uses.startswith("actions/checkout") and step.get("with", {}).get("persist-credentials") is not False:
        return ["the checkout keeps its token"]
    return []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_keeps_the_rules(path: Path) -> None:
    assert not problems(yaml.safe_load(path.read_text()))


def test_every_kind_of_workflow_and_script_is_used() -> None:
    triggers = {path.stem: yaml.safe_load(path.read_text())[True] for path in WORKFLOWS}
    assert "pull_request" in triggers["ci"]
    assert "schedule" in triggers["nightly"]
    assert triggers["pages"]["push"] == {"branches": ["main"]}
    ran = "\n".join(path.read_text() for path in WORKFLOWS)
    scripts = {path.name for path in (ROOT / ".ci").iterdir()} - {"run"}  # for people, as its first line says
    assert scripts == {name for name in scripts if f"run: .ci/{name}" in ran}


GOOD = {
    "on": {"pull_request": None},
    "permissions": {"contents": "read"},
    "jobs": {"a": {"timeout-minutes": 5, "steps": [{"run": '.ci/pull-request "$BASE"'}]}},
}
AFTER = {"on": {"workflow_run": {"workflows": ["ci"]}}}
MAINS = {"uses": "actions/checkout@v4", "with": {"persist-credentials": False}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"on": {"pull_request_target": None}}, "trigger pull_request_target"),
        ({"on": {"workflow_run": None, "pull_request": None}}, "trigger workflow_run"),
        (AFTER | {"jobs": {"a": GOOD["jobs"]["a"] | {"permissions": {"contents": "write"}}}}, "permissions of a"),
        (AFTER | {"jobs": {"a": {"timeout-minutes": 5, "steps": [MAINS | {"with": MAINS["with"] | {"ref": "theirs"}}]}}}, "a checks out another commit than main's"),
        (AFTER | {"jobs": {"a": {"timeout-minutes": 5, "steps": [{"uses": "actions/download-artifact@v4"}]}}}, "a unpacks contributed files over main's"),
        ({"permissions": {"contents": "write"}}, "permissions of the workflow"),
        ({"permissions": "write-all"}, "permissions of the workflow"),
        ({"env": {"A": "${{ secrets.A }}"}}, "secrets"),
        ({"jobs": {"a": GOOD["jobs"]["a"] | {"permissions": {"pages": "write"}}}}, "permissions of a"),
        ({"jobs": {"a": {"steps": []}}}, "no time limit of a"),
        ({"jobs": {"a": GOOD["jobs"]["a"] | {"steps": [{"run": "echo ${{ github.head_ref }}"}]}}}, "a: run: echo ${{ github.head_ref }}"),
        ({"jobs": {"a": GOOD["jobs"]["a"] | {"steps": [{"run": ".ci/gone"}]}}}, "a: run: .ci/gone"),
        ({"jobs": {"a": GOOD["jobs"]["a"] | {"steps": [{"uses": "someone/else@v1"}]}}}, "a: uses: someone/else@v1"),
        ({"jobs": {"a": GOOD["jobs"]["a"] | {"steps": [{"uses": "actions/checkout@v4"}]}}}, "a: the checkout keeps its token"),
    ],
)  # fmt: skip
def test_each_rule_can_be_broken(change, problem) -> None:
    assert not problems(GOOD)
    assert not problems(GOOD | AFTER)
    assert problems(GOOD | change) == [problem]


@pytest.fixture
def comment(tmp_path) -> Callable[[], tuple[list[str], str]]:
    """Run .ci/comment on the folder `given`; return the calls of gh, and what it printed."""
    (tmp_path / "checkout/.ci").mkdir(parents=True)
    (tmp_path / "given").mkdir()
    shutil.copy(ROOT / ".ci/comment", tmp_path / "checkout/.ci/comment")
    (tmp_path / "gh").write_text('#!/bin/sh\necho "$@" >> "$LOG"\n[ "$2" != list ] || echo 7\n')
    (tmp_path / "gh").chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log)}

    def run() -> tuple[list[str], str]:
        command = [tmp_path / "checkout/.ci/comment", "0123abc", tmp_path / "given"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return log.read_text().splitlines(), done.stderr

    return run


@pytest.mark.parametrize(
    ("counts", "new", "change"),
    [
        ("1 new, 0 removed, 0 changed, 20 same", "add", "remove"),
        ("0 new, 0 removed, 12 changed, 8 same", "remove", "add"),
        ("10 new, 1 removed, 0 changed, 8 same", "add", "add"),
        ("0 new, 0 removed, 0 changed, 20 same", "remove", "remove"),
        ("label me `evil`: 1 new, 0 removed, 0 changed, 20 same", "remove", "remove"),
    ],
)
def test_a_pull_request_is_commented_and_labelled(comment, counts, new, change, tmp_path) -> None:
    (tmp_path / "given/pull-request.md").write_text(f"### Rows\n\n{counts}\n")
    (asked, posted, *labelled), _ = comment()
    assert 'select(.headRefOid == "0123abc")' in asked
    assert posted == "pr comment 7 --edit-last --create-if-none --body-file comment.md"
    text = (tmp_path / "checkout/comment.md").read_text()
    assert text == f"Written by the code of the pull request itself, at 0123abc:\n\n### Rows\n\n{counts}\n"
    edits = ((new, "new row"), (change, "numbers change"))
    assert labelled == [
        command for edit, label in edits for command in (f"label create {label} --force", f"pr edit 7 --{edit}-label {label}")
    ]


def test_a_link_is_not_followed_and_where_ci_wrote_nothing_of_rows_nothing_is_commented(comment, tmp_path) -> None:
    nothing = ([], "CI wrote nothing of rows\n")
    assert comment() == nothing
    (tmp_path / "given/pull-request.md").touch()
    assert comment() == nothing
    (tmp_path / "given/pull-request.md").unlink()
    (tmp_path / "given/pull-request.md").symlink_to("/proc/self/environ")
    assert comment() == nothing
