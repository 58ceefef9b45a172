"""Fetches images from the registries that the admin allows: explicitly, within a deadline, and only when asked."""

import json
import posixpath
import queue
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from docker import APIClient, auth
from docker.errors import APIError, DockerException, InvalidRepository, NotFound
from docker.utils import parse_repository_tag
from requests import Response, Timeout

from engines.base import (
    HOW_TO_HAVE_IT,
    CommandNotFound,
    EngineDown,
    EngineError,
    ImageNotFound,
    NoSpace,
    PullDenied,
    PullFailed,
    PullTimeout,
)
from engines.docker.errors import check_answer, translated, words

_EVERY = 1.0
"""seconds between two words of progress"""
_LATER = 30.0
"""seconds after which the request itself gives up; who follows it does so first, and says why"""
_DENIED = (
    "pull access denied",
    "unauthorized",
    "authentication required",
    "no basic auth",
    "denied:",
    "forbidden",
)
_UNKNOWN = ("manifest unknown", "not found", "name unknown", "does not exist", "invalid reference", "name must")
_LATE = ("timeout", "deadline exceeded", "timed out", "client.timeout")


_News = queue.SimpleQueue[Mapping[str, Any] | BaseException | None]


class _Stale(Exception):
    """Neither bytes nor words have come for too long."""


@dataclass(frozen=True)
class PullRules:
    """What may be fetched: nothing, unless registries are named."""

    registries: frozenset[str] = frozenset()
    """``host[:port]`` as in image names, and ``docker.io`` for names without a host"""
    deadline: float = 600.0
    """seconds for one image"""
    stale: float = 120.0
    """seconds without any news after which it is given up and begun anew, once"""


class Puller:
    """Fetches one image at a time and name."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules) -> None:
        self._client = client
        self._rules = rules
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @property
    def allowed(self) -> bool:
        """Whether the admin allows any registry at all."""
        return bool(self._rules.registries)

    def busy(self, image: str) -> threading.Lock:
        """Return the lock that is held while an image is fetched."""
        with self._guard:
            return self._locks.setdefault(image, threading.Lock())

    def pull(self, image: str, told: Callable[[str], None]) -> None:
        """Fetch the image. Raises what `engines.base.Engine.ensure_image` names, and what ``told`` raises."""
        registry = self._registry_of(image)
        until = time.monotonic() + self._rules.deadline
        try:
            self._fetch(image, registry, until, told)
        except _Stale as error:
            told(f"{error}; it is begun anew")
            try:
                self._fetch(image, registry, until, told)
            except _Stale as again:
                raise PullTimeout(f"{image} was given up twice: {again}") from again

    def offered(self, image: str, seconds: float) -> str:
        """Return the digest of what `pull` would fetch: the daemon asks the registry for its manifest only.

        Raises what `pull` raises.
        """
        registry = self._registry_of(image)
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/distribution/{image}/json"
        try:
            answer = api.get(url, headers=_authorised(api, registry), timeout=seconds)
            check_answer(answer)
            return str(answer.json()["Descriptor"]["digest"])
        except APIError as error:
            raise _refusal(image, words(error)) from error
        except Timeout as error:
            raise PullTimeout(f"{registry} did not tell of {image} within {seconds:g} s") from error
        except (DockerException, OSError) as error:
            raise EngineDown(f"the container engine went away while it asked for {image}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise PullFailed(f"{registry} tells nothing of {image} that can be read") from error

    def _registry_of(self, image: str) -> str:
        try:
            registry, _ = auth.resolve_repository_name(parse_repository_tag(image)[0])
        except InvalidRepository as error:
            raise ImageNotFound(f"{image} is no name of an image", str(error)) from error
        if registry not in self._rules.registries:
            raise PullDenied(
                f"the container engine has no image {image}, and its registry {registry} is not among "
                f"engine.docker.registries ({', '.join(sorted(self._rules.registries))})"
            )
        return str(registry)

    def _fetch(self, image: str, registry: str, until: float, told: Callable[[str], None]) -> None:
        news: _News = queue.SimpleQueue()
        fetch = _Fetch(self._client(), image, registry, self._rules.deadline, news.put)
        with closing(fetch):
            self._follow(image, news, until, told)

    def _follow(self, image: str, news: _News, until: float, told: Callable[[str], None]) -> None:
        layers: dict[str, Mapping[str, Any]] = {}
        tell_at, heard_at = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - heard_at >= self._rules.stale:
                raise _Stale(f"nothing has come for {self._rules.stale:g} s, {_progress(layers)}")
            if now >= until:
                raise PullTimeout(
                    f"{image} did not come within {self._rules.deadline:g} s (engine.docker.pull_seconds); "
                    f"{_progress(layers)}"
                )
            if now >= tell_at:
                told(_progress(layers))
                tell_at = now + _EVERY
            try:
                said = news.get(timeout=max(0.0, min(_EVERY, until - now)))
            except queue.Empty:
                continue
            heard_at = time.monotonic()
            if said is None:
                told(_progress(layers))
                return
            if isinstance(said, APIError):
                raise _refusal(image, words(said)) from said
            if isinstance(said, BaseException):
                raise EngineDown(f"the container engine went away while it fetched {image}: {said}") from said
            if "error" in said:
                raise _refusal(image, str(said["error"]))
            if "id" in said and "progressDetail" in said:
                layers[said["id"]] = said


class _Fetch:
    """One request to the daemon, read in a thread of its own, because neither side keeps a deadline."""

    def __init__(
        self,
        api: APIClient,
        image: str,
        registry: str,
        deadline: float,
        put: Callable[[Mapping[str, Any] | BaseException | None], None],
    ) -> None:
        self._api = api
        self._image = image
        self._registry = registry
        self._deadline = deadline
        self._put = put
        self._lock = threading.Lock()
        self._response: Response | None = None
        self._closed = False
        threading.Thread(target=self._run, name="engine-pull", daemon=True).start()

    def close(self) -> None:
        """Give up: the daemon stops to fetch when its caller is gone."""
        with self._lock:
            self._closed = True
            response = self._response
        if response is not None:  # its reader closes it; to close it here would wait for what the reader waits for
            with suppress(ValueError, RuntimeError, OSError):  # it is over already
                response.raw.shutdown()

    def _run(self) -> None:
        try:
            for said in self._said():
                self._put(said)
            self._put(None)
        except (
            DockerException,
            OSError,
            ValueError,
            AttributeError,
        ) as error:  # closed while it is read: the last
            self._put(error)

    def _said(self) -> Iterator[Mapping[str, Any]]:
        name, tag = parse_repository_tag(self._image)
        response = self._api.post(
            f"{self._api.base_url}/v{self._api.api_version}/images/create",
            params={"fromImage": name, "tag": tag or "latest"},
            headers=_authorised(self._api, self._registry),
            stream=True,
            timeout=self._deadline + _LATER,
        )
        with self._lock:
            self._response = response
            closed = self._closed
        with closing(response):
            if closed:
                return
            check_answer(response)
            for line in response.iter_lines():
                if line:
                    with suppress(ValueError):
                        yield json.loads(line)


def _authorised(api: APIClient, registry: str) -> dict[str, str | bytes]:
    """Return the headers that carry what `docker login` of the gateway's user has kept for a registry."""
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header} if header else {}


def _refusal(image: str, text: str) -> EngineError:
    """Say what the daemon's or the registry's words mean."""
    said = text.lower()
    full = f"{image} cannot be fetched: {text}"
    if "no space left" in said:
        return NoSpace(full)
    if any(word in said for word in _DENIED):
        return PullDenied(full)
    if any(word in said for word in _UNKNOWN):
        return ImageNotFound(full, "push it there, or correct its name in the registration")
    if any(word in said for word in _LATE):
        return PullTimeout(full)
    return PullFailed(full)


def _progress(layers: Mapping[str, Mapping[str, Any]]) -> str:
    if not layers:
        return "nothing has come yet"
    done = sum("complete" in str(layer.get("status", "")).lower() for layer in layers.values())
    got = sum((layer.get("progressDetail") or {}).get("current") or 0 for layer in layers.values())
    return f"{done} of {len(layers)} layers, {got / 1e6:.1f} MB under way"


# What a script needs besides itself: the program in its first line.
#
# Without it the kernel reports that the script itself is gone. Pure but for what it asks of a container's files.

HEAD = 256
"""bytes of a file that Linux reads for its first line"""
_OPTIONS_WITH_VALUE = ("-u", "--unset", "-C", "--chdir")


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
    """Return the program among the words for ``env``; empty where that is not clear."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word in _OPTIONS_WITH_VALUE:
            del left[:1]
        elif word.startswith("-S") and word != "-S":
            return ""
        elif not word.startswith("-") and "=" not in word:
            return word
    return ""


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
    """The daemon's images."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules = PullRules()) -> None:
        self._client = client
        self._puller = Puller(client, rules)
        self._executable: set[tuple[str, str, tuple[str, ...]]] = set()

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
                raise ImageNotFound(f"{name[:200]!r} is no name of an image", _NAME) from error
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
            if (image.id, place, line) in self._executable or _below(place, mounted):
                return
            executable = self._is_executable(container, place)
            if executable:
                self._check_interpreter(container, place, line, image, search, mounted)
                self._executable.add((image.id, place, line))
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
