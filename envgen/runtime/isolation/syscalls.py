"""The system calls that a computing Python process needs, per architecture, and the seccomp filter for them.

Everything else kills the process (``SECCOMP_RET_KILL_PROCESS``). ``read`` and ``write`` are allowed on the
worker's own socket only; memory may be mapped, but never executable. Numbers: the kernel's
``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` (aarch64).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """``audit`` is the AUDIT_ARCH value that seccomp reports for a call."""

    audit: int
    numbers: Mapping[str, int]


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        0xC000003E,
        {
            "read": 0,
            "write": 1,
            "mmap": 9,
            "mprotect": 10,
            "munmap": 11,
            "brk": 12,
            "rt_sigreturn": 15,
            "sched_yield": 24,
            "mremap": 25,
            "madvise": 28,
            "exit": 60,
            "gettimeofday": 96,
            "futex": 202,
            "restart_syscall": 219,
            "clock_gettime": 228,
            "exit_group": 231,
            "getrandom": 318,
        },
    ),
    "aarch64": Architecture(
        0xC00000B7,
        {
            "read": 63,
            "write": 64,
            "mmap": 222,
            "mprotect": 226,
            "munmap": 215,
            "brk": 214,
            "rt_sigreturn": 139,
            "sched_yield": 124,
            "mremap": 216,
            "madvise": 233,
            "exit": 93,
            "gettimeofday": 169,
            "futex": 98,
            "restart_syscall": 128,
            "clock_gettime": 113,
            "exit_group": 94,
            "getrandom": 278,
        },
    ),
}
"""``platform.machine()`` -> its table."""

_LOAD, _RETURN = 0x20, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_RET|BPF_K
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45  # BPF_JMP|BPF_K with BPF_JEQ, BPF_JGE, BPF_JSET
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _ARCH, _FIRST, _THIRD = 0, 4, 16, 32  # offsets in struct seccomp_data; arguments: low words
_X32 = 0x40000000  # x86_64 calls with this bit are another ABI
_PROT_EXEC = 4


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def filter_program(machine: str, socket_fd: int) -> bytes:
    """The BPF program, ``struct sock_filter[]``. Raises KeyError for an architecture without table."""
    architecture = ARCHITECTURES[machine]
    allow, kill = _op(_RETURN, _ALLOW), _op(_RETURN, _KILL)
    parts = [
        _op(_LOAD, _ARCH),
        *(_op(_EQUAL, architecture.audit, 1, 0), kill),
        _op(_LOAD, _NUMBER),
        *(_op(_AT_LEAST, _X32, 0, 1), kill),
    ]
    for name, number in architecture.numbers.items():
        if name in ("read", "write"):
            inner = [_op(_LOAD, _FIRST), _op(_EQUAL, socket_fd, 0, 1), allow, kill]
        elif name in ("mmap", "mprotect"):
            inner = [_op(_LOAD, _THIRD), _op(_ANY_BIT, _PROT_EXEC, 0, 1), kill, allow]
        else:
            inner = [allow]
        parts += [_op(_EQUAL, number, 0, len(inner)), *inner]
    return b"".join([*parts, kill])
