"""Runs in a container: tries system calls that lead out of it, prints each that succeeds.

The numbers are the ones of Linux on x86-64.
"""

import ctypes
import errno
import mmap
import socket
import struct

AF_ALG = 38
AF_VSOCK = 40

SOCKET = 41
CLONE = 56
UNSHARE = 272
IO_URING_SETUP = 425

NEW_USER_NAMESPACE = 0x10000000  # CLONE_NEWUSER
SIGCHLD = 17  # clone() sends it when the child ends
ABOVE_32_BITS = 1 << 32  # the kernel ignores these bits of an int; a filter may not
RING_PARAMETERS = ctypes.create_string_buffer(120)  # an empty struct io_uring_params

# of the 32-bit interface
SOCKETCALL_32 = 102
SYS_SOCKET = 1  # the operation of socketcall() that makes a socket
MAP_32BIT = 0x40
READ_WRITE_EXECUTE = 7

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def system_call(number, *arguments):
    """Make a system call; return its result, or the negative error number."""
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    if result < 0:
        return -ctypes.get_errno()
    return result


def socket_call_of_32_bits(family):
    """Make a socket as old 32-bit programs do: a seccomp filter does not see the arguments.

    They are in memory, below 4 GiB, and the machine code below hands over their address:
    push rbx; mov eax, 102; mov ebx, 1; mov ecx, address; int 0x80; pop rbx; ret.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT
    page = mmap.mmap(
        -1,
        4096,
        flags=flags,
        prot=READ_WRITE_EXECUTE,
    )
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[2048:2060] = struct.pack(
        "<III",
        family,
        socket.SOCK_STREAM,
        0,
    )
    code = b"\x53\xb8" + struct.pack("<I", SOCKETCALL_32)
    code += b"\xbb" + struct.pack("<I", SYS_SOCKET)
    code += b"\xb9" + struct.pack("<I", address + 2048)
    code += b"\xcd\x80\x5b\xc3"
    page[: len(code)] = code
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


STREAM = socket.SOCK_STREAM

# Arguments of `system_call`, by the attack's name.
CALLS = {
    "AF_VSOCK": (SOCKET, AF_VSOCK, STREAM, 0),
    "AF_VSOCK, in the lower half": (SOCKET, ABOVE_32_BITS | AF_VSOCK, STREAM, 0),
    "AF_ALG": (SOCKET, AF_ALG, socket.SOCK_SEQPACKET, 0),
    "io_uring": (IO_URING_SETUP, 4, ctypes.addressof(RING_PARAMETERS)),
    "a namespace": (UNSHARE, NEW_USER_NAMESPACE),
    "a process in a namespace": (CLONE, NEW_USER_NAMESPACE | SIGCHLD, 0, 0, 0, 0),
}


def report_unless_refused(name, result):
    """Print an attack whose result is not a refusal of the seccomp profile."""
    if result not in (-errno.EPERM, -errno.ENOSYS):
        print(name, result)


for name, arguments in CALLS.items():
    report_unless_refused(name, system_call(*arguments))
report_unless_refused("AF_VSOCK, by 32 bits", socket_call_of_32_bits(AF_VSOCK))

# Ordinary sockets still work.
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family).close()
socket.socketpair()[0].close()
print("done")
