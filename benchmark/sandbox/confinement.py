"""Confinement of a process that runs untrusted code, put on from inside before the first line of that code runs.

- Landlock: the process opens the listed files and nothing else of the machine, and executes nothing.
- seccomp: no other programs or processes, no signals to others, no network, no marks on files (seccomp.py).
- Limits: memory, open files, file sizes, no core dump. A clean environment. The process ends when its parent does.
- Namespaces, where the machine lets users make them: a network without devices, no shared memory or messages with other
  processes, no privileges outside. The first three parts refuse all this too.

The parent limits time (process.py). docs/sandbox.md lists what none of this prevents.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import resource
import signal
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmark.runtime.arithmetic import VARIABLES
from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox import landlock, seccomp

PARTS = ("landlock", "seccomp", "namespaces", "limits")
FULL = ("landlock", "seccomp", "limits")
KEPT = ("OMP_NUM_THREADS", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", *VARIABLES)
MACHINE = (  # what Python and torch read while they run
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system",
)  # fmt: skip
# images, labels and verdicts inside installed packages, which untrusted code must not read
DATA_IN_PACKAGES = ("sklearn/datasets/data", "benchmark/data/reviews", "leaderboard/results")
# how host names are resolved, and which certificates are trusted
NETWORK = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/ssl", "/usr/share/ca-certificates",
)  # fmt: skip
GPU = ("/proc/driver/nvidia", "/proc/devices", "/sys/bus/pci", "/sys/devices", "/sys/module/nvidia")
FILE_SIZE = 2**32  # bytes of any file that it writes, at most
ADDRESSES = 64  # addresses for each byte of memory, at most: the tables of pages that are only read are not counted
NEW_USER, NEW_IPC, NEW_NETWORK = 0x10000000, 0x08000000, 0x40000000
LINUX = sys.platform.startswith("linux")
DIE_WITH_PARENT, NOT_DUMPABLE = (1, signal.SIGKILL), (4, 0)  # of prctl


@dataclass(frozen=True)
class Confinement:
    """What a process may do.

    Attributes:
        parts: the parts of `PARTS` that confine it.
        read: files and folders that it reads, beside Python's and the benchmark's own.
        write: folders that it writes to.
        network: whether it may make TCP connections.
        gpu: whether it may use NVIDIA's devices and what CUDA needs beside them; memory is then not limited.
        memory: bytes of data, at most.
    """

    parts: tuple[str, ...]
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False
    memory: int = 0


def available() -> tuple[str, ...]:
    """Return the parts of `PARTS` that this machine has."""
    has = (landlock.version() > 0, seccomp.library() is not None, _namespaces(), True)
    return tuple(itertools.compress(PARTS, has))


def required(sandbox: str) -> tuple[str, ...]:
    """Return the parts that confine submitted code, by the setting `wall` of params.yaml: "full", "weak" or "none".

    Raise BenchmarkError if it is "full" and this machine lacks a part.
    """
    parts = () if sandbox == "none" else available()
    missing = [part for part in FULL if part not in parts]
    if missing and sandbox == "full":
        raise BenchmarkError(
            f"this machine has no {' and no '.join(missing)}, without which a submission's code could read the test labels "
            "or write to other rows; on a machine where that is no harm set `wall: weak` in params.yaml"
        )
    return parts


def confine(rules: Confinement, home: Path) -> None:
    """Confine the calling process, which has one thread, for good. Its HOME becomes the folder `home`.

    Raise OSError if the machine refuses one of the parts.
    """
    _clean_environment(home)
    if rules.network:
        os.environ["RES_OPTIONS"] = "use-vc"  # host names are resolved by TCP too
    os.setsid()
    if "namespaces" in rules.parts:
        # while it is dumpable: else /proc/self is root's, and another user cannot map itself
        _unshare(NEW_USER | NEW_IPC | (0 if rules.network else NEW_NETWORK))
    die_with_parent()
    _prctl(*NOT_DUMPABLE)
    _limit(rules)
    if "landlock" in rules.parts:
        read = [*installed(), *rules.read, *(_read_by_cuda() if rules.gpu else ())]
        read += map(Path, NETWORK if rules.network else ())
        written = [*rules.write, home, Path("/dev/null"), *(_written_by_cuda() if rules.gpu else ())]
        importlib.util.find_spec("autoattack")  # lists the benchmark's folder, which is refused later
        landlock.restrict(read, written, listed=_packages()[:-1], network=rules.network)
    if "seccomp" in rules.parts:
        seccomp.refuse(network=rules.network, gpu=rules.gpu)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux)."""
    _prctl(*DIE_WITH_PARENT)


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _read_by_cuda() -> list[Path]:
    """Return what CUDA reads: the driver's state, and the folder of libcuda, which loads more libraries when it starts."""
    with contextlib.suppress(OSError):  # no driver: the process will report that it finds no GPU
        ctypes.CDLL("libcuda.so.1")
    return [*map(Path, GPU), *folders_of("libcuda.so", Path("/proc/self/maps").read_text())]


def _written_by_cuda() -> list[Path]:
    """Return what CUDA writes: the GPUs' devices, and this process's threads in /proc, which CUDA names."""
    devices = [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*")]
    return [*sorted(path for path in devices if path.is_char_device()), Path("/proc/self/task")]


def folders_of(library: str, maps: str) -> list[Path]:
    """Return the folders from which libraries of this name are loaded, by the text of /proc/self/maps."""
    paths = [Path(fields[5]) for line in maps.splitlines() if len(fields := line.split(None, 5)) == 6]
    return sorted({path.parent for path in paths if path.name.startswith(library)})


def memory_limit() -> int:
    """Return six tenths of this machine's memory, in bytes."""
    return int(0.6 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def largest_weights() -> int:
    """Return the bytes of weights that a sandboxed process may send: a fifth of the memory, since they are copied once."""
    return min(2**36, memory_limit() // 3)


def _clean_environment(home: Path) -> None:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    _wipe_environment()
    os.environ.clear()
    # else GitPython, which foolbox imports, runs a program, joblib shares memory, and torch looks up the user's name
    own = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath, "USER": "nobody"}
    os.environ.update(kept | own | {"GIT_PYTHON_REFRESH": "quiet", "JOBLIB_MULTIPROCESSING": "0"})
    tempfile.tempdir = None  # forget the parent's


def _wipe_environment() -> None:
    """Overwrite all values with zeros: a deleted variable stays in memory and in /proc/self/environ."""
    find = ctypes.CDLL(None).getenv
    find.argtypes, find.restype = (ctypes.c_char_p,), ctypes.c_void_p
    for name, value in os.environb.items():
        if place := find(name):
            ctypes.memset(place, 0, len(value))
        if len(value) > 1:  # Python's own copy; shorter ones are the same object everywhere
            ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
    if LINUX:  # the initial environment: variables set since lie elsewhere
        # from the third field on: man 5 proc_pid_stat
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(int, fields[47:49])
        ctypes.memset(start, 0, end - start)


def _unshare(flags: int) -> None:
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"namespaces: {os.strerror(number)}")
    # mapped to itself, so that it reads what its user reads
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


@cache
def _namespaces() -> bool:
    """Return whether this user may make namespaces. Only trying tells, so a child process tries."""
    if not LINUX:
        return False
    child = os.fork()
    if not child:
        try:
            _unshare(NEW_USER | NEW_IPC | NEW_NETWORK)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _limit(rules: Confinement) -> None:
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_SIZE, resource.RLIMIT_NOFILE: 1024}
    if rules.memory and not rules.gpu:
        limits |= {resource.RLIMIT_DATA: rules.memory, resource.RLIMIT_AS: ADDRESSES * rules.memory}
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def installed() -> list[Path]:
    """Return Python, its packages and their libraries, without the data of `DATA_IN_PACKAGES`: once for all forks of a
    process.
    """
    return _installed(Path.cwd(), *_packages())


@cache
def _installed(_folder: Path, *places: Path) -> list[Path]:
    *packages, own = places
    hidden = [root / data for root in places for data in DATA_IN_PACKAGES]
    # of a checkout: its code is followed from the working directory
    sources = {place / name for place in (own, Path.cwd()) for name in ("benchmark", "autoattack")}
    sources |= {*own.glob("*.egg-info")}  # the installed version
    hidden += [Path.cwd() / data for data in DATA_IN_PACKAGES]
    roots = {Path(sysconfig.get_path("stdlib")), *packages, *sources}
    paths = [path for root in sorted(roots) for path in landlock.around(root, hidden)]
    triplet, libraries = sysconfig.get_config_var("MULTIARCH") or "", sysconfig.get_config_var("LIBDIR") or ""
    paths += [Path(place) for place in (f"/usr/lib/{triplet}", f"/lib/{triplet}", "/lib64", "/usr/lib64") if triplet]
    paths += sorted(Path(libraries).glob("lib*.so*")) if libraries else []
    return [*paths, *map(Path, MACHINE)]


def _packages() -> list[Path]:
    """Return the folders of installed packages, also those of PYTHONPATH; the last is the benchmark's own."""
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    places |= {Path(place).absolute() for place in sys.path if place and any(Path(place).glob("*.dist-info"))}
    return [*sorted(places), Path(__file__).parents[2]]
