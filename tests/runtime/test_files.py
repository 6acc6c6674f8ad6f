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
