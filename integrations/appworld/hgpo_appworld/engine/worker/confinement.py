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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_SET_DEATH_SIGNAL, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 22, 38
_FILTER: Final = 2
_EPERM, _ENOSYS = 1, 38


def end_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent ends.

    Args:
        parent: The parent's process id, read before the fork. If it has ended already, this process ends, too.
    """
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_resources(memory: int, file_size: int) -> None:
    """Limit memory and file size, and let Linux end this process first when the machine runs out of memory.

    Args:
        memory: Bytes of address space beyond those in use now.
        file_size: Bytes of the largest file.
    """
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, used + memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


# ------------------------------------------------------------------------------------------------------- system calls

_X86_64: Final = 0xC000003E
_X32: Final = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS: Final = 16
_CLONE_THREAD: Final = 0x00010000

_DENIED: Final = (
    (57, 58, 59, 322),  # fork, vfork, execve, execveat
    (41, 42, 43, 288, 49, 50),  # socket, connect, accept, accept4, bind, listen
    (46, 307),  # sendmsg, sendmmsg
    (101, 310, 311),  # ptrace, process_vm_readv, process_vm_writev
    (424, 434, 438),  # pidfd_send_signal, pidfd_open, pidfd_getfd
    (90, 91, 268, 452),  # chmod, fchmod, fchmodat, fchmodat2
    (92, 93, 94, 260),  # chown, fchown, lchown, fchownat
    (188, 189, 190),  # setxattr, lsetxattr, fsetxattr
    (425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    (160, 272, 308, 161, 155),  # setrlimit, unshare, setns, chroot, pivot_root
    (165, 166, 428, 429, 430, 431),  # mount, umount2, open_tree, move_mount, fsopen, fsconfig
    (432, 433, 442),  # fsmount, fspick, mount_setattr
    (164, 227, 159, 305),  # settimeofday, clock_settime, adjtimex, clock_adjtime
    (103, 167, 168, 169, 170, 171),  # syslog, swapon, swapoff, reboot, sethostname, setdomainname
    (175, 176, 313, 246, 320),  # init_module, delete_module, finit_module, kexec_load, kexec_file_load
    (248, 249, 250, 298, 321, 323),  # add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd
    (304,),  # open_by_handle_at
)
"""System calls that fail with EPERM, by their numbers on x86-64."""
_CLONE, _CLONE3, _KILL, _TKILL, _TGKILL, _SENDTO, _PRLIMIT, _PRCTL = 56, 435, 62, 200, 234, 44, 302, 157


def filter_system_calls() -> bool:
    """Deny new processes, programs, sockets, signals to other processes, and the administration of the machine.

    Threads and pairs of connected sockets stay possible: AppWorld's client of its own apps needs them.

    Returns:
        Whether the filter is active. It is written for x86-64.
    """
    if platform.machine() != "x86_64":
        return False
    program = _program(os.getpid())
    packed = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    given = Filter(len(program), ctypes.cast(buffer, ctypes.c_void_p))
    return _prctl(_SET_NO_NEW_PRIVILEGES, 1) and _prctl(_SET_SECCOMP, _FILTER, ctypes.addressof(given))


_Line = tuple[int, int, int, int]


def _program(own: int) -> list[_Line]:
    """Return the filter as lines of classic BPF: code, jump if true, jump if false, value."""
    deny, allow, missing = _return(_FAIL | _EPERM), _return(_ALLOW), _return(_FAIL | _ENOSYS)
    lines: list[_Line] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _X86_64),
        deny,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        deny,
    ]
    for number in chain.from_iterable(_DENIED):
        lines += [(_EQUAL, 0, 1, number), deny]
    lines += [(_EQUAL, 0, 1, _CLONE3), missing]  # glibc falls back to clone, whose flags a filter can read
    lines += _when(_CLONE, [(_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 1, 0, _CLONE_THREAD), deny, allow])
    for number in (_KILL, _TKILL, _TGKILL):
        lines += _when(number, [(_LOAD, 0, 0, _argument(0)), (_EQUAL, 1, 0, own), deny, allow])
    for number, argument in ((_SENDTO, 4), (_PRLIMIT, 2)):  # no receiver, no new limit
        low, high = _argument(argument), _argument(argument) + 4
        null = [(_LOAD, 0, 0, low), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, high), (_EQUAL, 1, 0, 0)]
        lines += _when(number, [*null, deny, allow])
    lines += _when(_PRCTL, [(_LOAD, 0, 0, _argument(0)), (_EQUAL, 0, 1, _SET_DEATH_SIGNAL), deny, allow])
    return [*lines, allow]


def _when(number: int, lines: list[_Line]) -> list[_Line]:
    """Return lines that run for one system call and are skipped for others."""
    return [(_EQUAL, 0, len(lines), number), *lines]


def _return(value: int) -> _Line:
    return (_RETURN, 0, 0, value)


def _argument(number: int) -> int:
    """Return where the lower half of an argument of the system call is."""
    return _ARGUMENTS + 8 * number


# -------------------------------------------------------------------------------------------------------------- files

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_REFER: Final = 1 << 13
_FIRST_VERSION: Final = (1 << 13) - 1
_TCP: Final = 0b11
_SCOPES: Final = 0b11  # abstract sockets and signals


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Deny access to all files but some. It does not change what the process has open.

    Args:
        readable: Files and folders that can be read. Paths that do not exist are left out.
        writable: Folders in which files can be read, written, made and removed.

    Returns:
        Whether the restriction is active: it needs Landlock (Linux 5.13 or later).
    """
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
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
        for paths, allowed in ((readable, _READ | _LIST | _EXECUTE), (writable, handled)):
            for path in paths:
                _allow(ruleset, path, allowed & handled)
        return _prctl(_SET_NO_NEW_PRIVILEGES, 1) and _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
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
