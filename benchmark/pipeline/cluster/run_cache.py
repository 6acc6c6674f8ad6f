"""DVC's run-cache in its remote: what a stage made of which inputs, an entry a run."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from benchmark.pipeline.cluster import transfers

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage


def bring(repo: Repo, stage: Stage) -> bool:
    """Puts a stage's results in their places where the run-cache knows them for what the stage reads; whether it did."""
    from dvc.exceptions import CollectCacheError
    from dvc.stage.cache import RunCacheNotFoundError, _get_stage_hash

    stage.save_deps()
    run = _get_stage_hash(stage)
    here, there = repo.cache.legacy, _runs(repo)
    folder = there.fs.join(there.path, "runs", run[:2], run)
    for source in there.fs.find(folder) if there.fs.exists(folder) else []:
        _copy(there.fs, source, here.fs, here.fs.join(here.path, "runs", run[:2], run, there.fs.name(source)))
    found = repo.stage_cache._load(stage)
    if not found:
        return False
    try:
        transfers.pull([repo.stage_cache._create_stage(found, wdir=stage.wdir)])
        with repo.lock:
            repo.stage_cache.restore(stage)
    except (CollectCacheError, RunCacheNotFoundError):  # the results themselves are gone
        return False
    return True


def send(repo: Repo, stage: Stage) -> None:
    """The stage's lock entry, as DVC's run-cache holds it."""
    from dvc.fs import LocalFileSystem
    from dvc.stage.cache import _get_cache_hash
    from dvc.stage.serialize import to_single_stage_lockfile
    from dvc.utils.serialize import dump_yaml

    entry = to_single_stage_lockfile(stage)
    made, run = _get_cache_hash(entry), _get_cache_hash(to_single_stage_lockfile(stage), key=True)
    there = _runs(repo)
    target = there.fs.join(there.path, "runs", run[:2], run, made)
    if not there.fs.exists(target):
        with tempfile.TemporaryDirectory(prefix="rvb-") as folder:
            source = os.path.join(folder, made)
            dump_yaml(source, entry)
            _copy(LocalFileSystem(), source, there.fs, target)


def _copy(source_fs: Any, source: str, target_fs: Any, target: str) -> None:
    from dvc_objects.fs.generic import copy

    target_fs.makedirs(target_fs.parent(target), exist_ok=True)
    copy(source_fs, source, target_fs, target)


def _runs(repo: Repo) -> Any:
    return repo.cloud.get_remote_odb(None, "push --run-cache", hash_name="md5-dos2unix")
