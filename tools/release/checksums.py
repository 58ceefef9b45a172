"""``SHA256SUMS``, in the form that ``sha256sum --check`` reads."""

import hashlib
import re
from pathlib import Path

NAME = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([^/\s]+)")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Write the checksums of every file in a folder, which has none yet."""
    lines = []
    for path in sorted(folder.iterdir()):
        lines.append(f"{sha256_of(path)}  {path.name}\n")
    (folder / NAME).write_text("".join(lines), encoding="utf-8")


def read_checksums(folder: Path) -> dict[str, str]:
    """Return each file's checksum in hex, by name. Raises `ValueError` and `OSError`."""
    checksums = {}
    for line in (folder / NAME).read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a line of checksums: {line}")
        checksums[match.group(2)] = match.group(1)
    return checksums
