"""Files of containers that are created and not started: executables, users, and directories open to the run."""

import io
import json
import posixpath
import re
import tarfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from docker import APIClient
from docker.errors import NotFound

from engines.base import TEMPORARY, CommandNotFound, CreateFailed
from engines.docker.client import check_response, url_of
from engines.image import Image

MAX_LINKS = 9  # followed from /etc/passwd
MAX_USERS_FILE = 1 << 20  # bytes

_USERS_FILE = "/etc/passwd"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STAT_HEADER = "X-Docker-Container-Path-Stat"

# A uid other than root's: a daemon reads other texts as 0, and only 32 bits of larger numbers.
_OTHER_UID = re.compile("0*[1-9][0-9]{0,8}")

# Bits of a mode
_IS_DIRECTORY = 1 << 31
_EXECUTABLE = 0o111
_OPEN_TO_ALL = 0o777
_OPEN_TO_OTHERS = 0o003  # write and enter


@dataclass(frozen=True)
class _PathStatus:
    """The daemon's description of a path."""

    mode: int
    link_target: str

    @property
    def is_plain_directory(self) -> bool:
        return bool(self.mode & _IS_DIRECTORY) and not self.link_target

    @property
    def may_be_executable(self) -> bool:
        """True also for links, which the daemon does not follow here."""
        is_file = not self.mode & _IS_DIRECTORY
        return bool(self.link_target) or (is_file and bool(self.mode & _EXECUTABLE))


class ContainerFiles:
    """Checks and prepares containers before their start.

    Results are remembered by an image's digest, as its content never changes.
    """

    def __init__(self, client: Callable[[], APIClient]) -> None:
        self._client = client
        self._executables: set[tuple[str, str]] = set()  # digest and path
        self._checked_users: set[str] = set()  # digests
        self._closed_directories: dict[str, list[tarfile.TarInfo]] = {}  # by digest

    # ------------------------------------------------------------ the executable

    def check_executable(
        self,
        container: str,
        image: Image,
        command: Sequence[str] | None,
        environment: Mapping[str, str],
        mounted: Sequence[str],
    ) -> None:
        """Raise `CommandNotFound` if a container lacks its executable.

        The daemon itself would not notice, as it starts its own init process. ``mounted``: paths of the mounts,
        below which any file may exist.
        """
        executable = _executable_of(image, command)
        for path in _candidate_paths(executable, image, environment):
            key = (image.digest, path)
            if _is_below(path, mounted) or key in self._executables:
                return
            if self._is_executable(container, path):
                self._executables.add(key)
                return
        raise CommandNotFound(f"the image has no executable {executable}")

    def _is_executable(self, container: str, path: str) -> bool:
        """Return whether a path is executable; True also if the daemon cannot look, as then the start will fail."""
        response = self._head(container, path)
        described = response.headers.get(_STAT_HEADER)
        if described is None:
            return bool(response.status_code != 404)
        return _parse_status(described).may_be_executable

    # ------------------------------------------------------------ the user

    def check_user(self, container: str, image: Image) -> None:
        """Raise `CreateFailed` if the image's user is root under another name in a container."""
        user = image.user
        if image.runs_as_root or _OTHER_UID.fullmatch(user) or image.digest in self._checked_users:
            return
        try:
            lines = self._users_file(container)
        except NotFound:
            return  # the start itself will fail
        if lines is None:
            lines = [user]  # behind too many links: reads as a user without a uid
        for uid in _uids(user, lines):
            if not _OTHER_UID.fullmatch(uid):
                raise CreateFailed(
                    f"the image's user {user} is root by its {_USERS_FILE}: name another, or none"
                )
        self._checked_users.add(image.digest)

    def _users_file(self, container: str) -> list[str] | None:
        """Return the lines of /etc/passwd; None if it is another kind of file, or behind too many links.

        Raises `CreateFailed` if it is too large, NotFound.
        """
        path = _USERS_FILE
        for _ in range(MAX_LINKS):
            chunks, status = self._client().get_archive(container, path)
            path = status["linkTarget"]
            if not path:
                break
        archive = _read_limited(chunks)
        if path:
            return None
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            file = files.extractfile(files.getmembers()[0])
            if file is None:
                return None
            return file.read().decode(errors="replace").split("\n")

    # ------------------------------------------------------------ directories

    def open_directories(self, container: str, image: Image, mounted: Sequence[str]) -> None:
        """Let a container write to its working directory and to ``/tmp``.

        Only the container's own layer changes: a directory in a mount, or behind a link, stays as it is.
        Raises APIError.
        """
        if image.digest not in self._closed_directories:
            self._closed_directories[image.digest] = self._find_closed(container, image)
        directories = []
        for directory in self._closed_directories[image.digest]:
            if not _is_below(f"/{directory.name}", mounted):
                directories.append(directory)
        if not directories:
            return
        with io.BytesIO() as buffer:
            with tarfile.open(fileobj=buffer, mode="w") as files:
                for directory in directories:
                    files.addfile(directory)
            self._client().put_archive(container, "/", buffer.getvalue())

    def _find_closed(self, container: str, image: Image) -> list[tarfile.TarInfo]:
        """Return the directories to open, with their new modes."""
        closed = []
        for path in dict.fromkeys((image.working_directory(TEMPORARY), TEMPORARY)):
            directory = self._directory(container, PurePosixPath(path))
            if directory is not None and directory.mode & _OPEN_TO_OTHERS != _OPEN_TO_OTHERS:
                directory.mode |= _OPEN_TO_ALL
                closed.append(directory)
        return closed

    def _directory(self, container: str, path: PurePosixPath) -> tarfile.TarInfo | None:
        """Return a directory of a container, a new one if it is missing.

        None for another kind of file, and for a path through a link.
        """
        status = None
        for ancestor in (*reversed(path.parents[:-1]), path):
            status = self._status(container, str(ancestor))
            if status is not None and not status.is_plain_directory:
                return None
        directory = tarfile.TarInfo(str(path).strip("/"))
        directory.type = tarfile.DIRTYPE
        directory.mode = 0
        if status is not None:
            existing = self._header(container, str(path))
            directory.mode = existing.mode
            directory.mtime = existing.mtime
            directory.uid = existing.uid
            directory.gid = existing.gid
        return directory

    def _header(self, container: str, path: str) -> tarfile.TarInfo:
        """Return the attributes of a path in a container. Raises APIError."""
        api = self._client()
        response = api.get(
            _archive_url(api, container),
            params={"path": path},
            headers={"Accept-Encoding": "identity"},
            stream=True,
            timeout=api.timeout,
        )
        with closing(response):
            check_response(response)
            with tarfile.open(fileobj=response.raw, mode="r|") as files:
                return next(iter(files))

    def _status(self, container: str, path: str) -> _PathStatus | None:
        """Return the daemon's description of a path; None if it is missing, or the daemon cannot look."""
        described = self._head(container, path).headers.get(_STAT_HEADER)
        if described is None:
            return None
        return _parse_status(described)

    def _head(self, container: str, path: str) -> Any:
        api = self._client()
        return api.head(_archive_url(api, container), params={"path": path}, timeout=api.timeout)


def _archive_url(api: APIClient, container: str) -> str:
    return url_of(api, f"containers/{container}/archive")


def _parse_status(header: str) -> _PathStatus:
    status = json.loads(b64decode(header))
    return _PathStatus(int(status["mode"]), str(status["linkTarget"]))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _executable_of(image: Image, command: Sequence[str] | None) -> str:
    """Return the first word of a container's command line. Raises `CommandNotFound` without one."""
    if command is None:
        command = image.config.get("Cmd") or ()
    command_line = [*(image.config.get("Entrypoint") or ()), *command]
    if not command_line or not command_line[0]:
        raise CommandNotFound("the image has no command")
    return str(command_line[0])


def _candidate_paths(
    executable: str, image: Image, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield the paths where a container looks for an executable."""
    if "/" in executable:
        yield posixpath.join(image.working_directory(TEMPORARY), executable)
        return
    search_path = _DEFAULT_PATH
    for entry in image.config.get("Env") or ():
        name, _, value = entry.partition("=")
        if name == "PATH":
            search_path = value
    search_path = environment.get("PATH", search_path)
    for folder in search_path.split(":"):
        if folder:
            yield posixpath.join(folder, executable)


def _uids(user: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the uids of a user as daemons read them: surrounding spaces do not count, a missing uid is empty."""
    for line in lines:
        fields = line.strip().split(":")
        if fields[0].strip() == user.strip():
            yield fields[2] if len(fields) > 2 else ""


def _read_limited(chunks: Iterator[bytes]) -> bytes:
    """Return the users file's archive. Raises `CreateFailed` if it is too large."""
    archive = b""
    for chunk in chunks:
        archive += chunk
        if len(archive) > MAX_USERS_FILE:
            raise CreateFailed(f"{_USERS_FILE} of the image has more than {MAX_USERS_FILE} bytes")
    return archive
