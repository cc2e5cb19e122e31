"""What Linux offers to confine a process without privileges: death signal, limits, a filter of system calls, Landlock.

A program that an agent wrote runs in the same interpreter as AppWorld's apps. The functions here are called in the
forked process before it starts. They need no package, no privileges and no namespaces, so they also work in containers.
What the kernel does not offer is reported to the caller, not ignored.

Sources: Linux's ``Documentation/userspace-api/{seccomp_filter,landlock}.rst``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_SET_DEATH_SIGNAL = 1
_SET_SECCOMP = 22
_SET_NO_NEW_PRIVILEGES = 38
_FILTER: Final = 2
_CAPSET = 126
_CAPABILITY_VERSION = 0x20080522
_EPERM = 1
_ENOSYS = 38
_MOST_FILES: Final = 256


def end_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent ends.

    Args:
        parent: The parent's process id, read before the fork. If it has ended already, this process ends, too.
    """
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_resources(memory: int, file_size: int, cpu_seconds: int = -1) -> None:
    """Limit memory and files, and let Linux end this process first when the machine runs out of memory.

    Args:
        memory: Bytes of address space beyond those in use now.
        file_size: Bytes of the largest file.
        cpu_seconds: CPU time after which the process is killed; -1 for no limit.
    """
    used = (
        int(Path("/proc/self/statm").read_text("ascii").split()[0])
        * resource.getpagesize()
    )
    for limit, wanted in (
        (resource.RLIMIT_AS, used + memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CPU, cpu_seconds),
        # the kernel's buffers of sockets and pipes are memory, too
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        allowed = resource.getrlimit(limit)[1]
        most = min(
            (one for one in (wanted, allowed) if one >= 0),
            default=resource.RLIM_INFINITY,
        )
        resource.setrlimit(limit, (most, most))
    Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


def drop_capabilities() -> bool:
    """Give up all privileges of root. Return whether that worked."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    return bool(_libc.syscall(_CAPSET, header, struct.pack("<6I", *(0,) * 6)) == 0)


# ------------------------------------------------------------------------------------------------------- system calls

_X86_64: Final = 0xC000003E
_LOAD = 0x20
_EQUAL = 0x15
_AND = 0x54
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS: Final = 16

_ALLOWED: Final = (
    # files: read, write, close, fstat, lseek, pread64, pwrite64, readv, writev
    (0, 1, 3, 5, 8, 17, 18, 19, 20),
    (4, 6, 21, 89, 79),  # stat, lstat, access, readlink, getcwd
    (262, 332, 267, 269, 217),  # newfstatat, statx, readlinkat, faccessat, getdents64
    (74, 75, 40),  # fsync, fdatasync, sendfile
    (9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
    # signals: rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, alarm, restart_syscall
    (13, 14, 15, 131, 37, 219),
    (24, 186, 202, 273, 334),  # sched_yield, gettid, futex, set_robust_list, rseq
    # poll, select, pselect6, epoll_wait, epoll_ctl, epoll_pwait, epoll_create1
    (7, 23, 270, 232, 233, 281, 291),
    (45, 48, 51, 290, 293),  # recvfrom, shutdown, getsockname, eventfd2, pipe2
    # nanosleep, gettimeofday, clock_gettime, clock_getres, clock_nanosleep
    (35, 96, 228, 229, 230),
    (39, 110, 102, 104, 107, 108),  # getpid, getppid, getuid, getgid, geteuid, getegid
    # uname, getrlimit, getrusage, times, getrandom; sysinfo would count others' threads
    (63, 97, 98, 100, 318),
    (60, 231),  # exit, exit_group
)
"""System calls that a world may make with any arguments, by their numbers on x86-64.

They are those that AppWorld's own tests and the generated tasks make (``strace``), and the others that the C library
and Python's modules for files, waiting and time take in their place.
"""
_CHANGING: Final = (77, 82, 83, 84, 87, 258, 263)
"""ftruncate, rename, mkdir, rmdir, unlink, mkdirat, unlinkat: for worlds, which write files."""
_CLONE3: Final = 435
_KILL = 62
_TGKILL = 234
_OPENAT = 257
_FCNTL = 72
_IOCTL_CALL = 16
_SOCKETPAIR = 53
_SENDTO = 44
_CLONE = 56
_PRLIMIT = 302
_GETAFFINITY = 204
_UNIX: Final = 1
_THREADS: Final = (0x3D0F00, 0x7D0F00)
"""The flags of `clone` with which the C libraries glibc and musl start a thread."""
_DESCRIPTORS: Final = (0, 1, 2, 3, 4, 6, 7, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC. F_GETLK would show others' locks."""
_TERMINALS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""


def filter_system_calls(*, writing: bool = True) -> bool:
    """Allow the system calls that AppWorld needs, and let all others fail.

    Allowed are files (which Landlock chooses), threads, pairs of connected sockets, waiting, and signals to itself. No
    call names another process, and nothing outlives the process but its files.

    Args:
        writing: Whether files can be written, made and removed.

    Returns:
        Whether the filter is active. It is written for x86-64.
    """
    if platform.machine() != "x86_64":
        return False
    program = _program(os.getpid(), writing)
    packed = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    given = Filter(len(program), ctypes.cast(buffer, ctypes.c_void_p))
    return _prctl(_SET_NO_NEW_PRIVILEGES, 1) and _prctl(
        _SET_SECCOMP, _FILTER, ctypes.addressof(given)
    )


_Line = tuple[int, int, int, int]


def _program(own: int, writing: bool) -> list[_Line]:
    """Return the filter as lines of classic BPF: code, jump if true, jump if false, value."""
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        _return(_FAIL | _EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    free = [number for group in _ALLOWED for number in group] + list(
        _CHANGING if writing else ()
    )
    for number in free:
        lines += _when(number, [])
    for number, checks in {
        _KILL: _one_of(0, own),
        _TGKILL: _one_of(0, own),
        _OPENAT: _opened(writing),
        _FCNTL: _one_of(1, *_DESCRIPTORS),
        _IOCTL_CALL: _one_of(1, *_TERMINALS),
        _SOCKETPAIR: _one_of(0, _UNIX),
        _SENDTO: _null(4),  # no receiver
        _CLONE: _one_of(0, *_THREADS),
        _PRLIMIT: _one_of(0, 0, own) + _null(2),  # no new limit
        _GETAFFINITY: _one_of(0, 0, own),
    }.items():
        lines += _when(number, checks)
    # then glibc calls clone, whose flags can be read
    lines += [(_EQUAL, 0, 1, _CLONE3), _return(_FAIL | _ENOSYS)]
    return [*lines, _return(_FAIL | _EPERM)]


def _when(number: int, checks: list[_Line]) -> list[_Line]:
    """Return lines that allow one system call if it passes checks."""
    return [(_EQUAL, 0, len(checks) + 1, number), *checks, _return(_ALLOW)]


def _one_of(
    argument: int, *values: int, mask: int = 0, upper: bool = False
) -> list[_Line]:
    """Return lines that let the call fail unless half an argument, masked, has one of some values."""
    masked = [(_AND, 0, 0, mask)] if mask else []
    equal = [
        (_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)
    ]
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * upper),
        *masked,
        *equal,
        _return(_FAIL | _EPERM),
    ]


def _null(argument: int) -> list[_Line]:
    """Return lines that let the call fail unless a pointer is null."""
    return _one_of(argument, 0) + _one_of(argument, 0, upper=True)


def _opened(writing: bool) -> list[_Line]:
    """Return the check of how a file is opened.

    Before its version 3, Landlock does not see O_TRUNC where a file is not opened for writing: it empties what can only
    be read, and, with the access mode 3, every file of the user. With O_RDWR, a file could be mapped and filled without
    counting as written.
    """
    read = os.O_RDONLY
    write = os.O_WRONLY
    made = os.O_CREAT
    emptied = os.O_TRUNC
    if not writing:
        return _one_of(2, read, mask=os.O_ACCMODE | made | emptied)
    return _one_of(2, read, write, write | emptied, mask=os.O_ACCMODE | emptied)


def _return(value: int) -> _Line:
    return (_RETURN, 0, 0, value)


# -------------------------------------------------------------------------------------------------------------- files

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_EXECUTE = 1 << 0
_WRITE = 1 << 1
_READ = 1 << 2
_LIST = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL = 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_REFER: Final = 1 << 13
_FIRST_VERSION: Final = (1 << 13) - 1
_TCP: Final = 0b11
_SCOPES: Final = 0b11  # abstract sockets and signals


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 or less if it has none (Linux before 5.13)."""
    return int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Deny access to all files but some. It does not change what the process has open.

    Args:
        readable: Files and folders that can be read. Paths that do not exist are left out.
        writable: Folders in which files can be read, written, made and removed.

    Returns:
        Whether the restriction is active: it needs Landlock.
    """
    version = landlock_version()
    if version < 1:
        return False
    handled = _FIRST_VERSION
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _IOCTL if version >= 5 else 0
    attributes = struct.pack("<QQQ", handled, _TCP, _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for paths, allowed in (
            (readable, _READ | _LIST | _EXECUTE),
            (writable, handled),
        ):
            for path in paths:
                _allow(ruleset, path, allowed & handled)
        return (
            _prctl(_SET_NO_NEW_PRIVILEGES, 1)
            and _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
        )
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        kept = allowed if Path(path).is_dir() else allowed & _OF_FILES
        rule = struct.pack("<Qi", kept, file)
        if _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0):
            raise OSError(ctypes.get_errno(), f"Landlock does not accept {path}")
    finally:
        os.close(file)


def _prctl(option: int, *values: int) -> bool:
    given = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return bool(_libc.prctl(option, *given) == 0)
