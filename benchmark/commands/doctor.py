"""`rvb doctor`: whether this machine and its checkout are ready; a line a check."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

import typer

from benchmark.commands.terminal import MachinesOption, console
from benchmark.pipeline import dvc, generate, locks, ray
from benchmark.runtime import arithmetic
from benchmark.runtime.errors import LEFT_OUT, BenchmarkError
from benchmark.runtime.machine import installed
from benchmark.runtime.paths import WORK
from benchmark.specs.run_settings import run_settings

CONSTRAINTS = Path("constraints.txt")
ROOM = 2.0  # GiB that a run of the digits track and its cache want
WORDS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}

# a note keeps `rvb repro` from nothing, but says what to do for the rest; a check also fails by a BenchmarkError
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


def _needed(found: str | None, otherwise: str) -> Finding:
    return ("ok", found) if found else ("fail", otherwise)


def _checkout() -> Finding:
    dvc.check_place()
    return "ok", "a git repository, and writable"


def _packages() -> Finding:
    """Those that the project requires, then the versions that its figures were made with."""
    required = [line for line in requires("robust-vit-bench") or [] if "extra ==" not in line]
    here = {name: installed(name) for name in {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in required}}
    if lost := sorted(name for name, found in here.items() if not found):
        return "fail", f"{', '.join(lost)} not installed; run: pip install -c {CONSTRAINTS} -e ."
    lines = CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.exists() else []
    wanted = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    found = {name: here.get(name, "").partition("+")[0] for name in wanted}  # torch's builds say +cpu
    other = [f"{n} {here[n]} for {w}" for n, w in sorted(wanted.items()) if found[n] and found[n] != w.strip()]
    if other:
        words = f"{', '.join(other)}: numbers may differ from published ones"
        return "note", f"{words}; run: pip install -c {CONSTRAINTS} -e ."
    return "ok", f"{len(here)} required ones, of the versions in {CONSTRAINTS}"


def _arithmetic() -> Finding:
    wanted = run_settings().arithmetic
    if arithmetic.possible(wanted) == wanted:
        return "ok", wanted
    return "note", "no x86-64 with AVX2, so native: numbers differ from other machines' in rounding, and rows move"


def _sandbox() -> Finding:
    """What holds the code of submissions, before any of it runs."""
    from benchmark.sandbox.confinement import PARTS
    from benchmark.sandbox.submitted import in_force, in_words

    parts = in_force()  # whose error says what a full one lacks
    lacking = [part for part in PARTS if part not in parts]
    if not parts:
        return "note", "none: submissions' code may do what you may; set `wall: full` in params.yaml"
    if lacking == ["namespaces"]:
        return "ok", f"{in_words(parts)}; no namespaces, which this machine does not let its users make, nor need be"
    if lacking:
        return (
            "note",
            f"{in_words(parts)}, without {', '.join(lacking)}: a submission's code could read the test labels",
        )
    return "ok", in_words(parts)


def _gpu() -> Finding:
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
    return "ok", f"{found}; training on {settings.train.device}, evaluation on {settings.evaluate.device}"


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
    locks.check_rwlock()
    cut = locks.cut_short()
    return ("note", f"{cut[0]} was cut short by a kill; `rvb repro` mends it") if cut else ("ok", "whole")
