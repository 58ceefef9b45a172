"""Runs in a container: makes system calls that lead out of it, and prints those that were not refused."""

import ctypes
import errno
import mmap
import socket
import struct

AF_ALG, AF_VSOCK = 38, 40
SOCKET, CLONE, UNSHARE, IO_URING_SETUP = 41, 56, 272, 425
NEW_USER_NAMESPACE = 0x10000000
PARAMETERS_OF_A_RING = ctypes.create_string_buffer(120)

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def system_call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    return -ctypes.get_errno() if result < 0 else result


def socket_call_of_32_bits(family):
    """Make a socket as old 32-bit programs do: the arguments are in memory, out of a profile's sight."""
    page = mmap.mmap(
        -1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7
    )  # below 4 GiB
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[2048:2060] = struct.pack("<III", family, socket.SOCK_STREAM, 0)
    code = b"\x53\xb8" + struct.pack("<I", 102) + b"\xbb" + struct.pack("<I", 1)
    code += b"\xb9" + struct.pack("<I", address + 2048) + b"\xcd\x80\x5b\xc3"
    page[: len(code)] = code
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


CALLS = {
    "AF_VSOCK": lambda: system_call(SOCKET, AF_VSOCK, socket.SOCK_STREAM, 0),
    "AF_VSOCK, in the lower half": lambda: system_call(
        SOCKET, 1 << 32 | AF_VSOCK, socket.SOCK_STREAM, 0
    ),
    "AF_VSOCK, by 32 bits": lambda: socket_call_of_32_bits(AF_VSOCK),
    "AF_ALG": lambda: system_call(SOCKET, AF_ALG, socket.SOCK_SEQPACKET, 0),
    "io_uring": lambda: system_call(IO_URING_SETUP, 4, ctypes.addressof(PARAMETERS_OF_A_RING)),
    "a namespace": lambda: system_call(UNSHARE, NEW_USER_NAMESPACE),
    "a process in a namespace": lambda: system_call(CLONE, NEW_USER_NAMESPACE | 17, 0, 0, 0, 0),
}
for name, call in CALLS.items():
    result = call()
    if result not in (-errno.EPERM, -errno.ENOSYS):
        print(name, result)
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family).close()
socket.socketpair()[0].close()
print("done")
