"""DVC's lock files after a kill, and after stages that ran side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmark.pipeline.generate import FOLDER
from benchmark.runtime import files
from benchmark.runtime.errors import BenchmarkError

Report = Callable[[str], None]
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it was built


def mend_rwlock(report: Report) -> None:
    """Removes the list of running commands that a killed dvc left cut short, when no dvc runs here.

    Raises:
        BenchmarkError: it is cut short and a dvc runs, with what to do.
    """
    path = Path(".dvc/tmp/rwlock")
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        return
    except ValueError:
        running = [p.pid for p in psutil.process_iter(["cmdline", "cwd"]) if _is_dvc_here(p.info)]
        if running:
            raise BenchmarkError(
                f"{path} is cut short and dvc runs as process {running[0]}; wait for it or end it, then run this again"
            ) from None
        path.unlink()
        report(f"removed {path}, which a killed dvc had left cut short")


def mend_locks(report: Report) -> bool:
    """Removes lock files that a killed dvc left cut short; their stages come back from DVC's run-cache or run again."""
    broken = [path for path in (Path("dvc.lock"), *FOLDER.rglob("dvc.lock")) if path.exists() and _is_cut(path)]
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
    path = Path(".dvc/tmp/rwlock")
    with make_lock(f"{path}.lock", tmp_dir=str(path.parent), wait=True):
        try:
            json.loads(path.read_text())
        except FileNotFoundError:
            return
        except ValueError:
            path.unlink()
            report(f"removed {path}, which a killed dvc had left cut short")


def _is_cut(lock: Path) -> bool:
    try:
        content = yaml.load(lock.read_text(), _Loader)
    except yaml.YAMLError:
        return True
    return not isinstance(content, dict) or "stages" not in content


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
    lock = Path(file).with_name("dvc.lock")
    if not lock.exists() or _is_cut(lock):
        return {}
    return yaml.load(lock.read_text(), _Loader)["stages"].get(name) or {}


def put_entries(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Notes, as DVC would, how stages ran elsewhere, by `<dvc.yaml>:<name>`; in the order of their dvc.yaml."""
    from dvc.utils.serialize import dumps_yaml, load_yaml

    for file in {stage.rpartition(":")[0] for stage in entries}:
        lock = Path(file).with_name("dvc.lock")
        fresh: dict[str, Any] = {"schema": "2.0", "stages": {}}
        content = load_yaml(lock) if lock.exists() and not _is_cut(lock) else fresh
        own = {key.rpartition(":")[2]: one for key, one in entries.items() if key.startswith(f"{file}:")}
        known = content["stages"] | own
        order = [name for name in yaml.safe_load(Path(file).read_text())["stages"] if name in known]
        wanted = dumps_yaml({**content, "stages": {name: known[name] for name in order}})
        if not lock.exists() or lock.read_text() != wanted:
            files.write(lock, wanted)
