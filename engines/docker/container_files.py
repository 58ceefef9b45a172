"""Checks and prepares files in a container that is created but not started.

They are its executable, its /etc/passwd, and the directories that the run must be able to write to.
"""

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
from engines.records import list_in

# The most paths that are read in search of the users file: /etc/passwd, then the targets of links
MAX_PATHS = 9
MAX_USERS_FILE = 1 << 20  # bytes of the archive with /etc/passwd

_USERS_FILE = "/etc/passwd"
# The PATH of containers that set none
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STAT_HEADER = "X-Docker-Container-Path-Stat"
_NOT_FOUND = 404  # HTTP status

# A uid that is certainly not root's: a number above 0 of at most nine digits. A daemon reads a text
# that is not a number as 0, and only the lowest 32 bits of a larger number, which may be 0.
_OTHER_UID = re.compile("0*[1-9][0-9]{0,8}")

# Bits of a mode
_IS_DIRECTORY = 1 << 31  # as the daemon writes it
_EXECUTABLE = 0o111
_OPEN_TO_ALL = 0o777
_OPEN_TO_OTHERS = 0o003  # write and enter


@dataclass(frozen=True)
class _PathStatus:
    """The daemon's description of a path."""

    mode: int  # in the notation of the programming language Go
    link_target: str  # empty for anything but a link

    @property
    def is_plain_directory(self) -> bool:
        """True for a directory, False for a link to one."""
        return bool(self.mode & _IS_DIRECTORY) and not self.link_target

    @property
    def may_be_executable(self) -> bool:
        """True for executable files, and for links, which the daemon does not follow here."""
        if self.link_target:
            return True
        is_directory = bool(self.mode & _IS_DIRECTORY)
        return not is_directory and bool(self.mode & _EXECUTABLE)


class ContainerFiles:
    """Checks and prepares containers before their start.

    Results are remembered by an image's digest, as its content never changes.
    """

    def __init__(self, client: Callable[[], APIClient]) -> None:
        """``client`` returns the daemon's client, and connects it if necessary."""
        self._client = client
        self._executables: set[tuple[str, str]] = set()  # an image's digest and a path in the image
        self._checked_users: set[str] = set()  # digests of images
        # Directories to which not every user may write, with their new modes, by the digest of the
        # image
        self._closed_directories: dict[str, list[tarfile.TarInfo]] = {}

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

        The daemon itself would not notice, as it starts its own init process. ``command``: of the
        run; None: the image's. ``mounted``: paths of the mounts, below which any file may exist.
        """
        executable = _executable_of(image, command)
        for path in _candidate_paths(executable, image, environment):
            key = (image.digest, path)
            is_accepted = _is_below(path, mounted) or key in self._executables
            if is_accepted:
                return
            if self._is_executable(container, path):
                self._executables.add(key)
                return
        raise CommandNotFound(f"the image has no executable {executable}")

    def _is_executable(self, container: str, path: str) -> bool:
        """Whether a path is executable.

        True also if the daemon cannot look: then the start itself will fail.
        """
        response = self._head(container, path)
        described = response.headers.get(_STAT_HEADER)
        if described is None:
            return bool(response.status_code != _NOT_FOUND)
        return _parse_status(described).may_be_executable

    # ------------------------------------------------------------ the user

    def check_user(self, container: str, image: Image) -> None:
        """Raise `CreateFailed` if the image's user is root under another name in a container.

        Does nothing for a user whose uid is known, and for an image that was checked before.
        """
        is_checked = image.digest in self._checked_users
        # An image that runs as root gets another user when its container is created.
        has_known_uid = image.runs_as_root or _OTHER_UID.fullmatch(image.user)
        if is_checked or has_known_uid:
            return
        try:
            lines = self._users_file(container)
        except NotFound:
            return  # without the file, the start itself will fail
        if lines is None:
            lines = [image.user]  # read below as a user without a uid, and so refused
        _check_uids(image.user, lines)
        self._checked_users.add(image.digest)

    def _users_file(self, container: str) -> list[str] | None:
        """Return the lines of /etc/passwd.

        None if /etc/passwd is not a regular file, or if `MAX_PATHS` paths in a row are links.
        Raises `CreateFailed` if the file is too large, and `NotFound` if it does not exist.
        """
        path = _USERS_FILE
        for _ in range(MAX_PATHS):
            chunks, status = self._client().get_archive(container, path)
            path = status["linkTarget"]  # empty unless the path is a link
            if not path:
                break
        # If the last path is still a link, its archive is read, too, although it is not used: the
        # daemon waits until its response has been read.
        archive = _read_limited(chunks)
        is_link = bool(path)
        if is_link:
            return None
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            file = files.extractfile(files.getmembers()[0])
            if file is None:
                return None
            return file.read().decode(errors="replace").split("\n")

    # ------------------------------------------------------------ directories

    def open_directories(
        self,
        container: str,
        image: Image,
        mounted: Sequence[str],
    ) -> None:
        """Let a container write to its working directory and to ``/tmp``.

        Only the container's own layer changes: a directory below one of the paths ``mounted``, or
        behind a link, stays as it is. Raises APIError.
        """
        if image.digest not in self._closed_directories:
            self._closed_directories[image.digest] = self._find_closed(container, image)
        directories = []
        for directory in self._closed_directories[image.digest]:
            if not _is_below(f"/{directory.name}", mounted):
                directories.append(directory)
        if directories:
            self._client().put_archive(container, "/", _archive_of(directories))

    def _find_closed(
        self,
        container: str,
        image: Image,
    ) -> list[tarfile.TarInfo]:
        """Return the directories to open, with their new modes. Raises APIError."""
        closed = []
        paths = dict.fromkeys((image.working_directory(TEMPORARY), TEMPORARY))  # without duplicates
        for path in paths:
            directory = self._directory(container, PurePosixPath(path))
            if directory is None:
                continue
            is_open = directory.mode & _OPEN_TO_OTHERS == _OPEN_TO_OTHERS
            if not is_open:
                directory.mode |= _OPEN_TO_ALL
                closed.append(directory)
        return closed

    def _directory(self, container: str, path: PurePosixPath) -> tarfile.TarInfo | None:
        """Return a directory of a container; for a missing one, an entry with mode 0 to create it.

        None for another kind of file, and for a path through a link.
        """
        status = None
        ancestors = reversed(path.parents[:-1])  # from the top, without the root
        for directory_path in (*ancestors, path):
            status = self._status(container, str(directory_path))
            if status is not None and not status.is_plain_directory:
                return None
        directory = tarfile.TarInfo(str(path).strip("/"))
        directory.type = tarfile.DIRTYPE
        directory.mode = 0
        exists = status is not None  # the last status is that of the path itself
        if exists:
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
            headers={"Accept-Encoding": "identity"},  # `raw`, below, is not decompressed
            stream=True,
            timeout=api.timeout,
        )
        with closing(response):
            check_response(response)
            with tarfile.open(fileobj=response.raw, mode="r|") as files:
                return next(iter(files))

    def _status(self, container: str, path: str) -> _PathStatus | None:
        """Return the daemon's description of a path.

        None if the path is missing or the daemon cannot look.
        """
        described = self._head(container, path).headers.get(_STAT_HEADER)
        if described is None:
            return None
        return _parse_status(described)

    def _head(self, container: str, path: str) -> Any:
        """Ask the daemon for the description of a path, which is in a header of the response."""
        api = self._client()
        return api.head(
            _archive_url(api, container),
            params={"path": path},
            timeout=api.timeout,
        )


def _archive_url(api: APIClient, container: str) -> str:
    """Return the URL at which the daemon describes, reads and writes files of a container."""
    return url_of(api, f"containers/{container}/archive")


def _archive_of(directories: Sequence[tarfile.TarInfo]) -> bytes:
    """Return a tar archive with these directories and no files."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as files:
            for directory in directories:
                files.addfile(directory)
        return buffer.getvalue()


def _parse_status(header: str) -> _PathStatus:
    """Return the content of the daemon's header `_STAT_HEADER`."""
    status = json.loads(b64decode(header))
    return _PathStatus(int(status["mode"]), str(status["linkTarget"]))


def _is_below(path: str, folders: Sequence[str]) -> bool:
    """Whether a path is one of these folders, or below one."""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _executable_of(image: Image, command: Sequence[str] | None) -> str:
    """Return the first word of a container's command line.

    ``command``: the run's; None: the image's. Raises `CommandNotFound` if the command line or its
    first word is empty.
    """
    arguments = command
    if arguments is None:
        arguments = list_in(image.config, "Cmd")
    entry_point = list_in(image.config, "Entrypoint")
    command_line = [*entry_point, *arguments]
    executable = next(iter(command_line), "")
    if not executable:
        raise CommandNotFound("the image has no command")
    return str(executable)


def _candidate_paths(
    executable: str, image: Image, environment: Mapping[str, str]
) -> Iterator[str]:
    """Yield the paths where a container looks for an executable, in the order of the search.

    ``environment``: the run's; its ``PATH`` replaces the image's.
    """
    if "/" in executable:
        yield posixpath.join(image.working_directory(TEMPORARY), executable)
        return
    variables = {"PATH": _DEFAULT_PATH, **image.environment(), **environment}
    for folder in variables["PATH"].split(":"):
        if folder:
            yield posixpath.join(folder, executable)


def _check_uids(user: str, lines: Sequence[str]) -> None:
    """Raise `CreateFailed` unless every line for a user gives a plain uid other than root's.

    ``lines``: a users file's, read as daemons do: spaces around a line or a name do not count.
    """
    for line in lines:
        name, *fields = line.strip().split(":")
        _, uid = [*fields, "", ""][:2]  # the password and the uid; empty if the line has none
        is_of_user = name.strip() == user.strip()
        if is_of_user and not _OTHER_UID.fullmatch(uid):
            raise CreateFailed(
                f"the image's user {user} is root by its {_USERS_FILE}: name another, or none"
            )


def _read_limited(chunks: Iterator[bytes]) -> bytes:
    """Return the archive with the users file. Raises `CreateFailed` if it is too large."""
    archive = b""
    for chunk in chunks:
        archive += chunk
        if len(archive) > MAX_USERS_FILE:
            raise CreateFailed(f"{_USERS_FILE} of the image has more than {MAX_USERS_FILE} bytes")
    return archive
