"""Results of stages between DVC's cache here and its remote, by their digests."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage
    from dvc_data.hashfile.db import HashFileDB
    from dvc_data.hashfile.hash_info import HashInfo

FULL = (errno.ENOSPC, errno.EDQUOT)


def pull(stages: Sequence[Stage]) -> None:
    """Brings the results of stages into the cache here; what hindered it is raised, since DVC itself only logs that."""
    there = _unindexed(stages[0].repo)
    listings = {out.hash_info for stage in stages for out in stage.outs if out.hash_info}
    _moved(listings, stages[0].repo.cloud.pull, there)  # of all folders at once; DVC brings them one by one
    _moved(_used(stages), stages[0].repo.cloud.pull, there)


def push(stage: Stage) -> None:
    """Sends a stage's results, a folder's listing after its files; what hindered it is raised."""
    _moved(_used([stage]), stage.repo.cloud.push, _unindexed(stage.repo))


def _unindexed(repo: Repo) -> HashFileDB:
    """The remote without DVC's index of it: by that, each transfer asks whether every folder that ever was there still is."""
    there = repo.cloud.get_remote_odb()
    there.tmp_dir = None
    return there


def _used(stages: Sequence[Stage]) -> set[HashInfo]:
    return {one for stage in stages for objects in stage.get_used_objs().values() for one in objects}


def _moved(objects: Collection[HashInfo], transfer: Callable[..., Any], there: HashFileDB) -> None:
    with _logged() as errors:
        failed = transfer(objects, odb=there).failed
    if failed:
        lost = OSError(f"{len(failed)} of {len(objects)} files did not arrive")
        raise next((one for one in errors if is_full(one)), errors[0] if errors else lost)


@contextmanager
def _logged() -> Iterator[list[BaseException]]:
    """The errors that DVC logs while files are moved."""
    found: list[BaseException] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                found.append(record.exc_info[1])

    keep, log = Keep(), logging.getLogger("dvc_data.hashfile.transfer")
    log.addHandler(keep)
    try:
        yield found
    finally:
        log.removeHandler(keep)


def is_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) in FULL
