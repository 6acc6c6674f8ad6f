"""DVC's lock files after a kill, and after stages that ran side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmark.pipeline.generate import FOLDER
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError

Report = Callable[[str], None]
RWLOCK = Path(".dvc/tmp/rwlock")  # DVC's list of running commands
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it was built


def mend_rwlock(report: Report) -> None:
    """Removes the list of running commands that a killed dvc left cut short, when no dvc runs here.

    Raises:
        BenchmarkError: it is cut short and a dvc runs, with what to do.
    """
    if _is_rwlock_cut():
        if running := running_dvc():
            raise BenchmarkError(
                f"{RWLOCK} is cut short and dvc runs as process {running[0]}; wait for it or end it, then run this again"
            )
        RWLOCK.unlink()
        report(f"removed {RWLOCK}, which a killed dvc had left cut short")


def cut_short() -> list[Path]:
    """What a killed dvc left cut short, of its list of running commands and its lock files."""
    return [*([RWLOCK] if _is_rwlock_cut() else []), *_cut_locks()]


def running_dvc() -> list[int]:
    """The processes in which dvc runs here."""
    return [process.pid for process in psutil.process_iter(["cmdline", "cwd"]) if _is_dvc_here(process.info)]


def _is_rwlock_cut() -> bool:
    try:
        json.loads(RWLOCK.read_text())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def _cut_locks() -> list[Path]:
    return [path for path in (Path("dvc.lock"), *FOLDER.rglob("dvc.lock")) if path.exists() and _is_cut(path)]


def mend_locks(report: Report) -> bool:
    """Removes lock files that a killed dvc left cut short; their stages come back from DVC's run-cache or run again."""
    broken = _cut_locks()
    for path in broken:
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")
    return bool(broken)


def mend_beside_dvc(report: Report) -> None:
    """Both, where other dvc may run here: it writes lock files under its lock, which the caller holds, and its list of
    running commands under another.
    """
    from dvc.lock import make_lock

    mend_locks(report)
    with make_lock(f"{RWLOCK}.lock", tmp_dir=str(RWLOCK.parent), wait=True):
        if _is_rwlock_cut():
            RWLOCK.unlink()
            report(f"removed {RWLOCK}, which a killed dvc had left cut short")


def _is_cut(lock: Path) -> bool:
    return read_stages(lock) is None


def read_stages(lock: Path) -> dict[str, Any] | None:
    """What DVC noted of each stage in a lock file; None where there is none, or a kill cut it short."""
    try:
        return _stages(lock, files.version(lock))
    except FileNotFoundError:
        return None


@lru_cache(maxsize=256)
def _stages(lock: Path, _version: tuple[int, ...]) -> dict[str, Any] | None:
    try:
        content = yaml.load(lock.read_bytes(), _Loader)
    except yaml.YAMLError:
        return None
    return content["stages"] if isinstance(content, dict) and isinstance(content.get("stages"), dict) else None


def _is_dvc_here(process: dict[str, Any]) -> bool:
    words = [Path(word).name for word in process["cmdline"] or []]
    return bool({"dvc", "benchmark.pipeline.warm"} & {*words[:4]}) and process["cwd"] == str(Path.cwd())


def put_in_order(file: Path) -> None:
    """Stages in a lock stand in the order of their dvc.yaml, as a serial run leaves them."""
    from dvc.utils.serialize import dump_yaml, load_yaml

    lock = file.with_name("dvc.lock")
    if not lock.exists():
        return
    content = load_yaml(lock)
    order = [name for name in yaml.safe_load(file.read_text())["stages"] if name in content["stages"]]
    if list(content["stages"]) != order:
        dump_yaml(lock, {**content, "stages": {name: content["stages"][name] for name in order}})


def entry_of(stage: str) -> dict[str, Any]:
    """What DVC noted when it last ran `<dvc.yaml>:<name>`; nothing where it did not, or where a kill cut the lock short."""
    file, _, name = stage.rpartition(":")
    return (read_stages(Path(file).with_name("dvc.lock")) or {}).get(name) or {}


def put_entries(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Notes, as DVC would, how stages ran elsewhere, by `<dvc.yaml>:<name>`; in the order of their dvc.yaml."""
    for file in {stage.rpartition(":")[0] for stage in entries}:
        lock = Path(file).with_name("dvc.lock")
        own = {key.rpartition(":")[2]: one for key, one in entries.items() if key.startswith(f"{file}:")}
        known = (read_stages(lock) or {}) | own
        order = [name for name in yaml.load(Path(file).read_bytes(), _Loader)["stages"] if name in known]
        wanted = "schema: '2.0'\nstages:\n" + "".join(_in_lock(name, json.dumps(known[name])) for name in order)
        if not lock.exists() or lock.read_text() != wanted:
            files.write(lock, wanted)


@lru_cache(maxsize=256)
def _in_lock(name: str, entry: str) -> str:
    """A stage as DVC writes it, beneath `stages:`; its YAML takes milliseconds, and a lock grows stage by stage."""
    from dvc.utils.serialize import dumps_yaml

    return dumps_yaml({"stages": {name: json.loads(entry)}}).removeprefix("stages:\n")
