"""The workflows: a stranger's pull request gets no secret and no token that writes, and steps are scripts of .ci."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from tiny_project import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPT = re.compile(r"(\.ci/[a-z-]+)( \"\$[A-Z]+\")*")
README = ("python3 -m venv .venv && .venv/bin/pip install --quiet tox && .venv/bin/tox", ".venv/bin/tox -e lint")


def problems(workflow: dict) -> list[str]:
    """What in a workflow breaks the rules above; `on` is True where YAML 1.1 reads it."""
    found = []
    triggers = workflow.get("on", workflow.get(True))
    triggers = [triggers] if isinstance(triggers, str) else [*triggers]
    found += [
        f"trigger {name}" for name in triggers if name not in ("pull_request", "push", "schedule", "workflow_dispatch")
    ]
    if "secrets" in yaml.safe_dump(workflow):
        found.append("secrets")
    if workflow.get("permissions") != {"contents": "read"}:
        found.append("permissions of the workflow")
    for name, job in workflow["jobs"].items():
        wider = {key for key, value in job.get("permissions", {}).items() if value != "read"}
        if wider and (
            "pull_request" in triggers or wider - {"pages", "id-token"} or any("run" in s for s in job["steps"])
        ):
            found.append(f"permissions of {name}")
        if not job.get("timeout-minutes"):
            found.append(f"no time limit of {name}")
        for step in job["steps"]:
            found += [f"{name}: {words}" for words in step_problems(step)]
    return found


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


def test_what_the_issue_asks_for_is_there() -> None:
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


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"on": {"pull_request_target": None}}, "trigger pull_request_target"),
        ({"on": "workflow_run"}, "trigger workflow_run"),
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
def test_each_rule_can_be_broken(change, found) -> None:
    assert not problems(GOOD)
    assert problems(GOOD | change) == [found]
