"""The files of a layer, in memory: the same input gives the same bytes on every machine."""

import io
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from zipfile import ZipFile

from tools.release.artefacts import ReleaseError

MERGED = ("bin", "sbin", "lib", "lib64")  # links to the folders of the same names in /usr
# Parts of wheels that are not for site-packages.
SKIPPED_DATA = ("scripts", "headers", "data")


@dataclass(frozen=True)
class Entry:
    """One file, folder or link; ``kind`` is that of tarfile, ``owner`` a user and group id."""

    kind: bytes
    mode: int
    content: bytes = b""
    target: str = ""
    owner: int = 0


class Tree:
    """Files by their paths, without a slash at the beginning."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def add_file(
        self,
        path: str,
        content: bytes,
        mode: int = 0o644,
    ) -> None:
        """Add or replace a file, and the folders above it."""
        self._add(path, Entry(tarfile.REGTYPE, mode, content))

    def add_folder(
        self,
        path: str,
        mode: int = 0o755,
        owner: int = 0,
    ) -> None:
        """Add or replace a folder, and the folders above it."""
        self._add(path, Entry(tarfile.DIRTYPE, mode, owner=owner))

    def add_link(self, path: str, target: str) -> None:
        """Add or replace a symbolic link, and the folders above it."""
        self._add(path, Entry(tarfile.SYMTYPE, 0o777, target=target))

    def _add(self, path: str, entry: Entry) -> None:
        for parent in PurePosixPath(path).parents:
            if parent.name and str(parent) not in self.entries:
                self.entries[str(parent)] = Entry(tarfile.DIRTYPE, 0o755)
        self.entries[path] = entry

    # ---------------------------------------------------------- sources

    def add_debian_package(
        self,
        file: Path,
        is_kept: Callable[[str], bool],
    ) -> None:
        """Add the files of a Debian package for whose paths ``is_kept`` returns true.

        No maintainer script runs. Raises `ReleaseError` for a damaged package.
        """
        process = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(file)],
            capture_output=True,
            check=False,
        )
        if process.returncode != 0:
            raise ReleaseError(f"{file} cannot be read: {process.stderr.decode()}")
        with tarfile.open(fileobj=io.BytesIO(process.stdout)) as archive:
            for member in archive:
                path = merged_path(member.name)
                if path and is_kept(path):
                    self._add_member(archive, member, path)

    def _add_member(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        path: str,
    ) -> None:
        if member.isdir():
            self.add_folder(path, member.mode)
        elif member.issym():
            self.add_link(path, member.linkname)
        elif member.isfile() or member.islnk():
            content = archive.extractfile(member)
            assert content is not None
            self.add_file(path, content.read(), member.mode)
        else:
            raise ReleaseError(f"{member.name} is neither a file nor a folder nor a link")

    def add_wheel(
        self,
        wheel: Path,
        folder: str,
        is_kept: Callable[[str], bool],
    ) -> None:
        """Install a wheel into a folder, without its scripts."""
        with ZipFile(wheel) as archive:
            for info in archive.infolist():
                path = installed_path(info.filename)
                if path and not info.is_dir() and is_kept(path):
                    self.add_file(f"{folder}/{path}", archive.read(info))

    def add_directory(self, source: Path, folder: str) -> None:
        """Add the files of a folder of this machine, except compiled ones."""
        for file in sorted(source.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                path = file.relative_to(source).as_posix()
                is_executable = file.stat().st_mode & stat.S_IXUSR
                mode = 0o755 if is_executable else 0o644
                self.add_file(f"{folder}/{path}", file.read_bytes(), mode)

    # ---------------------------------------------------------- result

    def write(self, stream: IO[bytes], epoch: int) -> None:
        """Write a tar archive in the order of the paths; ``epoch`` is the time of each file."""
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(self.entries):
                entry = self.entries[path]
                info = tarfile.TarInfo(path)
                info.type = entry.kind
                info.mode = entry.mode
                info.linkname = entry.target
                info.size = len(entry.content)
                info.mtime = epoch
                info.uid = info.gid = entry.owner
                archive.addfile(info, io.BytesIO(entry.content))


def merged_path(name: str) -> str:
    """Return the path of a package's file where /bin, /lib … are links into /usr."""
    path = name.removeprefix("./").strip("/")
    first = path.partition("/")[0]
    if first in MERGED:
        return f"usr/{path}"
    return path


def installed_path(name: str) -> str:
    """Return the path of a wheel's file below site-packages; empty if it does not belong there."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return name
    scheme, _, path = rest.partition("/")
    if scheme in SKIPPED_DATA:
        return ""
    return path
