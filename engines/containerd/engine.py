"""Runs algorithm images as containers of a Docker daemon.

Nothing is ever fetched implicitly, every container is hardened alike, and the daemon holds the only truth: a
container is found again by its name and its labels. Few calls are made per launch: what is known of an image is
kept for a moment, the node's network is made once.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker import APIClient
from docker.errors import APIError, NotFound
from docker.types import LogConfig
from docker.types import Mount as DockerMount
from docker.utils import kwargs_from_env, parse_host

from engines import logfiles
from engines.base import (
    CAPABILITIES,
    Capacity,
    CreateFailed,
    EngineDown,
    EngineError,
    Exited,
    Found,
    LaunchSpec,
    Logs,
    Missing,
    Probe,
    Running,
    Watch,
    check_environment,
    check_limits,
    signal_of,
)
from engines.containerd.errors import image_is_gone, network_is_gone, translated
from engines.containerd.images import Image, Images
from engines.containerd.network import NodeNetwork
from engines.containerd.view import as_the_daemon_sees, source_of
from engines.containerd.watch import EventWatch
from engines.naming import INSTALLATION, NODE, is_name, owned, safe_name

NOBODY = "65534:65534"
IMAGE = "bfia.image"
"""Label with the image's name: the container itself is made from the image's id, whatever the name means later."""

_TIMEOUT = 60
"""seconds for one call; starting a container takes some on a busy machine"""
_POOL = 64
"""connections, of which every stop and every watch holds one for long"""
_LOG_FILES = 3
_CONFLICT = 409
_PATIENCE, _PAUSE = 10.0, 0.05
"""seconds; for a container of the name that another gateway is just making or removing"""
_NEVER = "0001-"


class ContainerdEngine:
    """See `engines.base.Engine` for what each method promises."""

    kind = "docker"
    capabilities = CAPABILITIES

    def __init__(
        self,
        *,
        node: str,
        installation: str,
        base_url: str = "",
        network: str | None = None,
        network_mode: str = "bridge",
        user: str = NOBODY,
        storage_source: Mapping[str, str] | None = None,
        storage_root: Path | None = None,
        runs_source: Mapping[str, str] | None = None,
        runs_root: Path | None = None,
        log_size: int = 10 * 1024 * 1024,
        read_only_root: bool = False,
    ) -> None:
        """Use the daemon at ``base_url``, or where the environment says. Connects only when first used.

        ``network``: the bridge network, made on demand; default one for the node. ``network_mode`` host gives up
        isolation. ``user``: who runs what an image would run as root. ``*_source``: the daemon's view of what the
        gateway sees below ``*_root``, as ``{"bind": folder}`` or ``{"volume": name}``. ``log_size``: bytes of one
        log file, of which a container has three at most. ``read_only_root``: nothing but its outputs, its log and
        a temporary ``/tmp`` can be written by a container. Raises ValueError for what makes no sense.
        """
        if network_mode not in ("bridge", "host"):
            raise ValueError(f"network_mode is bridge or host, not {network_mode}")
        self._node = node
        self._installation = installation
        self._base_url = base_url
        self._user = user
        self._sources = source_of(storage_root, storage_source) + source_of(runs_root, runs_source)
        self._log_size = log_size
        self._read_only_root = read_only_root
        self._locks = tuple(threading.Lock() for _ in range(64))
        self._lock = threading.Lock()
        self._api: APIClient | None = None
        self._socket: str | None = None
        self._images = Images(self._client)
        self._network: NodeNetwork | None = None
        if network_mode == "bridge":
            labels = {NODE: node, INSTALLATION: installation}
            self._network = NodeNetwork(self._client, network or safe_name("bfia", node), labels)
        self._mountpoints: dict[str, str] = {}
        self._watches: list[Watch] = []

    def check(self) -> None:
        with translated(EngineDown):
            self._client().ping()

    def capacity(self) -> Capacity:
        """Return what the daemon's machine has."""
        with translated(EngineDown):
            told = self._client().info()
        try:
            return Capacity(float(told["NCPU"]), int(told["MemTotal"]))
        except (KeyError, TypeError, ValueError) as error:
            raise EngineDown(f"the engine does not tell what it has: {error}") from error

    def image_digest(self, image: str) -> str:
        """Return the image's id, which is the digest of its content and configuration."""
        return self._images.find(image).id

    def launch(self, spec: LaunchSpec) -> None:
        check_environment(spec.environment)
        check_limits(spec.limits)
        if not is_name(spec.name):
            raise CreateFailed(f"{spec.name!r} cannot be the name of a run")
        image = self._images.find(spec.image)
        with self._locks[hash(spec.name) % len(self._locks)], translated(CreateFailed):
            mounts = [as_the_daemon_sees(mount, self._sources, self._mountpoint) for mount in spec.mounts]
            until = time.monotonic() + _PATIENCE
            network_was_gone = False
            while True:
                try:
                    network = "host" if self._network is None else self._network.ensure()
                    if self._create_and_start(spec, image, mounts, network):
                        return
                except APIError as error:
                    if image_is_gone(error):
                        self._images.forget(spec.image)
                    if self._network is None or network_was_gone or not network_is_gone(error):
                        raise
                    self._network.forget()
                    network_was_gone = True
                if time.monotonic() > until:
                    raise CreateFailed(f"the name {spec.name} is taken by a container that cannot be seen")
                time.sleep(_PAUSE)

    def probe(self, name: str) -> Probe:
        found = self._inspect(name)
        return Missing() if found is None else _probe(found["State"])

    def stop(self, name: str, grace: float) -> None:
        if self._inspect(name) is None:
            return
        with translated():
            try:
                self._client().stop(name, timeout=max(0, math.ceil(grace)))
            except NotFound:
                return

    def logs(self, name: str, tail: int | None = None) -> Logs:
        if self._inspect(name) is None:
            return Logs()
        return Logs(*(logfiles.last([self._log(name, stream) or b""], tail) for stream in logfiles.STREAMS))

    def save_logs(self, name: str, directory: Path) -> None:
        if self._inspect(name) is None:
            return
        for stream in logfiles.STREAMS:
            text = self._log(name, stream)
            if text is not None:
                with logfiles.translated():
                    logfiles.save(directory, stream, [text])

    def remove(self, name: str) -> None:
        if self._inspect(name) is None:
            return
        with translated():
            self._remove(name)

    def list(self) -> Sequence[Found]:
        found = []
        for name in self._names():
            container = self._inspect(name)
            if container is not None:
                labels = {k: v for k, v in _labels(container).items() if k.startswith("bfia.")}
                found.append(Found(name, labels, _probe(container["State"])))
        return found

    def watch(self, on_exit: Callable[[str], None]) -> Watch:
        watch = EventWatch(self._client, self._filters(), lambda: self._names(status=["exited", "dead"]), on_exit)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        with self._lock:
            api, self._api = self._api, None
        if api is not None:
            api.close()

    def gateway_address(self) -> str:
        """Return the address under which containers reach this host. Raises `EngineError`."""
        return "127.0.0.1" if self._network is None else self._network.address()

    def remove_network(self) -> None:
        """Take away the network; nothing to do if there is none. Raises `EngineError` while it is in use."""
        if self._network is not None:
            self._network.remove()

    def _client(self) -> APIClient:
        """Return the connection, made on first use. Raises `EngineDown`."""
        with self._lock, translated(EngineDown):
            if self._api is None:
                options = {"base_url": self._base_url} if self._base_url else kwargs_from_env()
                self._socket = _socket_of(options.get("base_url"))
                _knock(self._socket)
                self._api = docker.DockerClient(
                    version="auto", timeout=_TIMEOUT, max_pool_size=_POOL, **options
                ).api
            else:
                _knock(self._socket)
            return self._api

    def _create_and_start(
        self, spec: LaunchSpec, image: Image, mounts: Sequence[DockerMount], network: str
    ) -> bool:
        """Bring the run up; return False while the holder of its name is not to be seen. Raises APIError, too."""
        api = self._client()
        try:
            container = self._create(spec, image, mounts, network)
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise
            try:
                found = api.inspect_container(spec.name)
            except NotFound:
                return False
            if not owned(_labels(found), self._node, self._installation):
                raise CreateFailed(f"the name {spec.name} is taken by another installation") from error
            if found["State"]["Status"] != "created":
                return True
            container = found["Id"]  # made by a gateway that did not come to start it
        try:
            targets = [mount.target for mount in spec.mounts]
            self._images.check_executable(container, image, spec.command, spec.environment, targets)
            api.start(container)
        except (APIError, EngineError):
            self._remove(container)
            raise
        return True

    def _create(self, spec: LaunchSpec, image: Image, mounts: Sequence[DockerMount], network: str) -> str:
        api = self._client()
        limits = spec.limits
        host = api.create_host_config(
            network_mode=network,
            mounts=[*mounts],
            init=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            nano_cpus=None if limits.cpu is None else round(limits.cpu * 1e9),
            pids_limit=limits.pids,
            read_only=self._read_only_root,
            tmpfs={"/tmp": "size=64m"} if self._read_only_root else None,
            log_config=LogConfig(
                type=LogConfig.types.JSON,
                config={"max-size": str(self._log_size), "max-file": str(_LOG_FILES)},
            ),
        )
        created = api.create_container(
            image.id,
            command=None if spec.command is None else list(spec.command),
            name=spec.name,
            environment=dict(spec.environment),
            labels={**spec.labels, IMAGE: spec.image},
            user=self._user if image.runs_as_root else None,
            host_config=host,
        )
        return str(created["Id"])

    def _remove(self, container: str) -> None:
        try:
            self._client().remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != _CONFLICT:  # its removal is under way
                raise

    def _inspect(self, name: str) -> dict[str, Any] | None:
        """Return what the daemon knows of a run of ours."""
        if not is_name(name):
            return None
        with translated():
            try:
                found: dict[str, Any] = self._client().inspect_container(name)
            except NotFound:
                return None
        return found if owned(_labels(found), self._node, self._installation) else None

    def _log(self, name: str, stream: str) -> bytes | None:
        """Return what the run wrote to the stream, None if there is no such run."""
        with translated():
            try:
                return bytes(self._client().logs(name, stdout=stream == "stdout", stderr=stream == "stderr"))
            except NotFound:
                return None

    def _names(self, status: Sequence[str] = ()) -> Sequence[str]:
        filters = {**self._filters(), **({"status": list(status)} if status else {})}
        with translated():
            found = self._client().containers(all=True, filters=filters)
        return [container["Names"][0].lstrip("/") for container in found if container["Names"]]

    def _filters(self) -> dict[str, Any]:
        return {"label": [f"{NODE}={self._node}", f"{INSTALLATION}={self._installation}"]}

    def _mountpoint(self, volume: str) -> str:
        """Return where on the daemon's host a volume lies. Raises `CreateFailed`."""
        if volume not in self._mountpoints:
            with translated(CreateFailed):
                self._mountpoints[volume] = self._client().inspect_volume(volume)["Mountpoint"]
        return self._mountpoints[volume]


def _socket_of(base_url: str | None) -> str | None:
    """Return the path of the daemon's socket on this machine, None for a daemon that is reached by network."""
    scheme, _, path = str(parse_host(base_url)).partition("://")
    return path if scheme == "http+unix" else None


def _knock(path: str | None) -> None:
    """Raise OSError if nobody listens: the client would leave a socket open at each call that finds nobody."""
    if path is not None:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.connect(path)


def _labels(container: Mapping[str, Any]) -> Mapping[str, str]:
    return container["Config"].get("Labels") or {}


def _probe(state: Mapping[str, Any]) -> Probe:
    """Say what the daemon's record of a container's state means."""
    started = _moment(state.get("StartedAt"))
    match state["Status"]:
        case "created":
            return Missing()
        case "running" | "paused" | "restarting":
            return Running(started)
        case _:
            code = int(state["ExitCode"])
            killed = bool(state.get("OOMKilled"))
            finished = _moment(state.get("FinishedAt"))
            if started is not None and finished is not None and finished < started:
                started = finished  # the daemon notes the start of a very short run after its end
            return Exited(code, signal_of(code), killed, started, finished)


def _moment(text: str | None) -> datetime | None:
    """Read the daemon's time, which has nanoseconds; the year 1 stands for never."""
    if not text or text.startswith(_NEVER):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6].ljust(6, '0')}+00:00")
