"""Runs algorithm images as containers of a Docker daemon.

No image is fetched implicitly, every container is hardened in the same way, and the daemon holds all
state: a container is found again by its name and its labels.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
    DiskUse,
    EngineDown,
    EngineError,
    Exited,
    Isolation,
    LaunchSpec,
    Limits,
    ListedRun,
    Missing,
    Probe,
    Running,
    Watch,
    belongs_to,
    check_digest,
    check_launch,
    run_labels,
    safe_name,
    signal_of,
)
from engines.docker.client import (
    EventWatch,
    network_is_gone,
    remove,
    streamed,
    translated,
)
from engines.docker.daemon import DaemonEngine, DaemonOptions, as_the_daemon_sees
from engines.docker.gpus import GPUS, Gpus, device_names, name_of
from engines.docker.images import NO_CHECK
from engines.docker.network import NodeNetwork
from engines.docker.sandboxes import LABEL, MEMORY, Sandboxes, network_mode_of, sandbox_of
from engines.docker.service_networks import ServiceNetworks, Services, addresses
from engines.image import Image

# The container's own loopback, without a resolver. The daemon itself resolves names in the container's
# network; for all others it would ask the host's resolvers, and those queries leave the machine.
DEAD_RESOLVER = "127.0.0.1"

# Label with the image's name: the container is made from the image's id, as the name may move later.
IMAGE = "bfia.image"

NAME_TIMEOUT = 10.0  # seconds; for another gateway that is creating or removing the same container
LAUNCH_PAUSE = 0.05  # seconds between attempts of a launch
LOG_FILES = 3  # per container

_SMALL_FOLDER = "size=64m"
_CONFLICT = 409
_NO_TIME = "0001-"  # beginning of the daemon's time for "never"
_CHANGE = b'"Kind":'  # occurs once in each change; quotes inside a name are escaped
_CHUNK = 65536  # bytes


@dataclass(frozen=True)
class DockerOptions(DaemonOptions):
    """Which daemon to use, and how to run containers there."""

    network: str | None = None  # the bridge network, created on demand; None: one of the node's own
    network_mode: str = "bridge"  # "host" gives up isolation
    outside: bool = False  # containers reach other machines
    instance: str = ""  # distinguishes several gateways of one installation
    user: str = NOBODY  # of containers whose image would run as root
    read_only_root: bool = False  # containers write only to outputs, log and a temporary ``/tmp``
    sandboxes: int = 0  # the most that are prepared for future containers
    log_size: int = 10 * 1024 * 1024  # bytes of one log file; a container has at most `LOG_FILES`

    @property
    def dns(self) -> list[str] | None:
        """The resolvers of a container; None: the daemon's."""
        if self.outside or self.network_mode == "host":
            return None
        return [DEAD_RESOLVER]


_NOT_ISOLATED = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=("engine.docker.network_mode is host: containers are not isolated at all; use bridge",),
)


class ContainerdEngine(DaemonEngine):
    """Starts containers through the Docker daemon, whose runtime is containerd.

    `engines.base.Engine` specifies the methods.
    """

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
        sandbox_count = 0
        if self._network is not None:
            sandbox_count = options.sandboxes
        self._reserved_memory = sandbox_count * MEMORY  # bytes; not available to runs
        sandbox_labels = {
            INSTALLATION: installation,
            LABEL: " ".join((node, installation, options.instance)),
        }
        self.sandboxes = Sandboxes(
            self._client,
            sandbox_labels,
            self._filters(),
            sandbox_count,
            options.user,
            options.dns,
        )
        self._gpus = Gpus(self._client)
        self._security_options: Sequence[str] | None = None
        self._open_ports: Sequence[int] = ()
        self._mountpoints: dict[str, str] = {}

    def check(self) -> None:
        with translated(EngineDown):
            self._client().ping()

    def capacity(self) -> Capacity:
        with translated(EngineDown):
            info = self._client().info()
        memory = int(info["MemTotal"]) - self._reserved_memory
        return Capacity(float(info["NCPU"]), memory, len(device_names(info)))

    def launch(self, spec: LaunchSpec) -> None:
        check_launch(spec)
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        lock = self._locks[hash(spec.name) % len(self._locks)]
        with lock, translated(CreateFailed):
            mounts = [
                as_the_daemon_sees(mount, self._options.sources, self._mountpoint)
                for mount in spec.mounts
            ]
            self._launch_until_started(spec, image, mounts)

    def _launch_until_started(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
    ) -> None:
        """Start a run, again if its name is not free yet or, once, if the network disappeared."""
        deadline = time.monotonic() + NAME_TIMEOUT
        network_was_gone = False
        while True:
            network, hosts = self._network_of(spec)
            # A sandbox may be in the network that is gone, and has no way to a run's services.
            sandbox_network = "" if network_was_gone or spec.reach else network
            try:
                with self.sandboxes.start(sandbox_network) as sandbox:
                    network_mode = network_mode_of(sandbox) if sandbox else network
                    if self._create_and_start(spec, image, mounts, network_mode, hosts):
                        return
            except APIError as error:
                if self._network is None or network_was_gone or not network_is_gone(error):
                    raise
                self._network.forget()
                self._services.forget()
                network_was_gone = True
            if time.monotonic() > deadline:
                raise CreateFailed(
                    f"the name {spec.name} is taken by a container that the daemon hides"
                )
            time.sleep(LAUNCH_PAUSE)

    def probe(self, name: str) -> Probe:
        container = self._inspect(name)
        if container is None:
            return Missing()
        probe = probe_of(container["State"])
        if isinstance(probe, Running):
            return replace(probe, cut_off=self._networks(container) == {})
        if isinstance(probe, Exited) and probe.code:
            return replace(probe, cut_off=self._networks(container, over=True) == {})
        return probe

    def address(self, name: str) -> str:
        container = self._inspect(name)
        if container is None:
            return ""
        for network in self._networks(container).values():
            if network.get("IPAddress"):
                return str(network["IPAddress"])
        return ""

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        if self._inspect(name) is None:
            return DiskUse()
        filters = {"name": f"^/{name}$"}
        with translated(), suppress(NotFound):
            api = self._client()
            containers = api.containers(all=True, size=True, filters=filters)
            size = sum(int(container.get("SizeRw") or 0) for container in containers)
            return DiskUse(size, changes_of(api, name, max_files))
        return DiskUse()

    def stop(self, name: str, grace: float) -> None:
        """Have the daemon send SIGTERM and then SIGKILL; ``grace`` is rounded up to whole seconds."""
        if self._inspect(name) is not None:
            with translated(), suppress(NotFound):
                self._client().stop(name, timeout=max(0, math.ceil(grace)))

    def remove(self, name: str) -> None:
        container = self._inspect(name)
        if container is None:
            return
        with translated():
            remove(self._client(), name)
        self.sandboxes.discard(sandbox_of(container["HostConfig"]["NetworkMode"]))

    def list(self) -> Sequence[ListedRun]:
        runs = []
        for name in self._names():
            container = self._inspect(name)
            if container is not None:
                labels = run_labels(labels_of(container))
                runs.append(ListedRun(name, labels, probe_of(container["State"])))
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        watch = EventWatch(self._client, self._filters(), self._exited_names, on_exit, on_away)
        self._watches.append(watch)
        self.sandboxes.begin()
        return watch

    def _exited_names(self) -> Sequence[str]:
        return self._names(status=["exited", "dead"])

    def close(self) -> None:
        self.sandboxes.close()
        super().close()

    def gateway_address(self) -> str:
        """Return the address under which containers reach this host. Raises `EngineError`."""
        if self._network is None:
            return "127.0.0.1"
        return self._network.address()

    def network_id(self) -> str:
        """Return the id of the network, which is created on demand. Raises `EngineError`."""
        if self._network is None:
            return "host"
        with translated():
            return self._network.ensure()

    def close_host(self, ports: Sequence[int]) -> None:
        """Close this host to containers, except for these ports.

        The gateway may lack the rights; `isolation` reports the result.
        """
        self._open_ports = tuple(ports)
        if self._network is not None:
            self._network.close_host(ports)

    def no_way_to(self, services: Services) -> str:
        """Return why containers cannot be connected to these services; empty if they can.

        Raises `EngineError`.
        """
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
        """Check the isolation by the node's networks; the host's network isolates nothing."""
        if self._network is None:
            return _NOT_ISOLATED
        isolation = self._network.isolation()
        gaps = self._services.gaps()
        outside = isolation.outside and not gaps
        return replace(isolation, outside=outside, gaps=(*isolation.gaps, *gaps))

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
        host_before = self._network.host
        network = self._network.ensure()
        if host_before not in ("", self._network.host):  # the run's variables name the old address
            raise CreateFailed("the engine's network was made anew with other addresses")
        self._network.stay_closed()
        if not spec.reach or self._options.outside or not self._network.ours:
            return network, {}
        return self._services.ensure(spec.reach, self._open_ports)

    def _create_and_start(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network: str,
        hosts: Mapping[str, str],
    ) -> bool:
        """Start the run; return False if it has to be tried again.

        That is while the daemon does not show the container that holds the run's name, and if another
        gateway chose the same GPU. Raises APIError.
        """
        try:
            with self._gpus.choose(spec.name, spec.limits.gpu) as devices:
                container = self._create(spec, image, mounts, network, hosts, devices)
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise
            holder = self._holder_of_name(spec, network, error)
            if holder is None:
                return False
            if holder["State"]["Status"] != "created":
                return True
            container = holder["Id"]  # created by a gateway that did not start it
        return self._start(spec, image, container)

    def _holder_of_name(
        self, spec: LaunchSpec, network: str, conflict: APIError
    ) -> Mapping[str, Any] | None:
        """Return our own container of a run's name; None if the daemon does not show it.

        Raises `CreateFailed` for another installation's container, APIError.
        """
        try:
            holder: Mapping[str, Any] = self._client().inspect_container(spec.name)
        except NotFound:
            return None
        if not belongs_to(labels_of(holder), self._node, self._installation):
            raise CreateFailed(
                f"the name {spec.name} is taken by another installation"
            ) from conflict
        self.sandboxes.discard(sandbox_of(network))
        return holder

    def _start(self, spec: LaunchSpec, image: Image, container: str) -> bool:
        """Check and start a created container, or remove it; return False if its GPU is contested."""
        api = self._client()
        try:
            if spec.limits.gpu and self._gpus.is_contested(spec.name):
                remove(api, container)
                return False
            targets = [mount.target for mount in spec.mounts]
            self._files.check_executable(container, image, spec.command, spec.environment, targets)
            self._files.check_user(container, image)
            if not self._options.read_only_root:
                self._files.open_directories(container, image, targets)
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
        """Create the container of a run; return its id. Raises APIError."""
        labels = {**image.emptied_labels, **spec.labels, IMAGE: spec.image}
        if gpus:
            labels[GPUS] = ",".join(gpus)
        container = self._client().create_container(
            image.digest,
            command=None if spec.command is None else list(spec.command),
            name=spec.name,
            environment=image.variables_for(spec, TEMPORARY),
            working_dir=image.working_directory(TEMPORARY),
            labels=labels,
            user=self._options.user if image.runs_as_root else None,
            healthcheck=NO_CHECK,
            host_config=self._host_config(spec, mounts, network, hosts, gpus),
        )
        return str(container["Id"])

    def _host_config(
        self,
        spec: LaunchSpec,
        mounts: Sequence[DockerMount],
        network: str,
        hosts: Mapping[str, str],
        gpus: Sequence[str],
    ) -> dict[str, Any]:
        limits = spec.limits
        device_requests = []
        if gpus:
            device_requests.append(DeviceRequest(device_ids=[*gpus], capabilities=[["gpu"]]))
        log_config = LogConfig(
            type=LogConfig.types.JSON,
            config={"max-size": str(self._options.log_size), "max-file": str(LOG_FILES)},
        )
        config: dict[str, Any] = self._client().create_host_config(
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
            device_requests=device_requests,
            dns=None if sandbox_of(network) else self._options.dns,
            extra_hosts=dict(hosts),
            read_only=self._options.read_only_root,
            tmpfs=self._memory_folders(limits),
            shm_size=limits.memory,
            log_config=log_config,
        )
        return config

    def _confinement(self) -> Sequence[str]:
        """Return a container's security options. Raises `EngineDown`."""
        if self._security_options is None:
            with translated(EngineDown):
                options = ["no-new-privileges:true"]
                if seccomp.is_replaceable(self._client().info().get("SecurityOptions") or ()):
                    options.append(f"seccomp={json.dumps(seccomp.docker_profile())}")
            self._security_options = options
        return self._security_options

    def _memory_folders(self, limits: Limits) -> dict[str, str]:
        """Return a container's folders in memory with their mount options."""
        home = "exec,mode=1777"  # libraries load the code that they compile into their cache
        if self._options.read_only_root:
            return {TEMPORARY: _SMALL_FOLDER, HOME: f"{home},{_SMALL_FOLDER}"}
        if limits.memory is not None:
            home += f",size={limits.memory}"
        return {HOME: home}

    def _inspect(self, name: str) -> Mapping[str, Any] | None:
        """Return the daemon's record of a run of ours."""
        return self._ours(name, self._client().inspect_container, "Config")

    def _networks(self, container: Mapping[str, Any], over: bool = False) -> Mapping[str, Any]:
        """Return the networks of a container or, if it has one, of its sandbox.

        ``over``: the container has exited, and its sandbox may have exited as well.
        """
        sandbox = sandbox_of(container["HostConfig"]["NetworkMode"])
        if sandbox:
            with translated():
                try:
                    container = self._client().inspect_container(sandbox)
                except NotFound:
                    return {}
            if not (over or container["State"]["Running"]):
                return {}
        return container["NetworkSettings"]["Networks"] or {}

    def _log_place(self, name: str) -> str:
        if self._inspect(name) is None:
            return ""
        return f"containers/{name}"

    def _names(self, status: Sequence[str] = ()) -> Sequence[str]:
        filters = dict(self._filters())
        if status:
            filters["status"] = list(status)
        with translated():
            containers = self._client().containers(all=True, filters=filters)
        return [name_of(container) for container in containers if container["Names"]]

    def _mountpoint(self, volume: str) -> str:
        """Return the path of a volume on the daemon's host. Raises `CreateFailed`."""
        if volume not in self._mountpoints:
            with translated(CreateFailed):
                self._mountpoints[volume] = self._client().inspect_volume(volume)["Mountpoint"]
        return self._mountpoints[volume]


def labels_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a container's labels; the daemon says null for none."""
    return container["Config"].get("Labels") or {}


def probe_of(state: Mapping[str, Any]) -> Probe:
    """Return the state that the daemon's record of a container describes."""
    started = _read_time(state.get("StartedAt"))
    status = state["Status"]
    if status == "created":
        return Missing()
    if status in ("running", "paused", "restarting"):
        return Running(started)
    code = int(state["ExitCode"])
    killed = bool(state.get("OOMKilled"))
    finished = _read_time(state.get("FinishedAt"))
    if started is not None and finished is not None and finished < started:
        started = finished  # the daemon records the start of a very short run after its exit
    return Exited(code, signal_of(code), killed, started, finished)


def _read_time(text: str | None) -> datetime | None:
    """Read the daemon's time; None for never, which it writes as the year 1."""
    if not text or text.startswith(_NO_TIME):
        return None
    return datetime.fromisoformat(text)


def changes_of(
    api: APIClient,
    container: str,
    limit: int,
) -> int:
    """Count the created, changed and deleted files in a container's own layer; stop soon after ``limit``.

    The list may be of any length, so it is read in chunks. Raises APIError, OSError.
    """
    count = 0
    rest = b""
    with streamed(api, f"containers/{container}/changes") as response:
        while count <= limit:
            chunk = response.read(_CHUNK)
            if not chunk:
                break
            text = rest + chunk
            count += text.count(_CHANGE)
            rest = text[-len(_CHANGE) + 1 :]  # may begin a mark that the next chunk completes
    return count
