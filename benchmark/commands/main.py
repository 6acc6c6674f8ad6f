"""The command `rvb`: puts the commands together, works from the repository's root, and says errors in one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from benchmark.commands import (
    attack,
    audit,
    check,
    compare_engines,
    diff,
    exchange,
    new,
    pipeline,
    publish,
    regress,
    rows,
    study,
)
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import arithmetic, errors
from benchmark.runtime.errors import BenchmarkError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Clean, attacked and certified accuracy of vision transformers, per image, with evidence.",
)
app.command()(pipeline.repro)
app.command()(pipeline.pipeline)
app.command(name="list")(rows.list_rows)
app.command()(rows.show)
app.command()(audit.audit)
app.command()(compare_engines.compare_engines)
app.command()(attack.attack)
app.command()(study.study)
app.command()(new.new)
app.command()(check.check)
app.command()(publish.publish)
app.command()(regress.regress)
app.command()(diff.diff)
app.command()(exchange.import_robustbench)
app.command()(exchange.export_robustbench)
app.command()(pipeline.stage)


def main() -> None:
    errors.run(_start)


def _start() -> None:
    _settle()
    app()


def _settle() -> None:
    """Works from the repository's root, wherever inside it the command was typed, and in the arithmetic of params.yaml."""
    if any(flag in sys.argv for flag in ("--help", "-h")):
        return
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "submissions").is_dir() and (folder / "params.yaml").is_file():
            os.chdir(folder)
            arithmetic.fix(run_settings().arithmetic)
            return
    raise BenchmarkError(
        "run rvb inside a checkout of robust-vit-bench; no submissions/ and params.yaml found here or above"
    )


if __name__ == "__main__":
    main()
