"""`rvb doctor`: whether this machine and its checkout are ready; a line a check."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated

import typer

from benchmark.commands.terminal import console
from benchmark.loading.run_settings import run_settings
from benchmark.runtime import arithmetic
from benchmark.runtime.errors import LEFT_OUT, BenchmarkError
from benchmark.runtime.paths import WORK

CONSTRAINTS = Path("constraints.txt")
OLDEST = (3, 11)
ROOM = 2.0  # GiB that a run of the digits track and its cache want
WORDS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@dataclass(frozen=True)
class Finding:
    """`verdict` is ok, note or fail: a note keeps `rvb repro` from nothing, but says what to do for the rest."""

    verdict: str
    found: str


def doctor(
    engine: Annotated[
        str, typer.Option("--engine", help="ray or slurm: what `rvb repro --engine` needs is needed.")
    ] = "",
) -> None:
    """Check this machine and its checkout; exit status 1 if what `rvb repro` needs is broken."""
    if engine not in ("", "ray", "slurm"):
        raise BenchmarkError("--engine is ray or slurm")
    failed = False
    for name, check in _checks(engine):
        try:
            findings = [*check()]
        except BenchmarkError as error:
            findings = [Finding("fail", str(error))]
        for one in findings:
            console.print(f"{WORDS[one.verdict]}  {name}: {one.found}", markup=False)
            failed = failed or one.verdict == "fail"
    if failed:
        raise typer.Exit(1)


def _checks(engine: str) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    missing = "fail" if engine else "note"
    yield "Python", _python
    yield "packages", _packages
    yield "arithmetic", _arithmetic
    yield "sandbox", _sandbox
    yield "GPU", _gpu
    yield "room", _room
    yield "pipeline", lambda: _pipeline(missing)
    yield "locks", _locks
    yield "DVC remote", lambda: _remote(missing)
    yield "Ray", lambda: _ray("fail" if engine == "ray" else "note")
    yield "SLURM", lambda: _slurm("fail" if engine == "slurm" else "note")


def _python() -> Iterator[Finding]:
    recent = tuple(map(int, platform.python_version_tuple()[:2])) >= OLDEST
    yield Finding(
        "ok" if recent else "fail", platform.python_version() + ("" if recent else "; 3.11 or newer is needed")
    )


def _packages() -> Iterator[Finding]:
    """Those that the project requires, then the versions that its figures were made with."""
    required = [line for line in requires("robust-vit-bench") or [] if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in required}
    here = {name: _version(name) for name in names}
    if lost := sorted(name for name, found in here.items() if not found):
        yield Finding("fail", f"{', '.join(lost)} not installed; run: pip install -c {CONSTRAINTS} -e .")
        return
    lines = CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.exists() else []
    wanted = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    other = [
        f"{n} {here[n]} for {w}" for n, w in sorted(wanted.items()) if here.get(n) and _public(here[n]) != w.strip()
    ]
    if other:
        yield Finding(
            "note",
            f"{', '.join(other)}: numbers may differ from published ones; run: pip install -c {CONSTRAINTS} -e .",
        )
    else:
        yield Finding("ok", f"{len(here)} required ones, of the versions in {CONSTRAINTS}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _public(found: str) -> str:
    return found.partition("+")[0]  # torch's builds say +cpu


def _arithmetic() -> Iterator[Finding]:
    wanted = run_settings().arithmetic
    if arithmetic.possible(wanted) == wanted:
        yield Finding("ok", wanted)
    else:
        yield Finding(
            "note", "no x86-64 with AVX2, so native: numbers differ from other machines' in rounding, and rows move"
        )


def _sandbox() -> Iterator[Finding]:
    """What holds the code of submissions, before any of it runs."""
    from benchmark.loading.confining import wall
    from benchmark.wall.confinement import PARTS

    held = wall()  # whose words say what a full one lacks
    lacking = [part for part in PARTS if part not in held.parts]
    if not held.stands:
        yield Finding("note", "none: submissions' code may do what you may; set `wall: full` in params.yaml")
    elif lacking == ["namespaces"]:
        yield Finding("ok", f"{held.words}; no namespaces, which this machine does not let its users make, nor need be")
    elif lacking:
        yield Finding(
            "note", f"{held.words}, without {', '.join(lacking)}: a submission's code could read the test labels"
        )
    else:
        yield Finding("ok", held.words)


def _gpu() -> Iterator[Finding]:
    """What `params.yaml` asks for, and what torch finds, without starting it."""
    from benchmark.runtime.torch_setup import set_up

    settings = run_settings()
    for device in dict.fromkeys((settings.train.device, settings.evaluate.device)):
        set_up(device)  # whose words say what is wrong
    import torch

    count = torch.cuda.device_count()
    found = f"{count} found" if count else "none found"
    if count and settings.devices == "cpu":
        found += "; `device: cuda` in params.yaml uses it"
    yield Finding("ok", f"{found}; training on {settings.train.device}, evaluation on {settings.evaluate.device}")


def _room() -> Iterator[Finding]:
    WORK.mkdir(exist_ok=True)
    free = shutil.disk_usage(WORK).free / 2**30
    words = f"{free:.1f} GiB free for {WORK}/ and DVC's cache"
    yield Finding("ok" if free > ROOM else "fail", words if free > ROOM else f"{words}; free some space")


def _pipeline(otherwise: str) -> Iterator[Finding]:
    from benchmark.pipeline import generate

    if not Path(".dvc").is_dir():
        yield Finding("fail", "no DVC repository here; run this in a clone of the project, or `dvc init`")
        return
    LEFT_OUT.clear()
    stale = generate.stale()
    for words in LEFT_OUT:
        yield Finding("note", f"{words}; its rows are left out until that is mended")
    if stale:
        yield Finding(
            otherwise,
            f"{len(stale)} of the generated files no longer fits; run `rvb pipeline` and commit what it writes",
        )
    else:
        yield Finding("ok", "fits the submissions")


def _locks() -> Iterator[Finding]:
    from benchmark.pipeline import locks

    locks.check_rwlock()
    cut = locks.cut_short()
    yield Finding("note", f"{cut[0]} was cut short by a kill; `rvb repro` mends it") if cut else Finding("ok", "whole")


def _remote(otherwise: str) -> Iterator[Finding]:
    from benchmark.pipeline import ray

    if not Path(".dvc").is_dir():
        return
    try:
        yield Finding("ok", ", ".join(ray.default_remote()))
    except BenchmarkError as error:
        yield Finding(otherwise, str(error))


def _ray(otherwise: str) -> Iterator[Finding]:
    found = _version("ray")
    yield (
        Finding("ok", found)
        if found
        else Finding(otherwise, "not installed; for --engine ray: pip install 'robust-vit-bench[ray]'")
    )


def _slurm(otherwise: str) -> Iterator[Finding]:
    found = shutil.which("sbatch")
    yield (
        Finding("ok", found) if found else Finding(otherwise, "no sbatch here; run --engine slurm where there is one")
    )
