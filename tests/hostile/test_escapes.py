"""Attempts of sandboxed code against the machine, the evaluator and other rows: each fails, and harms nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from benchmark.runtime.errors import BenchmarkError
from benchmark.sandbox.confinement import PARTS, Confinement, available, confine, folders_of
from benchmark.sandbox.process import Process, serve

pytestmark = pytest.mark.skipif(available() != PARTS, reason="this machine lacks a part of the sandbox")

SECRET = "RVB_PLANTED_SECRET"
CTYPES = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
REFUSED = "assert {} >= 0 or ctypes.get_errno() != 1, 'not permitted'"  # any other error would come of the arguments


def call(number: int, *arguments: str) -> str:
    """Return code for a system call by its number on x86-64, of which the C library has no function."""
    return CTYPES + REFUSED.format(f"libc.syscall({', '.join([str(number), *arguments])})")


# of a process's stack, which the limit on data leaves out: its lowest page, moved and made large
MOVED = "low = next(int(line.split('-')[0], 16) for line in open('/proc/self/maps') if '[stack]' in line)\n" + call(
    25, "ctypes.c_void_p(low)", "4096", "ctypes.c_size_t(5 * 2**30)", "1"
)


# each raises in the sandbox; where one does not, it has come through
ATTEMPTS = {
    # to read what it should not
    "the password file": "open('/etc/passwd').read()",
    "the evaluator's settings": "open('{root}/params.yaml').read()",
    "published results": "open('{root}/leaderboard/results/digits/track.json').read()",
    "the history of the repository": "open('{root}/.git/HEAD').read()",
    "the test images": "open('{tmp}/test.safetensors').read()",
    "names of other rows": "import os; os.listdir('{tmp}')",
    "names beside the benchmark": "import os; os.listdir('{root}')",
    "names in the repository": "import os; os.listdir('{root}/tests')",
    "names beside its own folder": "import os; os.listdir(os.path.dirname(here))",
    "a link out of its folder": "import os; os.symlink('{tmp}/test.safetensors', here + '/s'); open(here + '/s').read()",
    "a hard link out of its folder": "import os; os.link('{tmp}/test.safetensors', here + '/h'); open(here + '/h').read()",
    "a way up": "open(here + '/../../../../..{tmp}/test.safetensors').read()",
    "a file by its handle": CTYPES + "import os; number = os.open('{tmp}/test.safetensors', os.O_PATH); open(f'/proc/self/fd/{{number}}').read()",
    "the evaluator's environment": "import os; open(f'/proc/{{os.getppid()}}/environ').read()",
    "the evaluator's memory": "import os; open(f'/proc/{{os.getppid()}}/mem', 'rb')",
    "the evaluator's open files": "import os; os.listdir(f'/proc/{{os.getppid()}}/fd')",
    "a secret of the environment": "import os; os.environ['{secret}']",
    "a secret that was taken away": "assert open('/proc/self/environ').read().strip(chr(0)), 'wiped'",
    "a file that the evaluator has open": "import os; os.pread({fd}, 10, 0)",
    "images among installed packages": "from sklearn.datasets import load_digits; load_digits()",
    "sentences of another track": "open('{root}/benchmark/data/reviews/' + __import__('os').listdir('{root}/benchmark/data/reviews')[0]).read()",
    "processes": "import os; os.listdir('/proc')",
    # to write where it should not
    "the benchmark's code": "open('{root}/benchmark/attacks/prediction.py', 'a')",
    "installed packages": "import torch; open(torch.__file__, 'a')",
    "another row's verdicts": "open('{tmp}/verdicts.parquet', 'wb')",
    "a file away": "import os; os.remove('{tmp}/test.safetensors')",
    "a file to another place": "import os; open(here + '/x', 'w').close(); os.rename(here + '/x', '{tmp}/verdicts.parquet')",
    "a folder": "import os; os.mkdir('{tmp}/new')",
    "rights": "import os; os.truncate('{tmp}/test.safetensors', 0)",
    "shared memory": "open('/dev/shm/rvb', 'w')",
    "temporary files of others": "open('/tmp/rvb-planted', 'w')",
    # other programs and processes
    "a fork": "import os; os.fork() or os._exit(0)",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "a program": "import subprocess; subprocess.run(['true'])",
    "a shell": "import os; assert os.system('true') == 0",
    "another program in its place": "import os; os.execv('/bin/true', ['true'])",
    "a pool of processes": "import multiprocessing; multiprocessing.get_context('fork').Process(target=print).start()",
    "an end to the evaluator": "import os, signal; os.kill(os.getppid(), signal.SIGTERM)",
    "an end to all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "a signal by file": "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGTERM)",
    "a debugger on the evaluator": call(101, "16", "__import__('os').getppid()", "0", "0"),
    "the evaluator's memory by a call": call(310, "__import__('os').getppid()", "0", "0", "0", "0", "0"),
    "a shared segment": call(29, "1234", "4096", "0o1666"),
    "a look at one": call(31, "0", "2", "0"),
    "a semaphore that is there": call(65, "0", "0", "1"),
    "its state": call(66, "0", "0", "16", "1"),
    "a message to a queue that is there": call(69, "0", "b'x' * 16", "1", "0o4000"),
    "one from it": call(70, "0", "b'x' * 16", "1", "0", "0o4000"),
    "a queue away": call(71, "0", "0", "0"),
    # marks that other processes see, whatever they may open
    "the rights of a file": "import os; os.chmod(here, 0o750)",
    "the rights of an open file": "import os; os.fchmod(open(here + '/x', 'w').fileno(), 0o640)",
    "the owner of a file": "import os; os.chown(here, os.getuid(), os.getgid())",
    "the times of a file": "import os; os.utime(here, (1, 1))",
    "the times of an installed file": "import os, torch; os.utime(torch.__file__)",
    "an attribute of a file": "import os; os.setxattr(here, 'user.label', b'7')",
    "an attribute of an open file": "import os; os.setxattr(open(here + '/x', 'w').fileno(), 'user.label', b'7')",
    "an attribute away": "import os; os.removexattr(here, 'user.label')",
    "flags of a file": "import array, fcntl; fcntl.ioctl(open(here + '/x', 'w'), 0x40086602, array.array('l', [0]))",
    "a lock on a file that all read": "import fcntl, torch; fcntl.flock(open(torch.__file__), fcntl.LOCK_EX)",
    "a lock on a part of one": "import fcntl, torch; fcntl.lockf(open(torch.__file__), fcntl.LOCK_SH, 1, 7)",
    "who locks it": "import fcntl, struct, torch; fcntl.fcntl(open(torch.__file__), fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))",
    "who reads a file": call(294, "0"),
    "who reads it, by an older call": call(253),
    "who opens files": call(300, "0", "0"),
    "free space on the disk": "import os; os.statvfs(here)",
    "free space of an open file": "import os; os.statvfs(os.open(here, os.O_RDONLY))",
    "its priority": "import os; os.setpriority(os.PRIO_PROCESS, 0, 5)",
    "its priority on the disk": call(251, "1", "0", "0x4000"),
    "its processors": "import os; os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "its kind of turns": "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "its group": "import os; os.setpgid(0, 0)",
    "its session": "import os; os.setsid()",
    # to stay when the evaluator is gone
    "no end with the evaluator": CTYPES + REFUSED.format("libc.prctl(1, 0, 0, 0, 0)"),
    "another user, for whom that is forgotten": "import os; os.setresuid(-1, os.geteuid(), -1)",
    "another group": "import os; os.setresgid(-1, os.getegid(), -1)",
    "a look in from outside": CTYPES + REFUSED.format("libc.prctl(4, 1, 0, 0, 0)"),
    # the network
    "a TCP connection": "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "a datagram to a program's socket file": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '{tmp}/agent')",
    "the same by another name": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', '{tmp}/agent')",
    "a signal when a file is ready": "import fcntl, os, socket; a, b = socket.socketpair(); fcntl.fcntl(a, fcntl.F_SETOWN, os.getppid())",
    "the signal that it would be": "import fcntl, socket; a, b = socket.socketpair(); fcntl.fcntl(a, fcntl.F_SETSIG, 9)",
    "such a signal by a device's call": "import array, fcntl, os, socket; a, b = socket.socketpair(); fcntl.ioctl(a, 0x8901, array.array('i', [os.getppid()]))",
    # what holds it
    "more memory": "bytearray(5 * 2**30)",
    "more memory, shared": "import mmap; mmap.mmap(-1, 5 * 2**30)",
    "more memory that grows downwards": "import mmap; mmap.mmap(-1, 5 * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100)",
    "more memory as a file without a name": "import os; os.memfd_create('x')",
    "more memory as a piece of the stack": MOVED,
    "tables of pages that are only read": "import mmap; mmap.mmap(-1, 2**39, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)",
    "a larger limit": "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))",
    "a huge file": "f = open(here + '/big', 'wb'); f.truncate(2**34)",
    "a mount": CTYPES + REFUSED.format("libc.mount(b'none', here.encode(), b'tmpfs', 0, None)"),
    "another root": "import os; os.chroot(here)",
    "a namespace of its own": CTYPES + REFUSED.format("libc.unshare(0x10000000)"),
    "a namespace of a thread": call(56, "0x10000 | 0x800 | 0x100 | 0x40000000", "0", "0", "0", "0"),
    "a mount to change": call(433, "-100", "b'/'", "0"),
    "a ring of calls": call(425, "8", "0"),
    "the kernel's programs": call(321, "0", "0", "0"),
    "faults of its own": call(323, "0"),
    "another name of the machine": call(170, "b'x'", "1"),
    "the time": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
}  # fmt: skip
EXHAUSTING = {
    "memory piece by piece": "kept = []\nwhile True: kept.append(bytearray(2**26))",
    "files without end": "import os\nkept = [open('/dev/null') for _ in range(5000)]",
    "threads without end": "import threading\nthreading.stack_size(2**26)\nkept = []\nwhile True:\n    t = threading.Thread(target=__import__('time').sleep, args=(60,), daemon=True); t.start(); kept.append(t)",
}  # fmt: skip


# what a process that computes on a GPU may do more, and what it may not do all the same
OPENED = {
    "a stream that listens": "import socket; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'rvb-test'); s.listen()",
    "packets that listen": "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(chr(0) + 'rvb-other'); s.listen()",
    "a thread's name": "import threading; open(f'/proc/self/task/{{threading.get_native_id()}}/comm', 'r+').write('x')",
}
CLOSED = [
    "the password file", "the test images", "the evaluator's environment", "the evaluator's memory", "the evaluator's open files",
    "processes", "the benchmark's code", "another row's verdicts", "shared memory", "a program", "an end to the evaluator",
    "a TCP connection", "a datagram", "a datagram to a program's socket file", "the same by another name",
]  # fmt: skip
CLOSED_ON_GPU = {name: ATTEMPTS[name] for name in CLOSED} | {
    "a connection to a program": "import socket; socket.socket(socket.AF_UNIX).connect('{tmp}/listens')",
    "a connection to an abstract name": "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + 'rvb')",
    "a datagram of a socket of its own": "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '{tmp}/agent')",
    "somebody who calls": "import socket; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'rvb'); s.listen(); s.accept()",
    "a socket of the network": "import socket; socket.socket(socket.AF_INET)",
    "a socket of the new network": "import socket; socket.socket(socket.AF_INET6)",
    "a netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a family with high bits": call(41, "(1 << 32) | 2", "1", "0"),
    "its own place in a full memory": "open('/proc/self/oom_score_adj', 'w').write('0')",
    "the evaluator's name": "import os; open(f'/proc/{{os.getppid()}}/comm', 'w').write('x')",
    "the evaluator's place in a full memory": "import os; open(f'/proc/{{os.getppid()}}/oom_score_adj', 'w').write('1000')",
    "a file by its own root": "open('/proc/self/root{tmp}/test.safetensors').read()",
}


# what a process that downloads weights may do more, and what not: names of files may be labels, and so may messages
DOWNLOADS = "import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
NAMED = "import socket; socket.create_connection(('localhost', {port}), 5)"
CLOSED_TO_BOTH = (
    "a connection to a program",
    "a connection to an abstract name",
    "a datagram of a socket of its own",
    "a netlink",
)
CLOSED_TO_DOWNLOADS = {
    name: CLOSED_ON_GPU[name] for name in (*CLOSED, *CLOSED_TO_BOTH) if name != "a TCP connection"
} | {
    "a family with high bits": call(41, "(1 << 32) | 1", "1", "0"),
    "packets of the machine": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "the machine that holds this one": "import socket; socket.socket(socket.AF_VSOCK)",
    "a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "somebody who calls": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0))",
    "somebody who calls without a name": "import socket; s = socket.socket(); s.listen(); s.accept()",
}  # fmt: skip


# not a mistake in the attempt itself, such as a NameError
REFUSALS = (OSError, AssertionError, KeyError, MemoryError, RuntimeError, SystemError, AttributeError, ValueError)


class _Served:
    def attempt(self, code: str) -> tuple[dict, dict]:
        try:
            exec(code, {"here": os.environ["HOME"]})
        except REFUSALS as error:
            return {"failed": f"{type(error).__name__}: {error}"}, {}
        return {"failed": ""}, {}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Files of others, a secret, and a file that the evaluator has open."""
    (tmp_path / "test.safetensors").write_text("labels")
    monkeypatch.setenv(SECRET, "planted")
    with (
        (tmp_path / "open").open("w+") as handle,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent,
        socket.socket(socket.AF_UNIX) as listens,
    ):
        agent.bind(str(tmp_path / "agent"))
        listens.bind(str(tmp_path / "listens"))
        listens.listen()
        handle.write("labels")
        handle.flush()
        port = server.getsockname()[1]
        yield {"tmp": tmp_path, "secret": SECRET, "fd": handle.fileno(), "root": Path.cwd(), "port": port}


def tried(attempts: dict[str, str], place, **rules: bool) -> dict[str, str]:
    """Return what stopped each code in the sandbox, one after another in one process; "" where nothing did."""
    # a worker of all tests has 2 GiB mapped before it starts one
    confinement = Confinement(PARTS, memory=2**32, **rules)
    failed = {}
    with Process(lambda channel: serve(channel, _Served()), confinement, owner="a test", seconds=60) as process:
        for name, code in attempts.items():
            code = code.replace("{{", "{").replace("}}", "}")
            for key, value in place.items():
                code = code.replace("{" + key + "}", str(value))
            failed[name] = process.ask("attempt", code=code)[0]["failed"]
    assert not process.home.exists()
    return failed


def came_through(attempts: dict[str, str], place, **rules: bool) -> list[str]:
    before = sorted(p.name for p in place["tmp"].iterdir())
    failed = tried(attempts, place, **rules)
    assert sorted(p.name for p in place["tmp"].iterdir()) == before
    assert (place["tmp"] / "test.safetensors").read_text() == "labels"
    assert not Path("/tmp/rvb-planted").exists()
    # CPython raises a SystemError after a call that succeeded, too: a fresh process has to refuse it by its own error
    again = {name: attempts[name] for name, words in failed.items() if words.startswith("SystemError")}
    for name, words in (tried(again, place, **rules) if again else {}).items():
        failed[name] = "" if words.startswith("SystemError") else words
    return [name for name, words in failed.items() if not words]


def test_a_process_on_a_gpu_may_do_what_cuda_needs_and_no_more(place) -> None:
    assert came_through(OPENED, place, gpu=True) == list(OPENED)
    assert came_through(OPENED, place) == []
    assert came_through(CLOSED_ON_GPU, place, gpu=True) == []


def test_what_downloads_connects_by_tcp_and_by_nothing_else(place) -> None:
    assert came_through({code: code for code in (DOWNLOADS, NAMED)}, place, network=True) == [DOWNLOADS, NAMED]
    assert came_through(CLOSED_TO_DOWNLOADS, place, network=True) == []


def test_packages_are_read_where_pythonpath_has_them_and_a_user_has_a_name(place, monkeypatch, tmp_path) -> None:
    """torch's optimisers ask for the name; /etc/passwd is not for submissions."""
    site, other = tmp_path / "site", tmp_path / "other"
    for folder in (site, other):
        folder.mkdir()
        (folder / f"kept_in_{folder.name}.py").write_text("")
        monkeypatch.syspath_prepend(folder)
    (site / "kept_in_site-1.dist-info").mkdir()
    (site / "leaderboard/results").mkdir(parents=True)
    (site / "leaderboard/results/verdicts.json").write_text("{}")
    packages = "import kept_in_site, getpass; assert getpass.getuser() == 'nobody'"
    closed = [other / "kept_in_other.py", site / "leaderboard/results/verdicts.json"]
    failed = tried({"packages": packages} | {str(path): f"open('{path}').read()" for path in closed}, place)
    assert failed.pop("packages") == ""
    assert all("Permission denied" in words for words in failed.values())


def test_the_driver_is_read_where_it_is_loaded_from() -> None:
    maps = (
        "7f00-7f01 r--p 0000 08:01 12 /usr/local/nvidia/lib64/libcuda.so.580.1\n"
        "7f01-7f02 r-xp 0000 08:01 12 /usr/local/nvidia/lib64/libcuda.so.580.1\n"
        "7f02-7f03 rw-p 0000 00:00 0 \n7f03-7f04 r--p 0000 08:01 13 /lib/x86_64-linux-gnu/libc.so.6\n"
    )
    assert folders_of("libcuda.so", maps) == [Path("/usr/local/nvidia/lib64")]
    assert folders_of("libcuda.so", "") == []


def test_attempts_fail_and_leave_no_trace(place) -> None:
    assert came_through(ATTEMPTS, place) == []


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXHAUSTING)
def test_what_takes_all_there_is_takes_no_more_than_its_limit(place, name) -> None:
    """Each in a process of its own, which is of no use afterwards."""
    assert came_through({name: EXHAUSTING[name]}, place) == []


ENDS = {
    "it leaves without a word": ("import os; os._exit(0)", "it ended"),
    "it leaves as a library may": ("import os; os._exit(3)", "it ended with exit status 3"),
    "it calls sys.exit": ("import sys; sys.exit(0)", "it calls sys.exit(0)"),
    "it aborts": ("import os; os.abort()", "SIGABRT"),
    "it crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "it sleeps": ("import time; time.sleep(600)", "no answer within 1 s"),
    "it loops": ("while True: pass", "no answer within 1 s"),
    "it recurses": ("def f(): f()\nf()", "Error"),
    "it says it with escape codes": ("raise ValueError('\\x1b[2J\\u202egood\\x00')", "ValueError: [2J good"),
    "it says much": ("raise ValueError('x' * 10**7)", "ValueError: xxx"),
    "it interrupts": ("raise KeyboardInterrupt", "it ended"),
    "it takes the generator's exit": ("raise GeneratorExit", "it ended"),
    "it ends the file": ("import os; os.close(channel.fileno())", "it ended"),
    "it sends what is no message": ("import os; os.write(channel.fileno(), b'\\xff' * 64)", "bytes, where"),
    "it sends no JSON": ("import os, struct; os.write(channel.fileno(), struct.pack('<IQ', 4, 0) + b'nope')", "no message"),
    "it nests": ("import os, struct; d = b'[' * 200000; os.write(channel.fileno(), struct.pack('<IQ', len(d), 0) + d)", "no message"),
    "it promises more than it sends": ("import os, struct; os.write(channel.fileno(), struct.pack('<IQ', 10, 0)); os._exit(0)", "it ended"),
    "it declares a tensor without end": ("channel._socket.sendall(message({'t': ['float32', [2**39, 2**39]]}, 0))", "other tensors than it said"),
    "it declares a negative size": ("channel._socket.sendall(message({'t': ['float32', [-4]]}, 0))", "no message"),
    "it declares an unknown type": ("channel._socket.sendall(message({'t': ['object', [1]]}, 8))", "no message"),
    "it lies about its sizes": ("channel._socket.sendall(message({'t': ['float32', [2]]}, 4) + b'0000')", "other tensors than it said"),
}  # fmt: skip


def _end(code: str, channel) -> None:
    import json
    import struct

    def message(tensors, size: int) -> bytes:
        head = json.dumps({"message": {}, "tensors": tensors}).encode()
        return struct.pack("<IQ", len(head), size) + head

    exec(code, {"channel": channel, "message": message})
    time.sleep(600)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ENDS)
def test_however_it_ends_the_evaluator_gets_one_line(name) -> None:
    code, words = ENDS[name]
    process = Process(partial(_end, code), Confinement(PARTS, memory=2**33), owner="a test", seconds=1)
    with pytest.raises(BenchmarkError) as error:
        process.receive(seconds=1 if "within" in words else 20)
    text = str(error.value)
    assert words in text
    assert len(text) < 2_200
    assert text.isprintable()
    process.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def test_what_it_prints_goes_nowhere(capfd) -> None:
    def work(channel) -> None:
        print("\x1b[2Jgood")
        print("bad", file=sys.stderr)
        os.write(1, b"raw")
        channel.send({"done": True})

    with Process(work, Confinement(PARTS), owner="a test", seconds=20) as process:
        process.receive()
    assert capfd.readouterr() == ("", "")


STAYS = {
    "a busy process": "",
    "one that forgets its parent": CTYPES + "libc.prctl(1, 0, 0, 0, 0)",
    "one that becomes another user": CTYPES + "libc.setresuid(-1, 65534, -1)",
    "one that forks, and is nobody's": "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)",
}


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("name", STAYS)
def test_nothing_is_left_when_who_asked_is_gone(name, closes) -> None:
    """Neither where that one ends the process nor where it is killed itself."""

    def busy(channel) -> None:
        with contextlib.suppress(OSError):
            exec(STAYS[name], {})
        channel.send({"pid": os.getpid()})
        while True:
            pass

    def outer(pipe: int) -> None:
        process = Process(busy, Confinement(PARTS), owner="a test", seconds=20)
        os.write(pipe, str(process.receive()[0]["pid"]).encode())
        if closes:
            process.close()
        time.sleep(600)

    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        outer(theirs)
    inner = int(os.read(ours, 20))
    if not closes:
        os.kill(child, 9)
    until = time.monotonic() + 20
    while (left := _state(inner)) != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    if closes:
        os.kill(child, 9)
    os.waitpid(child, 0)
    assert left == "Z", "it is still there"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
def test_namespaces_are_put_on_by_a_user_without_privileges(tmp_path) -> None:
    """A process that is not dumpable has no /proc/self of its own, through which it maps itself."""
    tmp_path.chmod(0o777)
    child = os.fork()
    if not child:
        os.setgid(65534)
        os.setuid(65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, as a process is that was this user's from the start
        try:
            confine(Confinement(("namespaces", "limits")), tmp_path)
        except OSError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
