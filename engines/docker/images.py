"""The images of a Docker daemon: found there, pulled from the registries that the admin allows, able to start.

Nothing is pulled implicitly, and every pull has a deadline. An image is checked for the executable that it is to
start.
"""

import io
import json
import posixpath
import queue
import re
import tarfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import PurePosixPath
from typing import Any

from docker import APIClient, auth
from docker.errors import APIError, DockerException, NotFound
from docker.types import Healthcheck
from docker.utils import parse_repository_tag
from requests import Response, Timeout

from engines.base import (
    HOW_TO_HAVE_IT,
    TEMPORARY,
    CommandNotFound,
    CreateFailed,
    EngineDown,
    ImageNotFound,
    PullTimeout,
)
from engines.docker.client import check_answer, translated, words
from engines.image import Image
from engines.messages import pull_error
from engines.registry.logins import Login, login_for
from engines.registry.names import PullRules, invalid_name

_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NO_NAME = re.compile("no such image|invalid reference format|repository name must", re.IGNORECASE)

_PROGRESS_EVERY = 1.0
"""seconds between two reports of progress"""
_GRACE = 30.0
"""seconds after the deadline when the request itself gives up; its reader does so before, and says why"""
NO_CHECK = Healthcheck(test=["NONE"])
"""instead of an image's own, which the daemon would run beyond the limits of a run, however often"""
_USERS, _LARGEST_USERS, _MOST_LINKS = "/etc/passwd", 1 << 20, 9
_OTHER = re.compile("0*[1-9][0-9]{0,8}")
"""a uid that is not that of root: a daemon takes other texts for 0, and of larger numbers 32 bits"""
_DIRECTORY = 1 << 31
_OPEN = 0o777
"""the mode of a directory that everybody reads, writes and enters"""
_OPEN_TO_OTHERS = 0o003
_STAT = "X-Docker-Container-Path-Stat"

_Events = queue.SimpleQueue[Mapping[str, Any] | BaseException | None]


class _Stale(Exception):
    """The daemon has reported nothing for too long."""


class Images:
    """The daemon's images."""

    def __init__(self, client: Callable[[], APIClient], rules: PullRules) -> None:
        self._client = client
        self._rules = rules
        self._known: set[tuple[str, str]] = set()
        self._opening: dict[str, list[tarfile.TarInfo]] = {}
        """by an image's digest: the directories that are opened in each of its containers"""

    def find(self, name: str) -> Image:
        """Return an image that is here. Raises `ImageNotFound`: nothing is fetched."""
        if not name:
            raise ImageNotFound(
                "the image has no name", "name one in the registration: metadata.image"
            )
        with translated():
            try:
                found = self._client().inspect_image(name)  # type: ignore[no-untyped-call]
            except NotFound as error:
                raise ImageNotFound(
                    f"the container engine has no image {name}", HOW_TO_HAVE_IT
                ) from error
            except APIError as error:
                if not _NO_NAME.search(words(error)):
                    raise
                raise invalid_name(name) from error
        config = found.get("Config") or {}
        return Image(
            found["Id"], config.get("Labels") or {}, tuple(found.get("RepoDigests") or ()), config
        )

    def ensure(self, name: str, on_progress: Callable[[str], None]) -> Image:
        """Return the image; fetch it if it is not here and that is allowed."""
        try:
            return self.find(name)
        except ImageNotFound:
            if not name or not self._rules.registries:
                raise
        self._pull(name, on_progress)  # the daemon fetches it once for all who ask meanwhile
        return self.find(name)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Return the digest that the image's registry names, which is asked by the daemon as for fetching."""
        if not image or not self._rules.registries:
            raise ImageNotFound(f"the container engine has no image {image}", HOW_TO_HAVE_IT)
        registry = self._rules.allowed_name(image).registry
        login = login_for(registry)
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/distribution/{image}/json"
        try:
            answer = api.get(url, headers=_authorised(login), timeout=seconds)
            check_answer(answer)
            return str(answer.json()["Descriptor"]["digest"])
        except APIError as error:
            raise pull_error(image, words(error), login.explanation) from error
        except Timeout as error:
            raise PullTimeout(
                f"{registry} did not respond about {image} within {seconds:g} s"
            ) from error
        except (DockerException, OSError) as error:
            raise EngineDown(
                f"the container engine went away during the request for {image}: {error}"
            ) from error

    def check_executable(
        self,
        container: str,
        image: Image,
        command: Sequence[str] | None,
        environment: Mapping[str, str],
        mounted: Sequence[str],
    ) -> None:
        """Raise `CommandNotFound` if the container, which has not started, lacks its executable.

        The daemon itself does not notice, as it starts its own init process. The result is remembered: an image's
        content never changes.
        """
        config = image.config
        words = [
            *(config.get("Entrypoint") or ()),
            *((config.get("Cmd") or ()) if command is None else command),
        ]
        if not words or not (first := words[0]):
            raise CommandNotFound("the image has no command")
        if "/" in first:
            places = [posixpath.join(image.working_directory(TEMPORARY), first)]
        else:
            own = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
            search = {
                "PATH": _SEARCH_PATH,
                **own,
                **environment,
            }["PATH"].split(":")
            places = [posixpath.join(folder, first) for folder in search if folder]
        for place in places:
            mounts = any(PurePosixPath(place).is_relative_to(folder) for folder in mounted)
            if mounts or (image.digest, place) in self._known:
                return
            if self._is_executable(container, place):
                self._known.add((image.digest, place))
                return
        raise CommandNotFound(f"the image has no executable {first}")

    def check_user(self, container: str, image: Image) -> None:
        """Raise `CreateFailed` if the image's own user, by the files of a container, is root by another name."""
        user, path = image.user, _USERS
        known = image.digest, ""  # no program is called that
        if image.runs_as_root or _OTHER.fullmatch(user) or known in self._known:
            return
        for _ in range(_MOST_LINKS):
            try:
                found, about = self._client().get_archive(container, path)
            except NotFound:  # the start itself will say so
                return
            path = about["linkTarget"]
            if not path:
                break
        archive = b""
        for piece in found:
            archive += piece
            if len(archive) > _LARGEST_USERS:
                raise CreateFailed(f"{_USERS} of the image has more than {_LARGEST_USERS} bytes")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            file = files.extractfile(files.getmembers()[0])
            lines = (
                file.read().decode(errors="replace").split("\n") if file and not path else [user]
            )
        # as a daemon reads them: without spaces around, and of a line that is too short the uid is 0
        named = [
            fields
            for line in lines
            if (fields := line.strip().split(":"))[0].strip() == user.strip()
        ]
        if not all(_OTHER.fullmatch("".join(fields[2:3])) for fields in named):
            raise CreateFailed(
                f"the image's user {user} is root by its {_USERS}: name another, or none"
            )
        self._known.add(known)

    def open_directories(
        self,
        container: str,
        image: Image,
        mounted: Sequence[str],
    ) -> None:
        """Let a container, which has not started, write to its working directory and to ``/tmp``.

        Only the container's own layer changes: a directory in a mount, or behind a link, stays as it is.
        Raises APIError.
        """
        if image.digest not in self._opening:
            self._opening[image.digest] = self._closed_directories(container, image)
        closed = [
            directory
            for directory in self._opening[image.digest]
            if not any(
                PurePosixPath("/", directory.name).is_relative_to(folder) for folder in mounted
            )
        ]
        if not closed:
            return
        with io.BytesIO() as buffer:
            with tarfile.open(fileobj=buffer, mode="w") as files:
                for directory in closed:
                    files.addfile(directory)
            self._client().put_archive(container, "/", buffer.getvalue())

    def _closed_directories(self, container: str, image: Image) -> list[tarfile.TarInfo]:
        """Return the directories to open, as they are to be."""
        closed = []
        for path in dict.fromkeys((image.working_directory(TEMPORARY), TEMPORARY)):
            directory = self._directory(container, PurePosixPath(path))
            if directory is not None and directory.mode & _OPEN_TO_OTHERS != _OPEN_TO_OTHERS:
                directory.mode |= _OPEN
                closed.append(directory)
        return closed

    def _directory(self, container: str, path: PurePosixPath) -> tarfile.TarInfo | None:
        """Return a directory of a container, made anew where it has none; None for what is none, or linked."""
        for step in (*reversed(path.parents[:-1]), path):
            about = self._stat(container, str(step))
            if about is not None and (about["linkTarget"] or not about["mode"] & _DIRECTORY):
                return None
        directory = tarfile.TarInfo(str(path).strip("/"))
        directory.type = tarfile.DIRTYPE
        directory.mode = 0
        if about is not None:
            present = self._header(container, str(path))
            directory.mode, directory.mtime = present.mode, present.mtime
            directory.uid, directory.gid = present.uid, present.gid
        return directory

    def _header(self, container: str, path: str) -> tarfile.TarInfo:
        """Return the attributes of a path in a container. Raises APIError."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        plain = {"Accept-Encoding": "identity"}
        with closing(
            api.get(
                url,
                params={"path": path},
                headers=plain,
                stream=True,
                timeout=api.timeout,
            )
        ) as answer:
            check_answer(answer)
            with tarfile.open(fileobj=answer.raw, mode="r|") as files:
                return next(iter(files))

    def _stat(self, container: str, path: str) -> Mapping[str, Any] | None:
        """Return what the daemon says of a path in a container; None where there is none, or it cannot look."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        described = api.head(url, params={"path": path}, timeout=api.timeout).headers.get(_STAT)
        if described is None:
            return None
        about: Mapping[str, Any] = json.loads(b64decode(described))
        return about

    def _pull(self, image: str, on_progress: Callable[[str], None]) -> None:
        """Pull the image, a second time if the first makes no progress. Raises what ``on_progress`` raises."""
        registry = self._rules.allowed_name(image).registry
        until = time.monotonic() + self._rules.deadline
        for last in (False, True):
            try:
                with closing(
                    _Fetch(self._client(), image, registry, self._rules.deadline)
                ) as fetch:
                    self._follow(image, fetch.events, until, on_progress, fetch.login.explanation)
                    return
            except _Stale as error:
                if last:
                    raise PullTimeout(f"{image} was given up twice: {error}") from error
                on_progress(f"{error}; starting again")

    def _follow(
        self,
        image: str,
        events: _Events,
        until: float,
        on_progress: Callable[[str], None],
        explanation: str = "",
    ) -> None:
        """Report how a pull goes on; ``explanation`` goes with a refusal."""
        layers: dict[str, Mapping[str, Any]] = {}
        report_at, last_at = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - last_at >= self._rules.stale:
                raise _Stale(f"no progress for {self._rules.stale:g} s, {_progress(layers)}")
            if now >= until:
                raise PullTimeout(
                    f"{image} did not arrive within {self._rules.deadline:g} s (engine.docker.pull_seconds); "
                    f"{_progress(layers)}"
                )
            if now >= report_at:
                on_progress(_progress(layers))
                report_at = now + _PROGRESS_EVERY
            try:
                event = events.get(timeout=min(_PROGRESS_EVERY, until - now))
            except queue.Empty:
                continue
            last_at = time.monotonic()
            if event is None:
                on_progress(_progress(layers))
                return
            if isinstance(event, APIError):
                raise pull_error(image, words(event), explanation) from event
            if isinstance(event, BaseException):
                raise EngineDown(
                    f"the container engine went away while it pulled {image}: {event}"
                ) from event
            if "error" in event:
                raise pull_error(image, str(event["error"]), explanation)
            if "id" in event and "progressDetail" in event:
                layers[event["id"]] = event

    def _is_executable(self, container: str, path: str) -> bool:
        """Tell what the daemon says; where it cannot look, the start itself will fail and say why."""
        api = self._client()
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
        answer = api.head(url, params={"path": path}, timeout=api.timeout)
        if (described := answer.headers.get(_STAT)) is None:
            return bool(answer.status_code != 404)
        stat = json.loads(b64decode(described))
        return bool(stat["linkTarget"]) or (
            bool(stat["mode"] & 0o111) and not stat["mode"] & _DIRECTORY
        )


class _Fetch:
    """One request to the daemon, read in a thread of its own, because neither side has a deadline."""

    def __init__(
        self,
        api: APIClient,
        image: str,
        registry: str,
        deadline: float,
    ) -> None:
        self._api, self._image, self._deadline = api, image, deadline
        self.login = login_for(registry)
        self.events: _Events = queue.SimpleQueue()
        self._response: Response | None = None
        self._closed = False
        threading.Thread(
            target=self._run,
            name="engine-pull",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Give up: the daemon stops when its caller is gone."""
        self._closed = True
        if (
            self._response is not None
        ):  # its reader closes it; closing it here would wait for the reader
            with suppress(ValueError, RuntimeError, OSError):  # it is over already
                self._response.raw.shutdown()

    def _run(self) -> None:
        name, tag = parse_repository_tag(self._image)
        try:
            self._response = response = self._api.post(
                f"{self._api.base_url}/v{self._api.api_version}/images/create",
                params={"fromImage": name, "tag": tag or "latest"},
                headers=_authorised(self.login),
                stream=True,
                timeout=self._deadline + _GRACE,
            )
            with closing(response):
                if self._closed:
                    return
                check_answer(response)
                for line in filter(None, response.iter_lines()):
                    self.events.put(json.loads(line))
            self.events.put(None)
        except (
            DockerException,
            OSError,
            ValueError,
            AttributeError,
        ) as error:  # the last: closed meanwhile
            self.events.put(error)


def _authorised(login: Login) -> dict[str, str | bytes]:
    """Return the headers with the login at a registry."""
    return {"X-Registry-Auth": auth.encode_header(dict(login.values))} if login.values else {}


def _progress(layers: Mapping[str, Mapping[str, Any]]) -> str:
    if not layers:
        return "no progress yet"
    done = sum("complete" in str(layer.get("status", "")).lower() for layer in layers.values())
    got = sum((layer.get("progressDetail") or {}).get("current") or 0 for layer in layers.values())
    return f"{done} of {len(layers)} layers, {got / 1e6:.1f} MB in progress"
