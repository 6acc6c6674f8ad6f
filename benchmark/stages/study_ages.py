"""Stage `study_ages`: published studies that are not today's. `python -m benchmark.stages.study_ages <track>`"""

from __future__ import annotations

import sys

from benchmark.runtime import errors, files
from benchmark.studies.ages import ages, ages_file


def write_ages(track: str) -> None:
    """Writes work/<track>/study_ages.json: by published study, why it is not today's; an empty list where it is."""
    found = ages(track)
    files.write_json(ages_file(track), found)
    print(f"{sum(map(bool, found.values()))} of {len(found)} published studies are not today's")


if __name__ == "__main__":
    errors.run(lambda: write_ages(*sys.argv[1:]))
