"""The documentation: files that it names exist, its examples load, and its reference pages are the code's."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from pydantic import BaseModel

from benchmark.specs.base import Frozen
from benchmark.specs.study import Study
from benchmark.specs.submission import Submission, VariantOnTrack

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "measurements/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "submissions").glob("*/*.md")),
]
BASES = ("", "benchmark", "benchmark/certificates", "benchmark/attacks")  # what a page may say a file's place from
CODE = ("benchmark", "leaderboard", "measurements", "submissions")
FILE = re.compile(r"(?:[\w.*-]+/)*[\w*-]+\.(?:py|md|yaml|yml)|(?:benchmark|leaderboard|submissions)/[\w/]+")
# of the examples, and files that a reader may add
MADE_UP = ("Mine2026Net", "model.py", "submission.yml", "margin_descent.py", "resources.yaml", "slurm.yaml")


def named_files(text: str) -> set[str]:
    """Files and folders in `code` outside blocks; places with <something> in them are patterns, not names."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {span for span in spans if FILE.fullmatch(span) and not any(name in span for name in MADE_UP)}


def exists(name: str, page: Path) -> bool:
    """Whether the page's reader finds it; a file spoken of by its last name alone may lie anywhere in the code."""
    bases = [page.parent, *(ROOT / base for base in BASES)]
    bare = [] if "/" in name else [path for folder in CODE for path in (ROOT / folder).rglob(name)]
    return bool(bare) or any(True for base in bases for _ in base.glob(name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page) -> None:
    missing = sorted(name for name in named_files(page.read_text()) if not exists(name, page))
    assert not missing


def test_names_of_missing_files_are_found() -> None:
    text = "`benchmark/gone.py`, `gone.py`, `rvb show`, `benchmark/tracks/*.yaml`\n```\n`block.py`\n```\n"
    assert named_files(text) == {"benchmark/gone.py", "gone.py", "benchmark/tracks/*.yaml"}
    assert [name for name in named_files(text) if exists(name, ROOT / "README.md")] == ["benchmark/tracks/*.yaml"]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_out_of_the_front_pages_lead_somewhere(page) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_each_page_leads_to_the_front_page_the_boards_what_changed_citation_and_licence() -> None:
    links = set(re.findall(r'base_url }}/\.\./([^"]+)', (ROOT / "docs/overrides/main.html").read_text()))
    assert links == {"index.html", "index.html#tracks", "index.html#cite", "changes.html", "LICENSE.txt"}


def example(page: str) -> dict:
    return yaml.safe_load((ROOT / "docs" / page).read_text().partition("```yaml\n")[2].partition("```")[0])


def test_the_example_of_a_submission_shows_every_key() -> None:
    given = example("adding-a-model.md")
    submission = Submission.model_validate(given)
    assert set(given) == set(Submission.model_fields)
    (shown,) = given["variants"]["small"]["tracks"].values()
    assert set(shown) == set(VariantOnTrack.model_fields) - {"weights"}
    assert set(given["claims"][0]) == set(type(submission.claims[0]).model_fields)
    assert set(given["paper"]) == set(type(submission.paper).model_fields)


def test_the_example_of_a_study_loads() -> None:
    assert len(Study.model_validate(example("studies.md")).grid()) == 4


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_class_of_yaml() -> set[str]:
    def below(kind: type[BaseModel]) -> set[type[BaseModel]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    written = {kind.__name__ for kind in below(Frozen) if kind.__module__.startswith("benchmark.specs.")}
    return written - {"Frozen", "ThreatModel", "GridCell"}  # bases, and a cell that no file writes


def test_every_class_of_the_specifications_has_its_table_once(reference) -> None:
    headings = re.findall(r"^## (\w+)$", "\n".join(reference.pages().values()), re.MULTILINE)
    assert sorted(headings) == sorted(set(headings))
    assert every_class_of_yaml() == set(headings)


def test_a_key_stands_with_its_type_default_limits_and_comment(reference) -> None:
    training = reference.pages()["training"]
    for line in (
        "| `epochs` | integer | required | at least 0 |",
        "| `sam` | number | `0.0` | at least 0, finite | rho of sharpness-aware minimisation; 0 is without |",
        "| `attack` | [AttackSpec](#attackspec) or null | `null` |",
    ):
        assert line in training
    assert "[AttackSpec](training.md#attackspec)" in reference.pages()["submission"]


def test_every_command_stands_with_its_options(reference) -> None:
    commands, jobs = reference.pages()["commands"], "Stages at a time; by default one a core, or one a GPU."
    for name in ("repro", "publish", "regress", "step"):
        assert f"## rvb {name}\n" in commands
    assert f"| `--jobs`, `-j` | the number of cores | {jobs} |" in commands
    assert "&lt;submission>-&lt;variant>" in commands, "not HTML"
