"""The common part of the engines for Docker and Swarm.

It covers images, the labels of this node's runs, their logs, and watches.
"""

from abc import ABC, abstractmethod
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
from engines.docker.container_files import ContainerFiles
from engines.docker.images import Images
from engines.logs import STREAMS, StreamingEngine
from engines.records import object_in
from engines.registry.names import PullRules


@dataclass(frozen=True)
class Source:
    """A folder of the gateway, and its place at the daemon.

    The place is a path on the daemon's host (``bind``) or a volume.
    """

    root: Path  # on the gateway's side
    bind: str = ""  # on the daemon's host
    volume: str = ""


@dataclass(frozen=True)
class DaemonOptions:
    """Which daemon to use, and its folders shared with the gateway."""

    base_url: str = ""  # for a Swarm, that of a manager; empty: as the environment says
    # Files ``ca``, ``cert``, ``key`` for tcp://
    tls: Mapping[str, str] = field(default_factory=dict)
    pull: PullRules = field(default_factory=PullRules)
    # Folders shared with the daemon. In a Swarm every machine has them at the same path, and
    # nothing else can be mounted.
    sources: tuple[Source, ...] = ()
    saved_log_size: int = 32 * 1024 * 1024  # bytes of a stream that `save_logs` keeps


class DaemonEngine(StreamingEngine, ABC):
    """Runs of one node at a daemon. `engines.base.Engine` specifies the methods."""

    def __init__(
        self,
        node: str,
        installation: str,
        options: DaemonOptions,
        client: Connection | None = None,
    ) -> None:
        """``client``: the connection to the daemon; None: to the daemon that the options name.

        No connection is made before the first use.
        """
        self._node = node
        self._installation = installation
        self._labels = {NODE: node, INSTALLATION: installation}
        self._client = client or Connection(options.base_url, options.tls)
        self._images = Images(self._client, options.pull)
        self._files = ContainerFiles(self._client)
        self._saved_log_size = options.saved_log_size
        self._watches: list[Watch] = []  # filled by the subclasses, closed by `close`

    def image_metadata(self, image: str) -> ImageMetadata:
        """Return a local image's metadata."""
        return self._images.find(image)

    def ensure_image(
        self,
        image: str,
        on_progress: Callable[[str], None],
    ) -> str:
        """Pull the image if it is missing and the rules allow it; return its digest."""
        return self._images.ensure(image, on_progress).digest

    def registry_digest(self, image: str, seconds: float) -> str:
        """Have the daemon ask the registry, as it would for a pull."""
        return self._images.registry_digest(image, seconds)

    def close(self) -> None:
        """End the watches, then the connection."""
        for watch in self._watches:
            watch.close()
        self._client.close()

    def _own_record(
        self, name: str, inspect: Callable[[str], Any], section: str
    ) -> Mapping[str, Any] | None:
        """Return the daemon's record of a run of this node.

        None for an unknown run, and for a run of another node or installation. ``inspect`` is
        called with the name and returns the daemon's record; ``section`` is the key of the part
        of the record with the labels.
        """
        if not is_name(name):
            return None
        with translated(), suppress(NotFound):
            record: Mapping[str, Any] = inspect(name)
            labels = object_in(record[section], "Labels")
            if belongs_to(labels, self._node, self._installation):
                return record
        return None

    @abstractmethod
    def _log_holder(self, name: str) -> str:
        """Return the container or task that has the log of one of this node's runs.

        It is named by its path in the daemon's API, ``containers/…`` or ``tasks/…``; empty without
        a log.
        """

    def _streams(self, name: str) -> Sequence[Iterator[bytes]]:
        """Return the stdout and stderr of a run, which are requested when they are read."""
        holder = self._log_holder(name)
        if not holder:
            return ()
        return [self._log(holder, stream) for stream in STREAMS]

    def _log(self, holder: str, stream: str) -> Iterator[bytes]:
        """Yield a stream of a run; ends early if the run is removed."""
        with translated(), suppress(NotFound):
            yield from log_of(self._client(), holder, stream)

    def _filters(self) -> dict[str, Any]:
        """Return the filters that select this node's runs in the daemon's lists."""
        labels = [f"{name}={value}" for name, value in self._labels.items()]
        return {"label": labels}


def as_the_daemon_sees(
    mount: Mount,
    sources: tuple[Source, ...],
    mountpoint: Callable[[str], str],
) -> DockerMount:
    """Return a mount with its source on the daemon's side.

    ``mountpoint`` is called with the name of a volume and returns its path on the daemon's host. A
    source outside of all ``sources`` has the same path on both sides. Raises `CreateFailed`.
    """
    parts = (*mount.source.parts, *PurePosixPath(mount.target).parts)
    if ".." in parts:
        raise CreateFailed(f"a mount of {mount.source} at {mount.target} leads out of its folder")
    path = mount.source.absolute()
    daemon_path = str(path)
    for source in sources:
        if path.is_relative_to(source.root):
            root = source.bind or mountpoint(source.volume)
            daemon_path = str(PurePosixPath(root) / path.relative_to(source.root).as_posix())
            break
    return DockerMount(
        target=mount.target,
        source=daemon_path,
        type="bind",
        read_only=mount.read_only,
    )
