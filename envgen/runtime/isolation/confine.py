"""What a worker does to itself before it sees any tool code: each layer of ``limits.LAYERS``, through libc.

Nothing here raises for what the machine cannot offer: ``confine`` reports it, layer by layer, and the parent
decides (``limits.missing``). The order matters: identity, namespaces and chroot need what Landlock and
seccomp then forbid; seccomp is last.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Callable, Mapping

from envgen.runtime.isolation.syscalls import ARCHITECTURES, filter_program

NOBODY = 65534

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # the same on all architectures
_LANDLOCK_VERSION_FLAG = 1
_CAPABILITY_VERSION = 0x20080522


class _Refused(Exception):
    """A layer is not to be had; the text says why."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _must(result: int, what: str) -> int:
    if result < 0:
        raise _Refused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(option: int, value: int, pointer: ctypes.c_void_p | None = None) -> int:
    zero = ctypes.c_ulong(0)
    return _libc().prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero)


def _user() -> None:
    """Leave root, when this is root; the memory of the process stays closed to others of the same user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _must(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def _namespaces() -> None:
    # After a change of user the files of /proc/self belong to root until the process is dumpable again.
    _prctl(_PR_SET_DUMPABLE, 1)
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS
    _must(_libc().unshare(flags), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _chroot() -> None:
    os.chroot(".")
    os.chdir("/")


def _drop_capabilities() -> None:
    """Those that the new user namespace gave: all capabilities inside it."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    nothing = ctypes.create_string_buffer(24)
    _must(_libc().capset(header, nothing), "capset")
    _prctl(_PR_SET_DUMPABLE, 0)


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 when there is none."""
    libc = _libc()
    result = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION_FLAG)
    return max(0, int(result))


def _landlock() -> None:
    """Handle every right that the kernel knows and allow none."""
    version = landlock_version()
    if version == 0:
        raise _Refused("this kernel has no Landlock")
    bits = 13 if version == 1 else 14 if version == 2 else 15 if version < 5 else 16
    words = [(1 << bits) - 1]
    if version >= 4:
        words.append(3)  # TCP bind and connect
    if version >= 6:
        words.append(3)  # abstract Unix sockets and signals
    attributes = struct.pack(f"={len(words)}Q", *words)
    libc = _libc()
    ruleset = _must(
        libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0),
        "landlock_create_ruleset",
    )
    try:
        _must(libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _limit(name: str, value: int) -> None:
    _, hard = resource.getrlimit(getattr(resource, name))
    top = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(getattr(resource, name), (top, top))


def _rlimits(limits: Mapping[str, int]) -> None:
    _limit("RLIMIT_AS", limits["memory_bytes"])
    _limit("RLIMIT_CPU", limits["cpu_s"])
    _limit("RLIMIT_NOFILE", limits["open_files"])
    for name in ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE"):
        if hasattr(resource, name):
            _limit(name, 0)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp(socket_fd: int) -> None:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise _Refused(f"no system call table for {machine}; there are {', '.join(ARCHITECTURES)}")
    code = filter_program(machine, socket_fd)
    program = _Program(len(code) // 8, code)
    pointer = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
    _must(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, pointer), "seccomp")


def confine(limits: Mapping[str, int], socket_fd: int) -> dict[str, str]:
    """Put on every layer that there is; layer -> "" or why it is missing. Linux only.

    ``limits``: ``memory_bytes``, ``cpu_s``, ``open_files``. The working directory becomes the root. After
    this the process can compute and use ``socket_fd``, and nothing else.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # when memory runs out, the trainer is not the one to go
    report: dict[str, str] = {}

    def layer(name: str, put_on: Callable[[], None]) -> None:
        try:
            put_on()
        except (_Refused, OSError, AttributeError) as error:
            report[name] = str(error) or type(error).__name__
        else:
            report[name] = ""

    layer("user", _user)
    layer("namespaces", _namespaces)
    if report["namespaces"]:
        report["chroot"] = "needs the namespaces"
    else:
        layer("chroot", _chroot)
    try:
        _drop_capabilities()
    except _Refused as error:
        report["user"] = report["user"] or str(error)
    layer("landlock", _landlock)
    layer("rlimits", lambda: _rlimits(limits))
    layer("seccomp", lambda: _seccomp(socket_fd))
    return report
