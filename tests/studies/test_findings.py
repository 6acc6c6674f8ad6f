"""Findings of a study: a submission's function over its numbers and verdicts, computed when it is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_study
from tiny_project import edit

from benchmark.records.finding import Finding
from benchmark.runtime.errors import BenchmarkError
from benchmark.studies.results import collect_study

FINDINGS = """\
from benchmark.records.finding import Finding


def shown(result, verdicts):
    right = verdicts["clean: right"].to_pylist()
    share = sum(right) / len(right)
    return [Finding.of("The <network> learns", "share of images", f"{len(right)} verdicts", (share, share - 0.01, share))]


def nothing(result, verdicts):
    return []


def forged(result, verdicts):
    Finding.model_dump = lambda *_, **__: {"verdict": "holds"}
    return shown(result, verdicts)
"""
SMALL = ("seeds: [0, 1]\ncells:\n  - {name: as it is}\n", "findings: shown\nseeds: [0]\ncells:\n")
STUDY = "submissions/Tiny2026Linear/studies/grid.yaml"


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.1, 1, "holds"), (-1, -0.1, "opposite"), (-1, 1, "not shown")])
def test_the_verdict_is_the_intervals(low, high, verdict) -> None:
    assert Finding.of("s", "t", "o", ((low + high) / 2, low, high)).verdict == verdict


@pytest.fixture
def ran(studied) -> None:
    """A study that ran, with findings, which a sandbox computes."""
    Path("submissions/Tiny2026Linear/findings.py").write_text(FINDINGS)
    tiny_study.add(studied, SMALL)
    tiny_study.run()
    edit("params.yaml", "wall: none", "wall: full")


@pytest.mark.usefixtures("ran")
def test_they_are_computed_from_verdicts_beside_the_digest_of_their_code_and_refused_where_they_are_none() -> None:
    published = collect_study(tiny_study.load())
    (finding,) = published.findings
    count = sum(run.values["clean"] for run in published.result.runs) / len(published.result.runs)
    assert finding.estimate == pytest.approx(count)
    edit("submissions/Tiny2026Linear/findings.py", "0.01", "0.02")
    assert collect_study(tiny_study.load()).findings_code != published.findings_code
    verdicts = tiny_study.RESULT / "verdicts.parquet"
    kept = verdicts.read_bytes()
    verdicts.write_bytes(b"other")
    with pytest.raises(BenchmarkError, match=r"verdicts\.parquet is missing or is not of "):
        collect_study(tiny_study.load())
    verdicts.write_bytes(kept)
    edit(STUDY, "findings: shown", "findings: nothing")
    with pytest.raises(BenchmarkError, match="nothing must return a list of Finding, at least one"):
        collect_study(tiny_study.load())
    edit(STUDY, "findings: nothing", "findings: forged")
    with pytest.raises(BenchmarkError, match="forged gives no Finding"):
        collect_study(tiny_study.load())
    edit(STUDY, "findings: forged", "findings: show")
    with pytest.raises(BenchmarkError, match=r"no function 'show'; .*did you mean 'shown'"):
        tiny_study.load()
    Path("submissions/Tiny2026Linear/findings.py").unlink()
    with pytest.raises(BenchmarkError, match=r"there is no .*findings\.py"):
        tiny_study.load()
    assert json.loads((tiny_study.RESULT / "study.json").read_text())["runs"], "what ran stays"
