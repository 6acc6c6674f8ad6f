"""Step `study`: one paper's table or figure, a grid of trainings."""

from __future__ import annotations

from benchmark.runtime import arithmetic, code, files
from benchmark.runtime.errors import BenchmarkError
from benchmark.steps.base import inputs_file
from benchmark.studies import grids


class StudyStep:
    """work/<track>/studies/<submission>-<study>: study.json, verdicts.parquet, weights/. No row depends on it."""

    name = "study"
    subject = "study"

    def execute(self, name: str, track: str, study: str) -> None:
        """
        Raises:
            BenchmarkError: a study that does not load, is of another track, or does not fit its networks.
        """
        from benchmark.studies.running import run_study

        grid = grids.load(*grids.split_id(study), track)
        if grid.track.name != track:
            raise BenchmarkError(f"{grid.file} is a study on track {grid.track.name}, not {track}")
        inputs = files.read_json(inputs_file(track, f"_studies/{study}", name))
        if inputs["settings"] != grid.settings or inputs["arithmetic"] != arithmetic.in_force():
            raise BenchmarkError(f"{grid.file} changed just now; run the same command again")
        run_study(grid, inputs["settings"], code.combined(inputs["code"]))


step = StudyStep()
