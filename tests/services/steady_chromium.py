#!/usr/bin/env python3
"""Chromium, which does not see when a network of the machine changes: ``steady_chromium ARGUMENT…``

Chromium aborts the requests of its pages with ERR_NETWORK_CHANGED when a network of the machine is
made or removed, as the tests of engines do. The kernel tells it by sockets of the family
AF_NETLINK: a filter of system calls (seccomp) refuses these, and Chromium goes on without them.
"""

import ctypes
import os
import platform
import struct
import sys

# Chromium without windows: a third of the whole browser's processor time per page.
PROGRAM = "/usr/bin/chromium-headless-shell"

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

# For each machine, its number in audits and the number of its system call socket().
SOCKET_CALLS = {
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
}

# Instructions of the filter.
LOAD_WORD = 0x20
JUMP_IF_EQUAL = 0x15
RETURN = 0x06

# Offsets in the data of a system call, in bytes.
NUMBER = 0
MACHINE = 4
FIRST_ARGUMENT = 16

AF_NETLINK = 16
EAFNOSUPPORT = 97
ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | EAFNOSUPPORT


class Filter(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (
        ("length", ctypes.c_ushort),
        ("instructions", ctypes.c_char_p),
    )


def instruction(
    code: int,
    value: int,
    *,
    skip_if_equal: int = 0,
    skip_otherwise: int = 0,
) -> bytes:
    """Return an instruction; the numbers say how many instructions a jump passes over."""
    return struct.pack(
        "HBBI",
        code,
        skip_if_equal,
        skip_otherwise,
        value,
    )


def filter_of(machine: str) -> bytes:
    """Return the instructions that refuse sockets of the family AF_NETLINK."""
    audit_number, socket_call = SOCKET_CALLS[machine]
    instructions = (
        instruction(LOAD_WORD, MACHINE),
        instruction(JUMP_IF_EQUAL, audit_number, skip_otherwise=4),
        instruction(LOAD_WORD, NUMBER),
        instruction(JUMP_IF_EQUAL, socket_call, skip_otherwise=2),
        instruction(LOAD_WORD, FIRST_ARGUMENT),
        instruction(JUMP_IF_EQUAL, AF_NETLINK, skip_if_equal=1),
        instruction(RETURN, ALLOW),
        instruction(RETURN, REFUSE),
    )
    return b"".join(instructions)


def refuse_netlink() -> None:
    """Refuse such sockets to this process and to those that it starts.

    Raises:
        OSError: the kernel has not accepted the filter.
    """
    library = ctypes.CDLL(None, use_errno=True)
    instructions = filter_of(platform.machine())
    size = len(instruction(RETURN, ALLOW))
    program = Filter(len(instructions) // size, instructions)
    steps = (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)),
    )
    for option, first, second in steps:
        if library.prctl(option, first, second, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    refuse_netlink()
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
