"""Checks the files of a release without a network."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.release import checksums


def problems_of(folder: Path) -> list[str]:
    """Return a line for each problem, which begins with the file's name; none if all is well."""
    try:
        expected = checksums.read_checksums(folder)
    except (OSError, ValueError) as error:
        return [f"{checksums.NAME}: {error}"]
    return [*changed_files(folder, expected), *unlisted_files(folder, expected)]


def changed_files(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each listed file that is missing or has another checksum."""
    for name, checksum in expected.items():
        path = folder / name
        if not path.is_file():
            yield f"{name}: missing"
        elif checksums.sha256_of(path) != checksum:
            yield f"{name}: its SHA-256 is not the one in {checksums.NAME}"


def unlisted_files(folder: Path, expected: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each file that the checksums do not list."""
    for path in sorted(folder.iterdir()):
        if path.name != checksums.NAME and path.name not in expected:
            yield f"{path.name}: not listed in {checksums.NAME}"
