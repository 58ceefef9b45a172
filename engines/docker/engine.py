"""Runs algorithm images as containers of a Docker daemon.

No image is fetched implicitly, every container is hardened in the same way, and the daemon holds all state: a
container is found again by its name and its labels.
"""

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from docker import APIClient
from docker.errors import APIError, NotFound
from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount

from engines import seccomp
from engines.base import (
    CAPABILITIES,
    HOME,
    INSTALLATION,
    NOBODY,
    TEMPORARY,
    Capacity,
    CreateFailed,
    EngineDown,
    EngineError,
    Exited,
    Found,
    Isolation,
    LaunchSpec,
    Limits,
    Missing,
    Probe,
    Running,
    Watch,
    Written,
    check_digest,
    check_launch,
    of_run,
    owned,
    safe_name,
    signal_of,
)
from engines.docker.client import Connection, EventWatch, asked, network_is_gone, remove, translated
from engines.docker.daemon import DaemonEngine, DaemonOptions, as_the_daemon_sees
from engines.docker.images import NO_CHECK, Image
from engines.docker.network import NodeNetwork
from engines.docker.sandboxes import LABEL, MEMORY, Sandboxes, joined, sandbox_of
from engines.docker.service_networks import ServiceNetworks, Services, addresses

DEAD_RESOLVER = "127.0.0.1"
"""The container's own loopback, where nothing answers. The daemon itself resolves names in the container's
network; for all others it would ask the host's resolvers, and those queries leave the machine."""
IMAGE = "bfia.image"
"""Label with the image's name: the container itself is made from the image's id, whatever the name means later."""

GPU = "NVIDIA-GPU"
GPUS = "bfia.gpu"
"""Label with the names of a container's devices, so that every gateway of the daemon sees which are free."""
_HOLDING = ["created", "running", "paused", "restarting"]
_GPU_PAUSE = 0.5
"""the longest, in seconds, before a device is chosen again that two gateways have chosen"""


@dataclass(frozen=True)
class DockerOptions(DaemonOptions):
    """Which daemon to use, and how to run containers there."""

    network: str | None = None
    """the bridge network, created on demand; default one for the node"""
    network_mode: str = "bridge"
    """``host`` gives up isolation"""
    outside: bool = False
    """containers reach other machines"""
    instance: str = ""
    """distinguishes several gateways of one installation"""
    user: str = NOBODY
    """runs what an image would run as root"""
    read_only_root: bool = False
    """a container can write only its outputs, its log and a temporary ``/tmp``"""
    sandboxes: int = 0
    """the most that are prepared for containers to come"""
    log_size: int = 10 * 1024 * 1024
    """bytes of one log file, of which a container has three at most"""

    @property
    def dns(self) -> list[str] | None:
        """The resolvers of a container; None: the daemon's."""
        return None if self.outside or self.network_mode == "host" else [DEAD_RESOLVER]


_NOT_AT_ALL = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=("engine.docker.network_mode is host: containers are not isolated at all; use bridge",),
)
_LOG_FILES = 3
_SMALL = "size=64m"
_CONFLICT = 409
_NAME_TIMEOUT, _PAUSE = 10.0, 0.05
"""seconds; for a container of the same name that another gateway is just creating or removing"""


class ContainerdEngine(DaemonEngine):
    """Containers of one daemon; see `engines.base.Engine` for what each method promises."""

    kind = "docker"
    capabilities = CAPABILITIES

    def __init__(
        self,
        node: str,
        installation: str,
        options: DockerOptions = DockerOptions(),
    ) -> None:
        """Connects only when first used."""
        super().__init__(node, installation, options)
        self._options = options
        self._locks = tuple(threading.Lock() for _ in range(64))
        self._network: NodeNetwork | None = None
        if options.network_mode == "bridge":
            name = options.network or safe_name("bfia", node)
            owner = installation + options.instance
            self._network = NodeNetwork(
                self._client, name, self._labels, outside=options.outside, owner=owner
            )
            self._services = ServiceNetworks(self._client, name, self._labels, owner)
        most = options.sandboxes if self._network else 0
        self._kept = most * MEMORY
        """bytes of the engine that are not for runs"""
        self.sandboxes = Sandboxes(
            self._client,
            {INSTALLATION: installation, LABEL: " ".join((node, installation, options.instance))},
            self._filters(),
            most,
            options.user,
            options.dns,
        )
        self._gpus = Gpus(self._client)
        self._security_options: Sequence[str] | None = None
        self._doors: Sequence[int] = ()
        self._mountpoints: dict[str, str] = {}

    def check(self) -> None:
        with translated(EngineDown):
            self._client().ping()

    def capacity(self) -> Capacity:
        with translated(EngineDown):
            info = self._client().info()
        return Capacity(float(info["NCPU"]), int(info["MemTotal"]) - self._kept, len(_named(info)))

    def launch(self, spec: LaunchSpec) -> None:
        check_launch(spec)
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        with self._locks[hash(spec.name) % len(self._locks)], translated(CreateFailed):
            mounts = [
                as_the_daemon_sees(mount, self._options.sources, self._mountpoint)
                for mount in spec.mounts
            ]
            until = time.monotonic() + _NAME_TIMEOUT
            network_was_gone = False
            while True:
                network, hosts = self._network_of(spec)
                try:
                    with self.sandboxes.start(
                        "" if network_was_gone or spec.reach else network
                    ) as sandbox:
                        place = joined(sandbox) if sandbox else network
                        if self._create_and_start(spec, image, mounts, place, hosts):
                            return
                except APIError as error:
                    if self._network is None or network_was_gone or not network_is_gone(error):
                        raise
                    self._network.forget()
                    self._services.forget()
                    network_was_gone = True
                if time.monotonic() > until:
                    raise CreateFailed(
                        f"the name {spec.name} is taken by a container that the daemon hides"
                    )
                time.sleep(_PAUSE)

    def probe(self, name: str) -> Probe:
        found = self._inspect(name)
        if found is None:
            return Missing()
        match probe_of(found["State"]):
            case Running() as probe:
                return replace(probe, cut_off=self._networks(found) == {})
            case Exited(code=code) as probe if code:
                return replace(probe, cut_off=self._networks(found, over=True) == {})
            case probe:
                return probe

    def address(self, name: str) -> str:
        found = self._inspect(name)
        networks = self._networks(found) if found else {}
        return next((str(n["IPAddress"]) for n in networks.values() if n.get("IPAddress")), "")

    def written(self, name: str, most: int) -> Written:
        if self._inspect(name) is None:
            return Written()
        with translated(), suppress(NotFound):
            api = self._client()
            found = api.containers(
                all=True,
                size=True,
                filters={"name": f"^/{name}$"},
            )
            size = sum(int(c.get("SizeRw") or 0) for c in found)
            return Written(size, changes_of(api, name, most))
        return Written()

    def stop(self, name: str, grace: float) -> None:
        """Have the daemon send SIGTERM and then SIGKILL; ``grace`` is rounded up to whole seconds."""
        if self._inspect(name) is not None:
            with translated(), suppress(NotFound):
                self._client().stop(name, timeout=max(0, math.ceil(grace)))

    def remove(self, name: str) -> None:
        found = self._inspect(name)
        if found is not None:
            with translated():
                remove(self._client(), name)
            self.sandboxes.discard(sandbox_of(found["HostConfig"]["NetworkMode"]))

    def list(self) -> Sequence[Found]:
        seen = [(name, self._inspect(name)) for name in self._names()]
        return [
            Found(name, of_run(labels_of(one)), probe_of(one["State"]))
            for name, one in seen
            if one is not None
        ]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        over = lambda: self._names(status=["exited", "dead"])  # noqa: E731
        watch = EventWatch(self._client, self._filters(), over, on_exit, on_away)
        self._watches.append(watch)
        self.sandboxes.begin()
        return watch

    def close(self) -> None:
        self.sandboxes.close()
        super().close()

    def gateway_address(self) -> str:
        """Return the address under which containers reach this host. Raises `EngineError`."""
        return "127.0.0.1" if self._network is None else self._network.address()

    def network_id(self) -> str:
        """Return the id of the network, which is created on demand. Raises `EngineError`."""
        if self._network is None:
            return "host"
        with translated():
            return self._network.ensure()

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports, as far as we may; `isolation` reports how far."""
        self._doors = tuple(ports)
        if self._network is not None:
            self._network.close_host(ports)

    def no_way_to(self, services: Services) -> str:
        """Return why containers can be given no way to these services, empty if they can. Raises `EngineError`."""
        if not services or self._network is None or self._options.outside:
            return ""
        self._network.look()
        if not self._network.ours:
            return ""
        try:
            addresses(services)
        except CreateFailed as error:
            return str(error)
        return self._services.lacks()

    def isolation(self) -> Isolation:
        """Check what the node's networks isolate; the host's network isolates nothing."""
        if self._network is None:
            return _NOT_AT_ALL
        found, gaps = self._network.isolation(), self._services.gaps()
        return replace(found, outside=found.outside and not gaps, gaps=(*found.gaps, *gaps))

    def remove_network(self) -> None:
        """Remove the networks, if there are any. Raises `EngineError` while one is in use."""
        if self._network is not None:
            self.sandboxes.drain()
            self._services.remove()
            self._network.remove()

    def undo_network(self) -> None:
        """Remove the network if this object created it and nothing uses it. Raises `EngineError`."""
        if self._network is not None:
            self._network.undo()

    def _network_of(self, spec: LaunchSpec) -> tuple[str, dict[str, str]]:
        """Return the network of a run, and the addresses of hosts. Raises `EngineError`, APIError."""
        if self._network is None:
            return "host", {}
        before, network = self._network.host, self._network.ensure()
        if before not in ("", self._network.host):  # which the run's variables name
            raise CreateFailed("the engine's network was made anew with other addresses")
        self._network.stay_closed()
        if not spec.reach or self._options.outside or not self._network.ours:
            return network, {}
        return self._services.ensure(spec.reach, self._doors)

    def _create_and_start(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network: str,
        hosts: Mapping[str, str],
    ) -> bool:
        """Start the run; return False while the daemon does not show the holder of its name. Raises APIError."""
        api = self._client()
        try:
            with self._gpus.chosen(spec.name, spec.limits.gpu) as devices:
                container = self._create(spec, image, mounts, network, hosts, devices)
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise
            try:
                found = api.inspect_container(spec.name)
            except NotFound:
                return False
            if not owned(labels_of(found), self._node, self._installation):
                raise CreateFailed(
                    f"the name {spec.name} is taken by another installation"
                ) from error
            self.sandboxes.discard(sandbox_of(network))
            if found["State"]["Status"] != "created":
                return True
            container = found["Id"]  # created by a gateway that did not start it
        try:
            if spec.limits.gpu and self._gpus.contested(spec.name):
                remove(api, container)
                return False
            targets = [mount.target for mount in spec.mounts]
            self._images.check_executable(container, image, spec.command, spec.environment, targets)
            self._images.check_user(container, image)
            if not self._options.read_only_root:
                self._images.open_directories(container, image, targets)
            api.start(container)
        except (APIError, EngineError):
            remove(api, container)
            raise
        return True

    def _create(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network: str,
        hosts: Mapping[str, str],
        gpus: Sequence[str],
    ) -> str:
        api = self._client()
        limits = spec.limits
        host = api.create_host_config(
            network_mode=network,
            mounts=[*mounts],
            init=True,
            cap_drop=["ALL"],
            cap_add=list(spec.capabilities) or None,
            security_opt=[*self._confinement()],
            mem_limit=limits.memory,
            memswap_limit=limits.memory,
            nano_cpus=None if limits.cpu is None else round(limits.cpu * 1e9),
            pids_limit=limits.pids,
            device_requests=[DeviceRequest(device_ids=[*gpus], capabilities=[["gpu"]])]
            if gpus
            else [],
            dns=None if sandbox_of(network) else self._options.dns,
            extra_hosts=dict(hosts),
            read_only=self._options.read_only_root,
            tmpfs=self._own_folders(limits),
            shm_size=limits.memory,
            log_config=LogConfig(
                type=LogConfig.types.JSON,
                config={"max-size": str(self._options.log_size), "max-file": str(_LOG_FILES)},
            ),
        )
        created = api.create_container(
            image.digest,
            command=None if spec.command is None else list(spec.command),
            name=spec.name,
            environment=image.variables_for(spec, TEMPORARY),
            working_dir=image.working_directory(TEMPORARY),
            labels={
                **image.silenced,
                **spec.labels,
                IMAGE: spec.image,
                **({GPUS: ",".join(gpus)} if gpus else {}),
            },
            user=self._options.user if image.runs_as_root else None,
            healthcheck=NO_CHECK,
            host_config=host,
        )
        return str(created["Id"])

    def _confinement(self) -> Sequence[str]:
        """Return a container's security options. Raises `EngineDown`."""
        if self._security_options is None:
            with translated(EngineDown):
                options = ["no-new-privileges:true"]
                if seccomp.is_replaceable(self._client().info().get("SecurityOptions") or ()):
                    options.append(f"seccomp={json.dumps(seccomp.docker_profile())}")
            self._security_options = options
        return self._security_options

    def _own_folders(self, limits: Limits) -> dict[str, str]:
        """Return the folders in memory that a container has for itself, each with its mount options."""
        home = "exec,mode=1777"  # libraries load what they compiled into their cache
        if self._options.read_only_root:
            return {TEMPORARY: _SMALL, HOME: f"{home},{_SMALL}"}
        if limits.memory is not None:
            home += f",size={limits.memory}"
        return {HOME: home}

    def _inspect(self, name: str) -> Mapping[str, Any] | None:
        """Return the daemon's record of a run of ours."""
        return self._ours(name, self._client().inspect_container, "Config")

    def _networks(self, container: Mapping[str, Any], over: bool = False) -> Mapping[str, Any]:
        """Return the networks that a container is in, itself or by its sandbox.

        ``over``: it has ended, and so may its sandbox have, as with their daemon.
        """
        if sandbox := sandbox_of(container["HostConfig"]["NetworkMode"]):
            with translated():
                try:
                    container = self._client().inspect_container(sandbox)
                except NotFound:
                    return {}
            if not (over or container["State"]["Running"]):
                return {}
        return container["NetworkSettings"]["Networks"] or {}

    def _log_place(self, name: str) -> str:
        return "" if self._inspect(name) is None else f"containers/{name}"

    def _names(self, status: Sequence[str] = ()) -> Sequence[str]:
        filters = {**self._filters(), **({"status": list(status)} if status else {})}
        with translated():
            found = self._client().containers(all=True, filters=filters)
        return [container["Names"][0].lstrip("/") for container in found if container["Names"]]

    def _mountpoint(self, volume: str) -> str:
        """Return the path of a volume on the daemon's host. Raises `CreateFailed`."""
        if volume not in self._mountpoints:
            with translated(CreateFailed):
                self._mountpoints[volume] = self._client().inspect_volume(volume)["Mountpoint"]
        return self._mountpoints[volume]


_NEVER = "0001-"
_CHANGE = b'"Kind":'
"""occurs once in each change; in a name its quotes would be escaped"""


def labels_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a container's labels; the daemon says null where there are none."""
    return container["Config"].get("Labels") or {}


def probe_of(state: Mapping[str, Any]) -> Probe:
    """Return the state that the daemon's record of a container describes."""
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
                started = (
                    finished  # the daemon records the start of a very short run after its exit
                )
            return Exited(code, signal_of(code), killed, started, finished)


def changes_of(
    api: APIClient,
    container: str,
    most: int,
) -> int:
    """Count what a container created, changed or deleted in its own layer; stop soon after ``most``.

    The list may be of any length, so it is read piece by piece. Raises APIError, OSError.
    """
    found, rest = 0, b""
    with asked(api, f"containers/{container}", "changes") as raw:
        while found <= most and (piece := raw.read(65536)):
            piece = rest + piece
            found += piece.count(_CHANGE)
            rest = piece[-len(_CHANGE) + 1 :]
    return found


def _moment(text: str | None) -> datetime | None:
    """Read the daemon's time; the year 1 stands for never."""
    return None if not text or text.startswith(_NEVER) else datetime.fromisoformat(text)


def _named(info: Mapping[str, Any]) -> list[str]:
    """Return the devices in a daemon's description of itself."""
    specs = [one.get("NamedResourceSpec") or {} for one in info.get("GenericResources") or ()]
    return [str(spec["Value"]) for spec in specs if spec.get("Kind") == GPU]


class Gpus:
    """Which of a daemon's devices goes to which container."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._lock = threading.Lock()

    @contextmanager
    def chosen(self, run: str, count: int) -> Iterator[Sequence[str]]:
        """Give free devices for a run; while its container is made, other threads wait.

        Raises `CreateFailed` with the numbers, APIError.
        """
        if not count:
            yield ()
            return
        with self._lock:
            devices, holders = _named(self._client().info()), self._holders()
            holders.pop(run, None)
            free = [one for one in devices if not any(one in held for held in holders.values())]
            if len(free) < count:
                by = f", held by {', '.join(sorted(holders))}" if holders else ""
                raise CreateFailed(
                    f"needs gpu {count}, free {len(free)} of the daemon's {len(devices)}{by}"
                )
            yield free[:count]

    def contested(self, run: str) -> bool:
        """Tell whether another gateway has also given away one of the run's devices; wait a moment if so."""
        holders = self._holders()
        own = holders.pop(run, set())
        if not any(own & held for held in holders.values()):
            return False
        time.sleep(random.uniform(0, _GPU_PAUSE))
        return True

    def _holders(self) -> dict[str, set[str]]:
        """Return the containers that hold devices, each with theirs."""
        found = self._client().containers(all=True, filters={"label": [GPUS], "status": _HOLDING})
        return {
            one["Names"][0].lstrip("/"): {*one["Labels"][GPUS].split(",")}
            for one in found
            if one["Names"]
        }
