"""What every stage of one row shares: its scratch key, its clock, how it ends."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmark.loading.rows import Entry
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import files
from benchmark.runtime.environment import environment


class Clock:
    """Seconds that a stage took, over all the runs it needed; kept in its scratch folder until it is done.

    Written beside the results and never into them, since no two runs take the same time.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "seconds.json"
        self._before: dict[str, float] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._wall, self._process = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        wall, process = time.perf_counter() - self._wall, time.process_time() - self._process
        return {
            "wall_seconds": round(self._before.get("wall_seconds", 0.0) + wall, 2),
            "process_seconds": round(self._before.get("process_seconds", 0.0) + process, 2),
        }

    def lap(self) -> None:
        """Keeps the time so far in case this process is killed."""
        files.write_json(self._path, self.seconds())


def evaluation_inputs(row: Entry, stage: str, rules: Any) -> dict[str, Any]:
    """Everything that an evaluation stage's result depends on: the key of its partial work. `rules` are its own."""
    return {
        "rules": rules,
        "evaluation": row.track.evaluation.model_dump(),
        "run": run_settings().evaluate.model_dump(),
        "data": files.read_json(row.data / "data.json"),
        "weights": files.sha256_file(row.folder / "train" / "model.safetensors"),
        "code": files.sha256_files(row.code(stage)),
        "torch": version("torch"),
    }


def finish(row: Entry, stage: str, out: Path, code_digest: str, clock: Clock) -> None:
    """Completes a stage: its environment and code beside its results, all moved to their place, its times apart."""
    files.write_json(out / "stage.json", {"environment": environment(), "code": code_digest})
    files.put_folder(out, row.folder / stage)
    files.write_json(row.folder / "times" / f"{stage}.json", clock.seconds())
