"""What the engine has to know of images before it makes a container from one."""

import json
import posixpath
import re
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from docker import APIClient
from docker.errors import APIError, NotFound

from engines.base import CommandNotFound, ImageNotFound
from engines.containerd.errors import translated, words
from engines.containerd.pulling import Puller, PullRules

_AGE = 1.0
"""seconds for which what is known of an image is taken as true"""
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = ("", "0", "root")
_DIRECTORY = 1 << 31
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

    @property
    def runs_as_root(self) -> bool:
        return self.user.partition(":")[0] in _ROOT


class Images:
    """The daemon's images. Each is looked up once a second at most."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules = PullRules()) -> None:
        self._client = client
        self._puller = Puller(client, rules)
        self._known: dict[str, tuple[float, Image]] = {}
        self._seen: set[tuple[str, str]] = set()

    def find(self, name: str) -> Image:
        """Raises `ImageNotFound`: nothing is fetched."""
        at, image = self._known.get(name, (0.0, None))
        now = time.monotonic()
        if image is not None and now - at < _AGE:
            return image
        if not name:
            raise ImageNotFound("the image has no name")
        with translated():
            try:
                found = self._client().inspect_image(name)  # type: ignore[no-untyped-call]
            except NotFound as error:
                raise ImageNotFound(f"the container engine has no image {name}") from error
            except APIError as error:
                if not _NO_NAME.search(words(error)):
                    raise
                raise ImageNotFound(f"{name[:200]!r} is no name of an image") from error
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

        The daemon itself does not notice, because what it starts is its own small init process. The answer is
        kept, as an image's content never changes.
        """
        line = (*image.entrypoint, *(image.command if command is None else command))
        if not line or not line[0]:
            raise CommandNotFound("the image has no command")
        first = line[0]
        if "/" in first:
            places = [posixpath.join(image.folder, first)]
        else:
            search = environment.get("PATH", image.path)
            places = [posixpath.join(folder, first) for folder in search.split(":") if folder]
        for place in places:
            if (image.id, place) in self._seen or any(
                PurePosixPath(place).is_relative_to(target) for target in mounted
            ):
                return
            executable = self._is_executable(container, place)
            if executable:
                self._seen.add((image.id, place))
            if executable or executable is None:
                return
        raise CommandNotFound(f"the image has no executable {first}")

    def _is_executable(self, container: str, path: str) -> bool | None:
        """Tell what the daemon says; None if it cannot look: then the start itself will fail and say why."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        answer = api.head(url, params={"path": path}, timeout=api.timeout)
        described = answer.headers.get("X-Docker-Container-Path-Stat")
        if described is None:
            return False if answer.status_code == 404 else None
        stat = json.loads(b64decode(described))
        return bool(stat["linkTarget"]) or (bool(stat["mode"] & 0o111) and not stat["mode"] & _DIRECTORY)
