"""Files are written completely or not at all; a full disk or memory ends a command with one line."""

from __future__ import annotations

from multiprocessing import get_context

import pytest
import torch

from benchmark.runtime import errors, files


def raising(error: Exception):
    def work(*_: object) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has"), "CUDA out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "CPUAllocator: can't"),
        (MemoryError(), "(MemoryError)"),
        (RuntimeError("CUDA error: out of memory"), "CUDA error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "ALLOC_FAILED"),
        (errors.OutOfMemory("submissions/X: OutOfMemoryError: CUDA out of memory"), "submissions/X"),
    ],
)
def test_a_full_memory_is_one_line_and_counts_as_such_on_a_cluster(error, words, capsys) -> None:
    with pytest.raises(SystemExit, match=r"^error: out of memory \(.+\); use .*a smaller batch_size") as ended:
        errors.run(raising(error))
    text = str(ended.value)
    assert words in text
    assert "\n" not in text
    assert errors.FULL_MEMORY.search(text), "the stage is tried again"


def test_a_lost_gpu_is_one_line() -> None:
    lost = RuntimeError("CUDA error: GPU is lost\nCUDA kernel errors might be asynchronously reported")
    with pytest.raises(
        SystemExit, match=r"^error: the GPU failed \(CUDA error: GPU is lost\); see what `nvidia-smi` says, .* kept$"
    ):
        errors.run(raising(lost))


@pytest.mark.parametrize(
    "words", ["device-side assert triggered", "no kernel image is available for execution on the device"]
)
def test_an_error_of_the_code_is_no_lost_gpu(words) -> None:
    assert not errors.of_disk_or_gpu(RuntimeError(f"CUDA error: {words}"))


def test_another_error_is_no_full_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"):
        errors.run(raising(RuntimeError("shapes differ")))


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "results.json"
    files.write(path, "old")
    monkeypatch.setattr(files.os, "fsync", raising(OSError(28, "No space left on device", str(path))))
    with pytest.raises(SystemExit, match=r"the disk is full while writing .*results\.json"):
        errors.run(lambda: files.write(path, "new"))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_put_without_what_a_killed_write_left_aside(tmp_path) -> None:
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
