"""Checks that an image has the executable that a container is to start, and what a script needs besides itself.

Without the check, the kernel reports that the script itself is missing.
"""

import json
import posixpath
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import PurePosixPath

from docker import APIClient

from engines.base import CommandNotFound
from engines.docker.images import Image

_DIRECTORY = 1 << 31
_STAT = "X-Docker-Container-Path-Stat"
_TAR_BLOCK, _TAR_KIND = 512, 156
HEAD = 256
"""bytes of a file that Linux reads for its first line"""


class Executables:
    """Checks containers for their executables before they start."""

    def __init__(self, client: Callable[[], APIClient]) -> None:
        self._client = client
        self._known: set[tuple[str, str, tuple[str, ...]]] = set()

    def check(
        self,
        container: str,
        image: Image,
        command: Sequence[str] | None,
        environment: Mapping[str, str],
        mounted: Sequence[str],
    ) -> None:
        """Raise `CommandNotFound` if the container, which has not started, lacks its executable.

        A script also needs the program in its first line, and what ``env`` is to start. The daemon itself does not
        notice, as it starts its own init process. The result is remembered: an image's content never changes.
        """
        line = (*image.entrypoint, *(image.command if command is None else command))
        if not line or not line[0]:
            raise CommandNotFound("the image has no command")
        first = line[0]
        search = tuple(folder for folder in environment.get("PATH", image.path).split(":") if folder)
        if "/" in first:
            places = [posixpath.join(image.folder, first)]
        else:
            places = [posixpath.join(folder, first) for folder in search]
        for place in places:
            if (image.id, place, line) in self._known or _below(place, mounted):
                return
            executable = self._is_executable(container, place)
            if executable:
                self._check_interpreter(container, place, line, image, search, mounted)
                self._known.add((image.id, place, line))
            if executable or executable is None:
                return
        raise CommandNotFound(f"the image has no executable {first}")

    def _check_interpreter(
        self,
        container: str,
        place: str,
        line: Sequence[str],
        image: Image,
        search: Sequence[str],
        mounted: Sequence[str],
    ) -> None:
        def is_there(path: str) -> bool | None:
            inside = posixpath.join(image.folder, path)
            return None if _below(inside, mounted) else self._is_executable(container, inside)

        check_env(place, line[1:], search, is_there)
        check_script(place, self._head(container, place), search, is_there)

    def _head(self, container: str, path: str) -> bytes:
        """Return the first bytes of a file; of a link those of its target; none where it cannot be read."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        described = api.head(url, params={"path": path}, timeout=api.timeout).headers.get(_STAT)
        target = json.loads(b64decode(described))["linkTarget"] if described else ""
        params, plain = {"path": target or path}, {"Accept-Encoding": "identity"}
        with closing(api.get(url, params=params, headers=plain, stream=True, timeout=api.timeout)) as answer:
            if answer.status_code != 200:
                return b""
            wanted, block = _TAR_BLOCK + HEAD, b""
            while len(block) < wanted and (piece := answer.raw.read(wanted - len(block))):
                block += piece
        return block[_TAR_BLOCK:] if block[_TAR_KIND : _TAR_KIND + 1] in (b"0", b"\0") else b""

    def _is_executable(self, container: str, path: str) -> bool | None:
        """Tell what the daemon says; None if it cannot look: then the start itself will fail and say why."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        answer = api.head(url, params={"path": path}, timeout=api.timeout)
        described = answer.headers.get(_STAT)
        if described is None:
            return False if answer.status_code == 404 else None
        stat = json.loads(b64decode(described))
        return bool(stat["linkTarget"]) or (bool(stat["mode"] & 0o111) and not stat["mode"] & _DIRECTORY)


def check_script(
    script: str, head: bytes, search: Sequence[str], is_executable: Callable[[str], bool | None]
) -> None:
    """Raise `CommandNotFound` if the program that the first line of a file asks for is not there.

    ``search``: the folders of PATH. ``is_executable`` is None where it cannot be told: then nothing is raised.
    """
    if not head.startswith(b"#!"):
        return
    line = head[2:HEAD].split(b"\n")[0].decode("utf-8", "replace")
    program, _, rest = line.strip(" \t").partition(" ")
    wrong = f"the image's {script} begins with #!{line.strip()}, and there is no executable"
    if line.endswith("\r"):
        raise CommandNotFound(
            f"the first line of the image's {script} ends like a Windows file's (CR LF), so its interpreter "
            f"{program.strip()!r} is not found: save the file with Unix line ends"
        )
    if not program:
        return
    if is_executable(program) is False:
        raise CommandNotFound(f"{wrong} {program} in it")
    check_env(program, rest.split(), search, is_executable, wrong)


def check_env(
    program: str,
    words: Sequence[str],
    search: Sequence[str],
    is_executable: Callable[[str], bool | None],
    wrong: str = "",
) -> None:
    """Raise `CommandNotFound` if ``env`` is to start a program that is not on the search path."""
    if posixpath.basename(program) != "env":
        return
    wanted = _started_by_env(words)
    if not wanted:
        return
    places = [wanted] if "/" in wanted else [posixpath.join(folder, wanted) for folder in search]
    if all(is_executable(place) is False for place in places):
        where = "in it" if "/" in wanted else f"on its PATH ({':'.join(search)})"
        raise CommandNotFound(f"{wrong or 'the image starts env, and there is no executable'} {wanted} {where}")


def _started_by_env(words: Sequence[str]) -> str:
    """Return the program among the words for ``env``; empty where an option makes that unclear."""
    left = [word for word in words if word != "-S" and ("=" not in word or word.startswith("-"))]
    return left[0] if left and not left[0].startswith("-") else ""


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
