"""The images of a Docker daemon."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from docker import APIClient
from docker.errors import APIError, NotFound

from engines.base import HOW_TO_HAVE_IT, ImageNotFound
from engines.docker.errors import translated, words
from engines.docker.pulling import Puller, PullRules

_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = ("", "0", "root")
_NAME = "it reads registry.example.com/vendor/image:1.0.0, in lower case"
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
    """The daemon's images."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules = PullRules()) -> None:
        self._client = client
        self._puller = Puller(client, rules)

    def find(self, name: str) -> Image:
        """Return an image that is here. Raises `ImageNotFound`: nothing is fetched."""
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
                raise ImageNotFound(f"{name[:200]!r} is not a valid image name", _NAME) from error
        config = found.get("Config") or {}
        variables = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
        return Image(
            id=found["Id"],
            user=config.get("User") or "",
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
            path=variables.get("PATH") or _SEARCH_PATH,
            folder=config.get("WorkingDir") or "/",
            labels=dict(config.get("Labels") or {}),
            repo_digests=tuple(found.get("RepoDigests") or ()),
        )

    def ensure(self, name: str, on_progress: Callable[[str], None]) -> Image:
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
                self._puller.pull(name, on_progress)
            return self.find(name)

    def offered(self, name: str, seconds: float) -> str:
        """Return the digest that the image's registry names, which is asked by the daemon as for fetching."""
        if not name or not self._puller.allowed:
            raise ImageNotFound(f"the container engine has no image {name}", HOW_TO_HAVE_IT)
        return self._puller.offered(name, seconds)
