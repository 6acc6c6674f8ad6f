"""`rvb doctor`: check that this machine and its checkout are ready; one line a check."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

import typer

from benchmark.commands.terminal import MachinesOption, console
from benchmark.pipeline import dvc, generate, ray
from benchmark.runtime import arithmetic
from benchmark.runtime.errors import LEFT_OUT, BenchmarkError
from benchmark.runtime.machine import installed
from benchmark.runtime.paths import WORK
from benchmark.specs.run_settings import run_settings

CONSTRAINTS = Path("constraints.txt")
ROOM = 2.0  # GiB that a run of the digits track and its cache need
WORDS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}

# `rvb repro` works in spite of a note; a check also fails by a BenchmarkError
Finding = tuple[Literal["ok", "note", "fail"], str]


def doctor(engine: MachinesOption = None) -> None:
    """Check this machine and its checkout, and with --engine what that needs; exit status 1 if what is needed is broken."""
    checks: dict[str, Callable[[], Finding]] = {
        "checkout": _checkout, "packages": _packages, "arithmetic": _arithmetic, "sandbox": _sandbox, "GPU": _gpu,
        "room": _room, "pipeline": lambda: _pipeline(bool(engine)), "locks": _locks,
    }  # fmt: skip
    if engine == "ray":
        install = "not installed; run: pip install 'robust-vit-bench[ray]'"
        checks["DVC remote"] = lambda: ("ok", ", ".join(ray.default_remote()))
        checks["Ray"] = lambda: _needed(installed("ray"), install)
    elif engine == "slurm":
        elsewhere = "no sbatch here; run --engine slurm where there is one"
        checks["SLURM"] = lambda: _needed(shutil.which("sbatch"), elsewhere)
    failed = False
    for name, check in checks.items():
        try:
            verdict, words = check()
        except BenchmarkError as error:
            verdict, words = "fail", str(error)
        console.print(f"{WORDS[verdict]}  {name}: {words}", markup=False)
        failed = failed or verdict == "fail"
    if failed:
        raise typer.Exit(1)


def _needed(place: str | None, otherwise: str) -> Finding:
    return ("ok", place) if place else ("fail", otherwise)


def _checkout() -> Finding:
    dvc.check_place()
    return "ok", "a git repository, and writable"


def _packages() -> Finding:
    """Check that required packages are installed, in the versions that made the published numbers."""
    required = [line for line in requires("robust-vit-bench") or [] if "extra ==" not in line]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in required}
    present = {name: installed(name) for name in names}
    install = f"run: pip install -c {CONSTRAINTS} -e ."
    if lost := sorted(name for name, version in present.items() if not version):
        return "fail", f"{', '.join(lost)} not installed; {install}"
    lines = CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.exists() else []
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    other = [
        f"{name} {present[name]} for {version}"
        for name, version in sorted(pinned.items())
        if present.get(name) and present[name].partition("+")[0] != version.strip()  # torch's builds say +cpu
    ]
    if other:
        return "note", f"{', '.join(other)}: numbers may differ from published ones; {install}"
    return "ok", f"{len(present)} required ones, of the versions in {CONSTRAINTS}"


def _arithmetic() -> Finding:
    asked = run_settings().arithmetic
    if arithmetic.possible(asked) == asked:
        return "ok", asked
    return "note", "no x86-64 with AVX2, so native: numbers differ from other machines' in rounding, and rows move"


def _sandbox() -> Finding:
    """Check what confines submitted code, before any of it runs."""
    from benchmark.sandbox.confinement import PARTS
    from benchmark.sandbox.submitted import in_force, in_words

    parts = in_force()  # raises what a full sandbox lacks
    lacking = [part for part in PARTS if part not in parts]
    if not parts:
        return "note", "none: submissions' code may do what you may; set `wall: full` in params.yaml"
    if lacking == ["namespaces"]:
        return "ok", f"{in_words(parts)}; no namespaces, which this machine does not let its users make, nor need be"
    if lacking:
        words = f"{in_words(parts)}, without {', '.join(lacking)}"
        return "note", f"{words}: a submission's code could read the test labels"
    return "ok", in_words(parts)


def _gpu() -> Finding:
    """Check the devices of params.yaml, and count GPUs without starting one."""
    from benchmark.runtime.torch_setup import set_up

    settings = run_settings()
    for device in dict.fromkeys((settings.train.device, settings.evaluate.device)):
        set_up(device)  # raises what is wrong
    import torch

    count = torch.cuda.device_count()
    gpus = f"{count} found" if count else "none found"
    if count and settings.devices == "cpu":
        gpus += "; `device: cuda` in params.yaml uses it"
    return "ok", f"{gpus}; training on {settings.train.device}, evaluation on {settings.evaluate.device}"


def _room() -> Finding:
    free = shutil.disk_usage(WORK if WORK.exists() else ".").free / 2**30
    words = f"{free:.1f} GiB free for {WORK}/ and DVC's cache"
    return ("ok", words) if free > ROOM else ("fail", f"{words}; free some space")


def _pipeline(engine: bool) -> Finding:
    if not Path(".dvc").is_dir():
        return "fail", "no DVC repository here; run this in a clone of the project, or `dvc init`"
    LEFT_OUT.clear()
    stale = generate.stale()
    if LEFT_OUT:
        return "note", f"{'; '.join(LEFT_OUT)}; these rows are left out until that is mended"
    if stale:
        words = f"{len(stale)} of the generated files no longer fits; run `rvb pipeline` and commit what it writes"
        return "fail" if engine else "note", words
    return "ok", "fits the submissions"


def _locks() -> Finding:
    dvc.check_rwlock()
    cut = dvc.cut_short()
    return ("note", f"{cut[0]} was cut short by a kill; `rvb repro` mends it") if cut else ("ok", "whole")
