"""Step `data`: a track's pinned source to its three splits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmark.loading import tracks
from benchmark.runtime import files, scratch
from benchmark.runtime.paths import WORK
from benchmark.specs.track import Track


class Data:
    """work/<track>/data, which all rows of a track share: data.json with the digests, and the splits."""

    name = "data"

    def settings(self, track: Track) -> dict[str, Any]:
        return track.data.model_dump(mode="json")

    def components(self, track: Track) -> list[Path]:
        return [Path("benchmark/data") / f"{track.data.source}.py"]

    def folder(self, track: Track) -> Path:
        return WORK / track.name / "data"

    def execute(self, track_name: str) -> None:
        from benchmark.data.prepare import prepare

        track = tracks.load(track_name)
        # keyed by this process: an orphan may have read older files at the source, so its result is never taken over
        with scratch.locked(f"{track_name}/data", {"process": os.getpid()}) as folder:
            digests = prepare(track.data, folder / "out")
            files.put_folder(folder / "out", self.folder(track))
        for split, digest in digests.items():
            print(f"{split}: sha256 {digest}")


step = Data()
