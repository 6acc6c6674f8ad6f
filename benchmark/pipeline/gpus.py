"""Which GPUs stages compute on side by side, and so how many run at a time."""

from __future__ import annotations

import os
import queue

from benchmark.specs.run_settings import RunSettings, device_of, run_settings

GPUS = "CUDA_VISIBLE_DEVICES"


def shared_gpus(settings: RunSettings) -> list[str]:
    """Return the GPUs over which stages are spread, as CUDA_VISIBLE_DEVICES names them.

    There are none where params.yaml asks for the CPU, or names a GPU by its index, which all stages then share.
    """
    devices = (settings.train.device, settings.evaluate.device)
    if not any(device in ("cuda", "auto") for device in devices) or _names_one(settings):
        return []
    import torch  # slow, and not needed for the CPU

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return (named or [str(index) for index in range(count)])[:count]


def default_jobs(settings: RunSettings) -> int:
    """Return how many stages run at a time without `--jobs`: one a GPU, one alone on a GPU that is named, else one a core.

    A training that several processes share takes as many GPUs or cores.
    """
    if _names_one(settings):
        return 1
    gpus = len(shared_gpus(settings))
    return max(1, gpus // _each(settings) if gpus else (os.cpu_count() or 1) // settings.train.processes)


def places(settings: RunSettings, jobs: int) -> queue.SimpleQueue[str | None]:
    """Return places for `jobs` stages at a time: each one's GPUs, joined by commas, dealt out in turn; None without GPUs.

    A place has as many GPUs as processes share a training.
    """
    gpus, each = shared_gpus(settings), _each(settings)
    together = [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - len(gpus) % each, each)]
    together = together or ([",".join(gpus)] if gpus else [])
    free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for place in range(jobs):
        free.put(together[place % len(together)] if together else None)
    return free


def _each(settings: RunSettings) -> int:
    """Return the GPUs of a stage: one, or one for each process of a training on GPUs."""
    return settings.train.processes if settings.train.device in ("cuda", "auto") else 1


def _names_one(settings: RunSettings) -> bool:
    return any(device.startswith("cuda:") for device in (settings.train.device, settings.evaluate.device))


def needs(key: str) -> tuple[int, str]:
    """Return how many processes compute a stage, each on a core or a GPU of its own, and its device in params.yaml."""
    stage = key.rpartition(":")[2]
    return run_settings().train.processes if stage == "train" else 1, device_of(stage)
