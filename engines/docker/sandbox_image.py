"""The image of sandboxes: one small static program that waits, built here instead of pulled."""

import io
import struct
import tarfile
from dataclasses import dataclass

from docker import APIClient
from docker.errors import ImageNotFound

from engines.base import EngineError

REPOSITORY = "bfia-sandbox"
TAG = "1"
NAME = f"{REPOSITORY}:{TAG}"

_LOAD_ADDRESS = 0x400000
_ELF_HEADER_SIZE = 64
_PROGRAM_HEADER_SIZE = 56
_HEADERS_SIZE = _ELF_HEADER_SIZE + _PROGRAM_HEADER_SIZE
_PAGE = 0x10000  # alignment of the segment


@dataclass(frozen=True)
class _Program:
    """A program for one architecture."""

    machine: int  # the architecture's number in ELF files
    code: bytes


# Programs that wait in an endless loop, by the daemon's architecture
_PROGRAMS = {
    "amd64": _Program(62, bytes.fromhex("b822000000 0f05 ebf7")),  # calls pause()
    "arm64": _Program(  # calls ppoll()
        183,
        bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"),
    ),
}


def ensure_image(api: APIClient) -> str:
    """Return the name of the image; create it if it is missing.

    Raises `EngineError` for an unknown architecture, APIError.
    """
    try:
        api.inspect_image(NAME)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        architecture = api.version()["Arch"]
        if architecture not in _PROGRAMS:
            raise EngineError(
                f"sandboxes are not available for the architecture {architecture}"
            ) from None
        api.import_image_from_data(
            archive(architecture),
            repository=REPOSITORY,
            tag=TAG,
            changes=['ENTRYPOINT ["/wait"]'],
        )
    return NAME


def archive(architecture: str) -> bytes:
    """Return the files of the image as a tar archive: the program ``/wait``."""
    content = _elf(_PROGRAMS[architecture])
    file = tarfile.TarInfo("wait")
    file.mode = 0o755
    file.size = len(content)
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as files:
            files.addfile(file, io.BytesIO(content))
        return buffer.getvalue()


def _elf(program: _Program) -> bytes:
    """Return a static 64-bit executable of one segment."""
    size = _HEADERS_SIZE + len(program.code)
    identification = b"\x7fELF\x02\x01\x01" + bytes(9)
    elf_header = struct.pack(
        "<HHIQQQIHHHHHH",
        2,  # an executable
        program.machine,
        1,  # version
        _LOAD_ADDRESS + _HEADERS_SIZE,  # entry point
        _ELF_HEADER_SIZE,  # offset of the program header
        0,  # no section headers
        0,  # flags
        _ELF_HEADER_SIZE,  # size of this header
        _PROGRAM_HEADER_SIZE,  # size of a program header
        1,  # number of program headers
        # There are no section headers, so their size, their number and an index are 0.
        0,
        0,
        0,
    )
    program_header = struct.pack(
        "<IIQQQQQQ",
        1,  # a loadable segment
        5,  # readable and executable
        0,  # offset in the file
        _LOAD_ADDRESS,  # virtual address
        _LOAD_ADDRESS,  # physical address, which Linux ignores
        size,  # in the file
        size,  # in memory
        _PAGE,
    )
    return identification + elf_header + program_header + program.code
