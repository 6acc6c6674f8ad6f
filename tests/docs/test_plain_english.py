"""Sentences and pages of the documentation are short, and say the glossary's words; variables are named after what they hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
OLD = re.compile(r"\b(walled|strangers?'? code|for one in|brought|doubts?|judged|afresh)\b", re.IGNORECASE)


def prose(page: Path) -> str:
    """The page without code, tables, comments, headings and the targets of links."""
    text = re.sub(r"```.*?```|<!--.*?-->|^---\n.*?^---\n", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|!\[)", line)]
    text = re.sub(r"^( *[-*] | *\d+\. |: +)", ".\n", "\n".join(lines), flags=re.MULTILINE)  # an item begins a sentence
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]+`", "code", text)).replace("\n\n", ".\n")


def sentences(page: Path) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:;])\s+", prose(page)) if re.search(r"\w", part)]


def words(text: str) -> int:
    return len(re.findall(r"[\w'’/%.-]*\w[\w'’/%.-]*", text))


def test_sentences_are_counted(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nOne `two three` four. Five\nsix [seven](eight.md).\n\n- nine\n- ten\n\n| a | b |\n")
    assert [words(part) for part in sentences(page)] == [3, 3, 1, 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_is_long_and_no_word_old(page) -> None:
    assert not [part for part in sentences(page) if words(part) > 35]
    assert not OLD.findall(prose(page))


def test_most_sentences_and_pages_are_short() -> None:
    lengths = sorted(words(part) for page in PAGES for part in sentences(page))
    assert lengths[len(lengths) * 9 // 10] <= 21
    assert median(len(page.read_text().split()) for page in PAGES) <= 400


def test_no_variable_of_the_benchmark_or_the_site_is_named_found_said_or_wanted() -> None:
    """Fields of Records and what `Verification` calls them keep their names."""
    named = []
    for path in sorted(path for folder in ("benchmark", "leaderboard") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                named.append((node.id, path, node.lineno))
            elif isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
                named += [("for one in", path, node.target.lineno)] * (node.target.id == "one")
    fields = {ROOT / "benchmark/records" / name for name in ("check.py", "training.py")}
    fields.add(ROOT / "benchmark/evaluation/replay/findings.py")
    dialect = {"found", "said", "wanted", "for one in"}
    assert len(named) > 5000
    assert not [(word, path, line) for word, path, line in named if word in dialect and path not in fields]
