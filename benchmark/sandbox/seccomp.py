"""seccomp: a process gives up system calls for good. Refused are those that start programs, reach other processes or the
network, mark files where other processes see it, or change the confinement. All others are allowed, so that torch runs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterable
from functools import cache

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # libseccomp's actions; an error's number is added to the second
NOT_EQUAL, MASKED_EQUAL = 1, 7  # its comparisons
ERRORS = {"clone3": errno.ENOSYS}  # its flags lie in memory; the C library then calls clone
CLONE_THREAD, SOCKET_KIND, WORD = 0x10000, 0xF, 2**32 - 1  # masks: clone's flags, a socket's type, an int's bits
# clone with the flag of any namespace
FLAGS = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
NAMESPACES = [("clone", (0, MASKED_EQUAL, flag, flag)) for flag in FLAGS]
# signals when a file is ready: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP; notices of its use: F_SETLEASE,
# F_NOTIFY; its flags: FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
FILES_OF_OTHERS = {"fcntl": (8, 10, 15, 1024, 1026), "ioctl": (0x8901, 0x8902, 0x40086602, 0x401C5820)}
# F_GETLK, F_SETLK, F_SETLKW and those of open files: other processes see locks on shared files
LOCKS = (5, 6, 7, 36, 37, 38)
# mmap's flags of memory that the limit on data does not count: MAP_SHARED with MAP_ANONYMOUS; MAP_GROWSDOWN
UNCOUNTED = (0x21, 0x100)
SET_FOR_GOOD = (1, 4)  # PR_SET_PDEATHSIG, PR_SET_DUMPABLE: may not be changed after `confine`
REFUSED = (
    # other programs and processes
    "execve", "execveat", "fork", "vfork", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp",
    "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    # the confinement itself
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "fspick", "fsconfig", "open_tree",
    "move_mount", "mount_setattr", "setrlimit", "personality", "add_key", "request_key", "keyctl",
    # memory shared with other processes, and files without their names
    "shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink", "open_by_handle_at", "name_to_handle_at",
    # marks on files, which other processes see even if they may not open them; watching files
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr", "inotify_init", "inotify_init1", "fanotify_init", "mincore", "cachestat",
    # marks on processes, which others see
    "setpriority", "ioprio_set", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "setpgid",
    "setsid",
    # another user: the kernel then forgets to end the process with its parent
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups", "capset",
    # parts of the kernel that few programs need
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load",
    "init_module", "finit_module", "delete_module", "swapon", "swapoff", "reboot", "acct", "quotactl", "sethostname",
    "setdomainname", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "vhangup", "syslog",
    # incoming connections
    "accept", "accept4",
)  # fmt: skip
REFUSED_WITHOUT_NETWORK = ("connect", "flock")  # downloads take locks; such a process has no labels
# CUDA's first call needs sockets of AF_UNIX. Every process moves the disk's counters; CUDA was not tried without them
REFUSED_WITHOUT_GPU = (
    "bind", "listen", "statfs", "fstatfs", "ustat",
    # memory beyond the limit, which a process on a GPU does not have; a moved piece of the stack is not counted either
    "memfd_create", "memfd_secret", "mremap",
)  # fmt: skip
INTERNET, FAMILIES = (socket.AF_INET, socket.AF_INET6), 64  # more than the kernel knows


# a call; its argument's number, the comparison and its operands, or () for any arguments
Rule = tuple[str, tuple[int, ...]]


class _Condition(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint), ("comparison", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)
    )  # fmt: skip


def refuse(*, network: bool = False, gpu: bool = False) -> None:
    """Let the calls above fail with EPERM in this process from now on; those of the network too, unless `network`.

    With `network` it may connect by TCP, and by nothing else: no datagram, no local socket. With `gpu` it may make
    sockets of AF_UNIX and listen there, but connect to none. It accepts no connection. Pairs of sockets within the
    process are allowed, except datagram sockets, which reach another process's socket without a connection.

    Raises:
        OSError: there is no libseccomp, or the kernel refuses.
    """
    datagrams = (socket.SOCK_DGRAM, socket.SOCK_RAW)
    unconditional = (*REFUSED, *(() if network else REFUSED_WITHOUT_NETWORK), *(() if gpu else REFUSED_WITHOUT_GPU))
    rules: list[Rule] = [(name, ()) for name in unconditional]
    if network:
        rules += _among("socket", 0, WORD, {*range(FAMILIES)} - {*INTERNET})
        rules += _among("socket", 1, SOCKET_KIND, {*range(SOCKET_KIND + 1)} - {socket.SOCK_STREAM})
    elif gpu:
        rules += [("socket", (0, NOT_EQUAL, socket.AF_UNIX)), *_among("socket", 1, SOCKET_KIND, datagrams)]
    else:
        rules += [("socket", ())]
    rules += [("socketpair", (0, NOT_EQUAL, socket.AF_UNIX)), *_among("socketpair", 1, SOCKET_KIND, datagrams)]
    rules += [("clone", (0, MASKED_EQUAL, CLONE_THREAD, 0)), *NAMESPACES]  # threads alone
    rules += _among("fcntl", 1, WORD, (*FILES_OF_OTHERS["fcntl"], *(() if network else LOCKS)))
    rules += _among("ioctl", 1, WORD, FILES_OF_OTHERS["ioctl"])
    rules += _among("prctl", 0, WORD, SET_FOR_GOOD)
    for flags in () if gpu else UNCOUNTED:
        rules += _among("mmap", 3, flags, [flags])
    rules += [("tgkill", (0, NOT_EQUAL, os.getpid()))]  # signals to its own threads alone
    rules += [("prlimit64", (2, NOT_EQUAL, 0))]  # a new limit, of whichever process
    load([*rules, ("clone3", ())])


def load(rules: Iterable[Rule]) -> None:
    """Make these system calls fail in this process. Raise OSError without libseccomp, or if the kernel refuses."""
    if (seccomp := library()) is None:
        raise OSError(errno.ENOSYS, "libseccomp is missing")
    context = seccomp.seccomp_init(ALLOW)
    for name, condition in rules:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        conditions = (_Condition * bool(condition))(*[_Condition(*condition)] if condition else ())
        if number >= 0:  # this processor's kernel knows the call
            action = ERRNO + ERRORS.get(name, errno.EPERM)
            _check(seccomp.seccomp_rule_add_array(context, action, number, len(conditions), conditions))
    _check(seccomp.seccomp_load(context))
    seccomp.seccomp_release(context)


@cache
def library() -> ctypes.CDLL | None:
    """Return libseccomp, which most Linux systems have; None if it is missing."""
    try:
        seccomp = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    seccomp.seccomp_init.argtypes, seccomp.seccomp_init.restype = (ctypes.c_uint32,), ctypes.c_void_p
    seccomp.seccomp_load.argtypes = seccomp.seccomp_release.argtypes = (ctypes.c_void_p,)
    seccomp.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    seccomp.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Condition)
    )  # fmt: skip
    return seccomp


def _among(name: str, argument: int, mask: int, values: Iterable[int]) -> list[Rule]:
    """Return the rules for a call one of whose arguments, under the mask, has one of the values."""
    return [(name, (argument, MASKED_EQUAL, mask, value)) for value in values]


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, f"seccomp: {os.strerror(-result)}")
