"""Files are written whole or not at all."""

from __future__ import annotations

import pytest

from benchmark.runtime import files


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch, capsys) -> None:
    from benchmark.runtime import errors

    path = tmp_path / "results.json"
    files.write(path, "old")

    def full(*_) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(SystemExit, match=r"the disk is full while writing .*results\.json"):
        errors.run(lambda: files.write(path, "new"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_put_without_what_a_killed_write_left_aside(tmp_path) -> None:
    from multiprocessing import get_context

    built, target = tmp_path / "built", tmp_path / "target"

    def killed() -> None:
        files.os.replace = lambda *_: files.os._exit(1)
        files.write(built / "weights" / "0-1.safetensors", "whole, not renamed")

    writer = get_context("fork").Process(target=killed)
    writer.start()
    writer.join(60)
    assert writer.exitcode == 1
    assert len(list(built.rglob(".0-1.safetensors.*"))) == 1
    files.write(built / "weights" / "0-1.safetensors", "whole")
    files.write(built / ".kept", "a file that starts with a dot")
    files.put_folder(built, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"weights/0-1.safetensors", ".kept"}
