"""What the engines of a Docker daemon share: its images, the labels of this node's runs, its logs, its watches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from docker.errors import NotFound
from docker.types import Mount as DockerMount

from engines.base import (
    INSTALLATION,
    NODE,
    CreateFailed,
    ImageMetadata,
    Mount,
    Watch,
    belongs_to,
    is_name,
)
from engines.docker.client import Connection, log_of, translated
from engines.docker.images import Images
from engines.logs import STREAMS, StreamingEngine
from engines.registry.names import PullRules


@dataclass(frozen=True)
class Source:
    """A folder of the gateway that comes from the daemon's host or from a volume."""

    root: Path
    """as the gateway sees it"""
    bind: str = ""
    volume: str = ""


@dataclass(frozen=True)
class DaemonOptions:
    """Which daemon to use, and what it shares with the gateway."""

    base_url: str = ""
    """the daemon, of a Swarm a manager; default as the environment says"""
    tls: Mapping[str, str] = field(default_factory=dict)
    """files ``ca``, ``cert`` and ``key`` for a daemon at tcp://"""
    pull: PullRules = field(default_factory=PullRules)
    sources: tuple[Source, ...] = ()
    """of a Swarm folders that every machine has at the same place; there are no mounts of others"""
    saved_log_size: int = 32 * 1024 * 1024
    """bytes of a stream that `save_logs` keeps"""


class DaemonEngine(StreamingEngine):
    """Runs of one installation at a daemon; see `engines.base.Engine` for what each method promises."""

    def __init__(
        self,
        node: str,
        installation: str,
        options: DaemonOptions,
    ) -> None:
        """Connects only when first used."""
        self._node = node
        self._installation = installation
        self._labels = {NODE: node, INSTALLATION: installation}
        self._client = Connection(options.base_url, options.tls)
        self._images = Images(self._client, options.pull)
        self._saved_log_size = options.saved_log_size
        self._watches: list[Watch] = []

    def image_facts(self, image: str) -> ImageMetadata:
        return self._images.find(image)

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        return self._images.ensure(image, on_progress).digest

    def registry_digest(self, image: str, seconds: float) -> str:
        return self._images.registry_digest(image, seconds)

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._client.close()

    def _ours(
        self,
        name: str,
        inspect: Callable[[str], Any],
        part: str,
    ) -> Mapping[str, Any] | None:
        """Return the daemon's record of a run of ours, which has its labels in this part of it."""
        if not is_name(name):
            return None
        with translated(), suppress(NotFound):
            found: Mapping[str, Any] = inspect(name)
            if belongs_to(found[part].get("Labels") or {}, self._node, self._installation):
                return found
        return None

    def _log_place(self, name: str) -> str:
        """Return where the daemon has the logs of a run of ours: ``containers/…``, ``tasks/…``; empty: nowhere."""
        raise NotImplementedError

    def _streams(self, name: str) -> Sequence[Iterator[bytes]]:
        place = self._log_place(name)
        return [self._log(place, stream) for stream in STREAMS] if place else ()

    def _log(self, place: str, stream: str) -> Iterator[bytes]:
        """Yield what the run wrote to the stream; ends early where the run is removed meanwhile."""
        with translated(), suppress(NotFound):
            yield from log_of(self._client(), place, stream)

    def _filters(self) -> dict[str, Any]:
        """Return what selects the runs of this installation in the daemon's lists."""
        return {"label": [f"{name}={value}" for name, value in self._labels.items()]}


def as_the_daemon_sees(
    mount: Mount,
    sources: tuple[Source, ...],
    mountpoint: Callable[[str], str],
) -> DockerMount:
    """Return the mount in the daemon's view; ``mountpoint`` returns a volume's path. Raises `CreateFailed`."""
    if ".." in mount.source.parts or ".." in PurePosixPath(mount.target).parts:
        raise CreateFailed(f"a mount of {mount.source} at {mount.target} leads out of its folder")
    path = mount.source.absolute()
    seen = str(path)
    for source in sources:
        if path.is_relative_to(source.root):
            root = source.bind or mountpoint(source.volume)
            seen = str(PurePosixPath(root) / path.relative_to(source.root).as_posix())
            break
    return DockerMount(
        target=mount.target,
        source=seen,
        type="bind",
        read_only=mount.read_only,
    )
