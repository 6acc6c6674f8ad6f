"""Step `data`: a track's pinned source to its three splits, in work/<track>/data, shared by all rows of the track."""

from __future__ import annotations

import os
from pathlib import Path

from benchmark.runtime import files, scratch
from benchmark.runtime.paths import WORK
from benchmark.specs import tracks
from benchmark.specs.track import Track


def entries(track: Track) -> list[Path]:
    """Return the files from which the step's code is followed."""
    return [Path("benchmark/steps/data.py"), Path("benchmark/data") / f"{track.data.source}.py"]


def execute(name: str) -> None:
    """Prepare the data of the track `name`: data.json with the digests, and the splits."""
    from benchmark.data.prepare import prepare

    track = tracks.load(name)
    # keyed by this process: an orphan may have read older files at the source, so its result is never taken over
    with scratch.locked(f"{name}/data", {"process": os.getpid()}) as folder:
        digests = prepare(track.data, folder / "out")
        files.put_folder(folder / "out", WORK / name / "data")
    for split, digest in digests.items():
        print(f"{split}: sha256 {digest}")
