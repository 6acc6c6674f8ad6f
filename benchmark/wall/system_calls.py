"""System calls that a process gives up for good, by seccomp: those that start programs, reach other processes or the
network, mark files where other processes see it, or change what holds it. Everything else goes on, so that torch runs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from functools import cache

CLONE_THREAD, SOCKET_KIND, WORD = 0x10000, 0xF, 2**32 - 1  # masks: clone's flags, a socket's type, an int's bits
CLONE_NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
# who is sent a signal when a file is ready, and which: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP; who is told
# of its use: F_SETLEASE, F_NOTIFY; its flags: FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
FILES_OF_OTHERS = {"fcntl": (8, 10, 15, 1024, 1026), "ioctl": (0x8901, 0x8902, 0x40086602, 0x401C5820)}
# F_GETLK, F_SETLK, F_SETLKW and those of open files: other processes see locks on files that all read
LOCKS = (5, 6, 7, 36, 37, 38)
# the signal at the parent's death, and whether others may look in, once they are set
SET_FOR_GOOD = (1, 4)  # PR_SET_PDEATHSIG, PR_SET_DUMPABLE
ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # libseccomp's actions; an error's number is added to the second
NOT_EQUAL, MASKED_EQUAL = 1, 7  # its comparisons
REFUSED = (
    # other programs and processes
    "execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp",
    "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    # what holds it
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "fspick", "fsconfig", "open_tree",
    "move_mount", "mount_setattr", "setrlimit", "personality", "add_key", "request_key", "keyctl",
    # memory that other processes share, and files without their names
    "shmget", "shmat", "semget", "msgget", "mq_open", "open_by_handle_at", "name_to_handle_at",
    # marks on files, which other processes see whatever they may open; who watches a file sees it used
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr", "inotify_init", "inotify_init1", "fanotify_init", "mincore", "cachestat",
    # marks on processes, which others see too
    "setpriority", "ioprio_set", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "setpgid",
    "setsid",
    # another user: the kernel then forgets to end the process with its parent
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups", "capset",
    # parts of the kernel that few programs need
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load",
    "init_module", "finit_module", "delete_module", "swapon", "swapoff", "reboot", "acct", "quotactl", "sethostname",
    "setdomainname", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "vhangup", "syslog",
)  # fmt: skip
REFUSED_WITHOUT_NETWORK = ("connect", "flock")  # what downloads takes locks; it has no labels to tell anybody
REFUSED_WITHOUT_GPU = ("bind", "listen")  # which CUDA's first call needs, of AF_UNIX
INTERNET, FAMILIES = (socket.AF_INET, socket.AF_INET6), 64  # more than the kernel knows


class _Condition(ctypes.Structure):
    """On an argument of a call: its number, the comparison, and what it is compared with."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def available() -> bool:
    """Whether libseccomp is here, which most Linux systems bring."""
    return _library() is not None


def refuse(*, network: bool = False, gpu: bool = False) -> None:
    """From now on the calls above fail with EPERM in this process; those of the network too, unless `network`.

    With `network` it may connect by TCP, and by nothing else: no datagram, no local socket. With `gpu` it may make sockets of
    AF_UNIX and listen there, but connect to none. Nobody is accepted. Pairs of sockets within the process are not refused,
    but for datagrams, which reach another process's socket without a connection.

    Raises:
        OSError: there is no libseccomp, or the kernel refuses.
    """
    library = _library()
    if library is None:
        raise OSError(errno.ENOSYS, "libseccomp is missing")
    rules = library.seccomp_init(ALLOW)

    def add(name: str, *conditions: _Condition, error: int = errno.EPERM) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # this processor's kernel knows the call
            array = (_Condition * len(conditions))(*conditions)
            _checked(library.seccomp_rule_add_array(rules, ERRNO + error, number, len(conditions), array))

    def refuse_kinds(name: str, *kinds: int) -> None:
        for kind in kinds:
            add(name, _Condition(1, MASKED_EQUAL, SOCKET_KIND, kind))

    try:
        for name in (*REFUSED, "accept", "accept4"):
            add(name)
        for name in () if network else REFUSED_WITHOUT_NETWORK:
            add(name)
        for name in () if gpu else REFUSED_WITHOUT_GPU:
            add(name)
        add("socketpair", _Condition(0, NOT_EQUAL, socket.AF_UNIX))
        refuse_kinds("socketpair", socket.SOCK_DGRAM, socket.SOCK_RAW)
        if network:
            for family in {*range(FAMILIES)} - {*INTERNET}:
                add("socket", _Condition(0, MASKED_EQUAL, WORD, family))
            refuse_kinds("socket", *({*range(SOCKET_KIND + 1)} - {socket.SOCK_STREAM}))
        elif gpu:
            add("socket", _Condition(0, NOT_EQUAL, socket.AF_UNIX))
            refuse_kinds("socket", socket.SOCK_DGRAM, socket.SOCK_RAW)
        else:
            add("socket")
        # threads alone, and signals to its own threads alone
        add("clone", _Condition(0, MASKED_EQUAL, CLONE_THREAD, 0))
        for flag in CLONE_NAMESPACES:
            add("clone", _Condition(0, MASKED_EQUAL, flag, flag))
        for name, commands in FILES_OF_OTHERS.items():
            for command in (*commands, *(LOCKS if name == "fcntl" and not network else ())):
                add(name, _Condition(1, MASKED_EQUAL, WORD, command))
        for option in SET_FOR_GOOD:
            add("prctl", _Condition(0, MASKED_EQUAL, WORD, option))
        add("clone3", error=errno.ENOSYS)  # whose flags lie in memory; the C library takes clone then
        add("tgkill", _Condition(0, NOT_EQUAL, os.getpid()))
        add("prlimit64", _Condition(2, NOT_EQUAL, 0))  # a new limit, of whichever process
        _checked(library.seccomp_load(rules))
    finally:
        library.seccomp_release(rules)


@cache
def _library() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    found.seccomp_init.argtypes, found.seccomp_init.restype = (ctypes.c_uint32,), ctypes.c_void_p
    found.seccomp_load.argtypes = found.seccomp_release.argtypes = (ctypes.c_void_p,)
    found.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    found.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Condition)
    )  # fmt: skip
    return found


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(-result, f"seccomp: {os.strerror(-result)}")
