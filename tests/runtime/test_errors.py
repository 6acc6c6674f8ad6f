"""What the machine lacks ends a command with one line that says what to do."""

from __future__ import annotations

import pytest
import torch

from benchmark.runtime import errors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has a total"),
            "CUDA out of memory",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "DefaultCPUAllocator: can't",
        ),
        (MemoryError(), "(MemoryError)"),
        (RuntimeError("CUDA error: out of memory"), "CUDA error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "ALLOC_FAILED"),
        (errors.OutOfMemory("submissions/X: OutOfMemoryError: CUDA out of memory"), "submissions/X"),
    ],
)
def test_a_full_memory_is_one_line_and_counts_as_such_on_a_cluster(error, words, capsys) -> None:
    def full() -> None:
        raise error

    with pytest.raises(SystemExit, match=r"^error: out of memory \(.+\); use .*a smaller batch_size") as ended:
        errors.run(full)
    text = str(ended.value)
    assert words in text
    assert "\n" not in text
    assert errors.FULL_MEMORY.search(text), "the stage is tried again"


def test_another_error_is_no_full_memory() -> None:
    def wrong() -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        errors.run(wrong)
