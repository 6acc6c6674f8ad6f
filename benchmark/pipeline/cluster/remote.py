"""DVC's remote, stage by stage: `dvc push` and `dvc pull` read every dvc.yaml of the repository, slow at a thousand rows.

Results go there by their digests, and the run-cache, which says what a stage made of which inputs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.pipeline.cluster import run_cache, transfers
from benchmark.pipeline.locks import entry_of, mend_beside_dvc, put_entries
from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage

Report = Callable[[str], None]
PATIENCE = 300.0  # seconds that a remote may be out of reach


def settings() -> dict[str, Any]:
    """The default remote as this checkout is configured: its `name`, and the options by which a worker reaches it.

    Raises:
        BenchmarkError: there is none, or DVC lacks what it takes for this kind.
    """
    from dvc.fs import get_fs_config

    with opened() as repo:
        name = repo.config["core"].get("remote")
        if not name or name not in repo.config["remote"]:
            raise BenchmarkError(
                "no DVC remote carries the results between the machines; run: dvc remote add --default <name> <folder or URL>"
            )
        for kind in ("version_aware", "worktree"):
            if repo.config["remote"][name].get(kind):
                raise BenchmarkError(
                    f"the DVC remote {name} is {kind}: it keeps files under their own names, where machines side by "
                    "side cannot find them by digest; name another by: dvc remote add --default <name> <folder or URL>"
                )
        try:
            remote = repo.cloud.get_remote(name)
        except Exception as error:
            raise BenchmarkError(f"the DVC remote {name} cannot be used: {_words(error)}") from None
        options = {key: str(value) for key, value in get_fs_config(repo.config, name=name).items()}
        if remote.fs.protocol == "local":
            options["url"] = os.path.abspath(remote.path)
        return {"name": name, **options}


def check() -> None:
    """Writes, reads and removes a small file in the remote.

    Raises:
        BenchmarkError: one of them fails.
    """
    with opened() as repo:
        remote = repo.cloud.get_remote()
        place = remote.fs.join(remote.path, f"rvb-probe-{os.getpid()}-{time.time_ns()}")
        for doing in ("write to", "read", "remove from"):
            try:
                if doing == "write to":
                    remote.fs.makedirs(remote.path, exist_ok=True)
                    remote.fs.pipe_file(place, b"probe")
                elif doing == "read" and remote.fs.cat_file(place) != b"probe":
                    raise OSError("what was written came back changed")
                elif doing == "remove from":
                    remote.fs.remove(place)
            except Exception as error:
                raise BenchmarkError(
                    f"cannot {doing} the DVC remote {remote.name}, {remote.path}: {_words(error)}"
                ) from None


def push(key: str, report: Report, patience: float = PATIENCE) -> dict[str, Any]:
    """Sends a stage's results and its entry of the run-cache; gives what DVC noted of the stage.

    Raises:
        BenchmarkError: the remote could not be reached, or is full, for as long as there was patience; or DVC noted nothing,
            since a kill cut the lock file short.
    """

    def send() -> dict[str, Any]:
        with opened() as repo:
            with repo.lock:  # DVC writes lock files where they stand
                entry, stage = entry_of(key), _stage(repo, key)
            if entry:
                transfers.push(stage)
                run_cache.send(repo, stage)
            return entry

    entry: dict[str, Any] = patiently(send, f"send results of {key} to the DVC remote", report, patience)
    if not entry:
        raise BenchmarkError(f"a kill cut short what DVC noted of {key}; run the same command again")
    return entry


def bring(keys: Sequence[str], report: Report, patience: float = PATIENCE) -> None:
    """Puts the results of stages in their places here.

    Raises:
        BenchmarkError: as `fetch`.
    """

    def attempt() -> None:
        with opened() as repo:
            _bring(repo, _stages(repo, keys))

    more = f" and {len(keys) - 1} other stages" if len(keys) > 1 else ""
    patiently(attempt, f"fetch results of {keys[0]}{more} from the DVC remote", report, patience)


def fetch(reads: Sequence[str], key: str, locks: Mapping[str, Any], report: Report, patience: float = PATIENCE) -> bool:
    """Puts the results that a stage reads in their places, and its own where the remote's run-cache knows them already.

    Args:
        reads: the stages that made them.
        locks: what DVC noted of these, by stage, as it is to stand in the lock files here.

    Returns:
        Whether the run-cache knew what the stage makes of them.

    Raises:
        BenchmarkError: results that it reads are neither in the cache here nor in the remote.
    """

    def attempt() -> bool:
        with opened() as repo:
            with repo.lock:  # DVC writes lock files under it
                mend_beside_dvc(report)
                put_entries({name: entry for name, entry in locks.items() if entry_of(name) != entry})
            _bring(repo, _stages(repo, reads))
            return run_cache.bring(repo, _stage(repo, key))

    return bool(patiently(attempt, f"fetch what {key} reads from the DVC remote", report, patience))


def _bring(repo: Repo, stages: Sequence[Stage]) -> None:
    if away := [stage for stage in stages if any(out.changed() for out in stage.outs)]:
        transfers.pull(away)
        with repo.lock:
            for stage in away:
                stage.checkout(force=True)


def find(digests: Sequence[str], report: Report) -> dict[str, dict[str, str]]:
    """Of the folders with these digests (`<md5>.dir`), those that the remote or the cache here holds: their files' digests.

    The remote gets a folder's listing after its files, so the listing alone tells.
    """
    found: dict[str, dict[str, str]] = patiently(
        lambda: _find(digests), "look for results in the DVC remote", report, PATIENCE
    )
    return found


def _find(digests: Sequence[str]) -> dict[str, dict[str, str]]:
    with opened() as repo:
        cache, there = Path(repo.cache.local.path), repo.cloud.get_remote_odb()

        def look(digest: str) -> dict[str, str] | None:
            here = _listing(cache, digest)
            try:
                sent = there.fs.cat_file(there.oid_to_path(digest))
            except FileNotFoundError:
                if not here.is_file() or not all(
                    _listing(cache, md5).is_file() for md5 in _files(here.read_bytes()).values()
                ):
                    return None
                sent = here.read_bytes()
            return _files(sent)

        with ThreadPoolExecutor(16) as pool:
            found = dict(zip(digests, pool.map(look, digests), strict=True))
    return {digest: listed for digest, listed in found.items() if listed is not None}


def holds(digest: str) -> bool:
    """Whether the remote has a folder's listing."""
    with opened() as repo:
        there = repo.cloud.get_remote_odb()
        return bool(there.fs.exists(there.oid_to_path(digest)))


def _files(listing: bytes) -> dict[str, str]:
    return {one["relpath"]: one["md5"] for one in json.loads(listing)}


def _listing(cache: Path, digest: str) -> Path:
    return cache / digest[:2] / digest[2:]


@contextmanager
def opened() -> Iterator[Repo]:
    from dvc.repo import Repo

    with Repo(_wait_for_lock=True) as repo:
        yield repo


def _stages(repo: Repo, keys: Sequence[str]) -> list[Stage]:
    """Each file is read once for all of its stages."""
    found: dict[str, dict[str, Stage]] = {}
    for file in {key.rpartition(":")[0] for key in keys}:
        found[file] = {stage.name: stage for stage in repo.stage.load_file(file)}
    return [found[file][name] for file, _, name in (key.rpartition(":") for key in keys)]


def _stage(repo: Repo, key: str) -> Stage:
    file, _, name = key.rpartition(":")
    return repo.stage.load_one(file, name)


def patiently(attempt: Callable[[], Any], what: str, report: Report, patience: float = PATIENCE) -> Any:
    """Tries again and again: a remote may be out of reach for a while. A full one does not mend by waiting."""
    from dvc.exceptions import CollectCacheError

    began, pause = time.monotonic(), 1.0
    while True:
        try:
            return attempt()
        except CollectCacheError as error:  # no waiting mends it
            raise BenchmarkError(f"could not {what}: {_words(error)}") from None
        except BenchmarkError:
            raise
        except Exception as error:  # each kind of storage has its own
            if transfers.is_full(error):
                raise BenchmarkError(
                    f"could not {what}: no space is left ({_words(error)}); make room and run the same command again, "
                    "finished work is kept"
                ) from None
            if time.monotonic() - began + pause > patience:
                raise BenchmarkError(f"could not {what} for {patience:.0f} s: {_words(error)}") from None
            report(f"could not {what}: {_words(error)}; again in {pause:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 30.0)


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
