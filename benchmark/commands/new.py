"""`rvb new`: a submission's folder that passes `rvb check` as it is. torch is not imported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from benchmark.commands.terminal import console
from benchmark.loading import submissions
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError

TEMPLATE = Path(__file__).parent / "template"
NAME = re.compile(r"(?P<author>[A-Z][A-Za-z]*)(?P<year>(?:19|20)\d\d)(?P<word>[A-Z][A-Za-z0-9]*)")
LONGEST = 60  # a row's name stands in file names, with more around it


def new(
    name: Annotated[str, typer.Argument(help="<Name><Year><Word>, such as Doe2026Tiny.")],
    title: Annotated[str, typer.Option(help="The paper's (default: the name's last word).")] = "",
    authors: Annotated[str, typer.Option(help="As a citation names them (default: the name's first part).")] = "",
    url: Annotated[str, typer.Option(help="Where the paper can be read.")] = "",
) -> None:
    """Start a submission: a folder with a small vision transformer for digits, to be changed into yours."""
    for path in write_submission(name, title, authors, url):
        console.print(f"wrote {path}")
    console.print(f"next: edit them, then `rvb check {name}` and `rvb repro {name}-small`")


def write_submission(name: str, title: str = "", authors: str = "", url: str = "") -> list[Path]:
    """Writes submissions/<name>; the files, in order. submission.yaml, which makes the folder a submission, comes last.

    Raises:
        BenchmarkError: a name that is not <Name><Year><Word>, or a folder that is there, be it in other letter case.
    """
    parts = NAME.fullmatch(name)
    if not parts or len(name) > LONGEST:
        raise BenchmarkError(
            f"bad name {name[:LONGEST]!r}: use <Name><Year><Word> of at most {LONGEST} characters, such as Doe2026Tiny"
        )
    taken = {path.name.lower(): path for path in submissions.FOLDER.iterdir()}
    if name.lower() in taken:
        raise BenchmarkError(f"{taken[name.lower()]} exists; choose another word, or delete the folder")
    quoted = {
        "title": title or parts["word"],
        "authors": authors or parts["author"],
        "url": url,
        "shown": f"{parts['word']}, ViT of width 32",
    }
    given = {
        "name": name,
        **parts.groupdict(),
        **{key: json.dumps(text, ensure_ascii=False) for key, text in quoted.items()},
    }
    written = []
    for source in sorted(TEMPLATE.glob("*.txt"), key=lambda path: path.stem == "submission.yaml"):
        target = submissions.FOLDER / name / source.stem
        files.write(target, Template(source.read_text()).substitute(given))
        written.append(target)
    return written
