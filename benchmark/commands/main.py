"""The command `rvb`: all commands together, run from the repository's root, with errors in one line."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import psutil
import typer

from benchmark.commands import attack, diff, doctor, evaluate, pipeline, publish, rows, study, submit, terminal, verify
from benchmark.runtime import arithmetic, errors, paths
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.run_settings import run_settings

ANYWHERE = ("--help", "-h", "--version", "--install-completion", "--show-completion")
app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Clean, attacked and certified accuracy of vision transformers, per image, with evidence.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rvb {version('robust-vit-bench')}")
        raise typer.Exit


@app.callback()
def rvb(
    asked: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")] = False,
) -> None: ...


app.command(name="list")(rows.list_rows)
for command in (
    pipeline.repro, pipeline.plan, pipeline.pipeline, rows.show, rows.board, rows.site, evaluate.evaluate, attack.audit,
    attack.attack, study.study, submit.new, submit.check, doctor.doctor, submit.submit, publish.publish, diff.regress,
    verify.verify, diff.diff, rows.import_robustbench, pipeline.step,
):  # fmt: skip
    app.command()(command)


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    errors.run(_start)


def _end(number: int, _: object) -> None:
    """End what this command started, which no signal to it alone reaches, and then the command."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    raise SystemExit(128 + number)


def _start() -> None:
    """Run the command from the repository's root, in the arithmetic of params.yaml."""
    if terminal.COMPLETE in os.environ:
        with suppress(BenchmarkError):
            os.chdir(paths.root())
    elif not any(flag in sys.argv for flag in ANYWHERE) and sys.argv[1:2] != ["evaluate"]:
        paths.go_to_root()
        arithmetic.fix(run_settings().arithmetic)
    app()


if __name__ == "__main__":
    main()
