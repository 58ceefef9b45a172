"""What the engine has to know of images before it makes a container from one."""

import json
import posixpath
import re
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath

from docker import APIClient
from docker.errors import APIError, NotFound

from engines.base import HOW_TO_HAVE_IT, CommandNotFound, ImageNotFound
from engines.docker.errors import translated, words
from engines.docker.images import Puller, PullRules
from engines.docker.interpreters import HEAD, check_env, check_script

_AGE = 1.0
"""seconds for which what is known of an image is taken as true"""
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = ("", "0", "root")
_DIRECTORY = 1 << 31
_NAME = "it reads registry.example.com/vendor/image:1.0.0, in lower case"
_STAT = "X-Docker-Container-Path-Stat"
_TAR_BLOCK, _TAR_KIND = 512, 156
_NO_NAME = re.compile("no such image|invalid reference format|repository name must", re.IGNORECASE)


@dataclass(frozen=True)
class Image:
    """An image as the daemon has it just now."""

    id: str
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    path: str
    folder: str
    labels: Mapping[str, str]
    repo_digests: tuple[str, ...] = ()

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's own user is root, by name, by number, or because it names none."""
        return self.user.partition(":")[0] in _ROOT


class Images:
    """The daemon's images. Each is looked up once a second at most."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules = PullRules()) -> None:
        self._client = client
        self._puller = Puller(client, rules)
        self._known: dict[str, tuple[float, Image]] = {}
        self._seen: set[tuple[str, str, tuple[str, ...]]] = set()

    def find(self, name: str) -> Image:
        """Return an image that is here. Raises `ImageNotFound`: nothing is fetched."""
        at, image = self._known.get(name, (0.0, None))
        now = time.monotonic()
        if image is not None and now - at < _AGE:
            return image
        if not name:
            raise ImageNotFound("the image has no name", "name one in the registration: metadata.image")
        with translated():
            try:
                found = self._client().inspect_image(name)  # type: ignore[no-untyped-call]
            except NotFound as error:
                raise ImageNotFound(f"the container engine has no image {name}", HOW_TO_HAVE_IT) from error
            except APIError as error:
                if not _NO_NAME.search(words(error)):
                    raise
                raise ImageNotFound(f"{name[:200]!r} is no name of an image", _NAME) from error
        config = found.get("Config") or {}
        variables = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
        image = Image(
            id=found["Id"],
            user=config.get("User") or "",
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
            path=variables.get("PATH") or _SEARCH_PATH,
            folder=config.get("WorkingDir") or "/",
            labels=dict(config.get("Labels") or {}),
            repo_digests=tuple(found.get("RepoDigests") or ()),
        )
        self._known[name] = now, image
        return image

    def ensure(self, name: str, told: Callable[[str], None]) -> Image:
        """Return the image; fetch it if it is not here and that is allowed."""
        try:
            return self.find(name)
        except ImageNotFound:
            if not name or not self._puller.allowed:
                raise
        with self._puller.busy(name):
            try:
                return self.find(name)  # another has just fetched it
            except ImageNotFound:
                self._puller.pull(name, told)
            return self.find(name)

    def offered(self, name: str, seconds: float) -> str:
        """Return the digest that the image's registry names, which is asked by the daemon as for fetching."""
        if not name or not self._puller.allowed:
            raise ImageNotFound(f"the container engine has no image {name}", HOW_TO_HAVE_IT)
        return self._puller.offered(name, seconds)

    def forget(self, name: str) -> None:
        """Look again at the next use."""
        self._known.pop(name, None)

    def check_executable(
        self,
        container: str,
        image: Image,
        command: Sequence[str] | None,
        environment: Mapping[str, str],
        mounted: Sequence[str],
    ) -> None:
        """Raise `CommandNotFound` if the container, which has not started, has no such executable.

        Of a script the program in its first line has to be there as well, and what ``env`` is to start.

        The daemon itself does not notice, because what it starts is its own small init process. The answer is
        kept, as an image's content never changes.
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
            if (image.id, place, line) in self._seen or _below(place, mounted):
                return
            executable = self._is_executable(container, place)
            if executable:
                self._check_interpreter(container, place, line, image, search, mounted)
                self._seen.add((image.id, place, line))
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


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
