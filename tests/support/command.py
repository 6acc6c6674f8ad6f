"""Commands of `rvb`, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from benchmark.commands.main import app


def rvb(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def error(*arguments: str) -> str:
    """The one line with which a command ends."""
    result = rvb(*arguments)
    assert result.exit_code == 1
    message = str(result.exception)
    assert "\n" not in message
    return message
