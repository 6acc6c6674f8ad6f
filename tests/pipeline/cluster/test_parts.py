"""What parts found, on its way through the DVC remote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.pipeline.cluster import parts

KEY = "a" * 24


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a DVC remote; the working directory is a repository that has it as default."""
    home = tmp_path / "repository"
    home.mkdir()
    monkeypatch.chdir(home)
    for command in ("init --quiet --no-scm", f"remote add --quiet --default store {tmp_path / 'store'}"):
        subprocess.run([sys.executable, "-m", "dvc", *command.split()], check=True)
    return tmp_path / "store"


def found(folder: Path, part: str, text: str) -> Path:
    """The folder of a part with two blocks and its seconds."""
    folder.mkdir(parents=True)
    for name in (f"{part}-a.safetensors", f"{part}-b.safetensors"):
        (folder / name).write_text(f"{text} {name}")
    (folder / f"seconds-{part}.json").write_text('{"wall_seconds": 1.0}')
    return folder


def test_parts_come_back_as_they_were_sent_and_go_when_the_stage_is_done(store, tmp_path) -> None:
    one, two = found(tmp_path / "one", "0-3", "first"), found(tmp_path / "two", "3-6", "second")
    assert not parts.known(KEY, "0-3", print)
    parts.send(KEY, "0-3", one, print)
    parts.send(KEY, "3-6", two, print)
    assert parts.known(KEY, "0-3", print)
    assert not parts.known("b" * 24, "0-3", print)
    parts.bring(KEY, ("0-3", "3-6", "6-9"), tmp_path / "blocks", print)
    sent = {path.name: path.read_bytes() for folder in (one, two) for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "blocks").iterdir()} == sent
    parts.remove(KEY, print)
    assert not parts.known(KEY, "0-3", print)
    assert not [path for path in store.rglob("*") if path.is_file()]
    parts.remove(KEY, print)  # another that did the same stage was first


def test_a_part_that_was_cut_short_is_not_taken_up(store, tmp_path) -> None:
    """Its seconds are sent last."""
    one = found(tmp_path / "one", "0-3", "first")
    parts.send(KEY, "0-3", one, print)
    (store / parts.FOLDER / KEY / "0-3" / "seconds-0-3.json").unlink()
    assert not parts.known(KEY, "0-3", print)
    parts.bring(KEY, ("0-3",), tmp_path / "blocks", print)
    assert not [*(tmp_path / "blocks").iterdir()]
    parts.send(KEY, "0-3", one, print)
    assert parts.known(KEY, "0-3", print)


def test_a_remote_that_comes_back_gets_the_part(store, tmp_path, monkeypatch) -> None:
    one, said, calls = found(tmp_path / "one", "0-3", "first"), [], []
    opened = parts.remote.opened

    def away():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("no route to host")
        return opened()

    monkeypatch.setattr(parts.remote, "opened", away)
    monkeypatch.setattr(parts.remote.time, "sleep", lambda _: None)
    parts.send(KEY, "0-3", one, said.append)
    assert len(said) == 2
    assert said[0].startswith("could not send part 0-3 to the DVC remote: ConnectionError: no route to host; again in")
    assert parts.known(KEY, "0-3", print)
