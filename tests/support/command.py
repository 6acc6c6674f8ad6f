"""Commands of `rvb`, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from benchmark.commands.main import app


def rvb(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def error(*arguments: str) -> str:
    """Return the one line with which a command ends."""
    result = rvb(*arguments)
    assert result.exit_code == 1
    message = str(result.exception)
    assert "\n" not in message
    return message


def tiny_rvb(*arguments: str) -> Result:
    return rvb(*arguments, "--track", "tiny")


def tiny_error(*arguments: str) -> str:
    """Return the one line with which a command on the track `tiny` ends."""
    return error(*arguments, "--track", "tiny")
