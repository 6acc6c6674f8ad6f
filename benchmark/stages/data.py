"""Stage `data`: a track's pinned source to its three splits. `python -m benchmark.stages.data <track>`"""

from __future__ import annotations

import os
import sys

from benchmark.data.prepare import prepare
from benchmark.loading import tracks
from benchmark.runtime import errors, files, scratch
from benchmark.runtime.paths import WORK


def prepare_data(name: str) -> None:
    """Writes work/<track>/data."""
    track = tracks.load(name)
    target = WORK / name / "data"
    # keyed by this process: an orphan may have read older files at the source, so its result is never taken over
    with scratch.locked(f"{name}/data", {"process": os.getpid()}, target) as folder:
        assert folder is not None
        digests = prepare(track.data, folder / "out")
        files.put_folder(folder / "out", target)
    for split, digest in digests.items():
        print(f"{split}: sha256 {digest}")


if __name__ == "__main__":
    errors.run(lambda: prepare_data(*sys.argv[1:]))
