"""Runs algorithm images as containers of a Docker daemon.

No image is fetched implicitly, every container is hardened in the same way, and the daemon holds
all state: a container is found again by its name and its labels.
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
    JOB,
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
    Connection,
    EventWatch,
    network_is_gone,
    remove,
    streamed,
    translated,
)
from engines.docker.daemon import DaemonEngine, DaemonOptions, as_the_daemon_sees
from engines.docker.gpus import GPUS, Gpus, device_names, name_of
from engines.docker.host_rules import HostRules
from engines.docker.images import NO_CHECK
from engines.docker.member_network import MemberNetwork, NoServiceNetworks
from engines.docker.network import NodeNetwork
from engines.docker.sandboxes import LABEL, MEMORY, Sandboxes, network_mode_of, sandbox_of
from engines.docker.service_networks import ServiceNetworks, Services, addresses
from engines.image import Image
from engines.records import list_in, object_in

# The container's own loopback, at which no resolver listens. The daemon itself resolves the names
# of containers in the same network. Without this address it would pass all other names to the
# host's resolvers, and so to other machines.
DEAD_RESOLVER = "127.0.0.1"

# Label with the image's name. The container is created from the image's id, as the name may be
# given to another image later.
IMAGE = "bfia.image"

# Seconds for another gateway to finish the creation or removal of the same container, or to give up
# a GPU that both chose
NAME_TIMEOUT = 10.0
LAUNCH_PAUSE = 0.05  # seconds between attempts of a launch
LOG_FILES = 3  # the most files of a container's log

_SMALL_FOLDER = "size=64m"  # mount option
_CONFLICT = 409  # HTTP status if a name is in use
_NO_TIME = "0001-"  # beginning of the daemon's time for "never"
_STATUSES_UP = ("running", "paused", "restarting")
# Occurs once in each entry of the daemon's list of changed files (`count_changes`), and never in
# the name of a file, as the quotes inside a name are escaped.
_CHANGE = b'"Kind":'
_CHUNK = 65536  # bytes


@dataclass(frozen=True)
class DockerOptions(DaemonOptions):
    """Which daemon to use, and how to run containers there."""

    network: str | None = None  # the bridge network, created on demand; None: one of the node's own
    # The gateway's own image, if the gateway is a container in that network: it makes the rules of
    # the packet filter on the daemon's host. Empty: the gateway makes them itself.
    rules_image: str = ""
    network_mode: str = "bridge"  # "host" gives up isolation
    # True: containers reach other machines. `Isolation.outside` is the opposite: True means that
    # they do not.
    outside: bool = False
    instance: str = ""  # distinguishes several gateways of one installation
    user: str = NOBODY  # of containers whose image would run as root
    read_only_root: bool = False  # containers write only to outputs, log and a temporary ``/tmp``
    # Most network namespaces that are prepared for future containers: see `Sandboxes`
    sandboxes: int = 0
    log_size: int = 10 * 1024 * 1024  # bytes of one log file; a container has at most `LOG_FILES`

    @property
    def dns(self) -> list[str] | None:
        """The resolvers of a container; None: the ones that the daemon gives to containers."""
        if self.outside or self.network_mode == "host":
            return None
        return [DEAD_RESOLVER]


# In an `Isolation`, False means that a run can reach what the field names.
_NOT_ISOLATED = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=("engine.docker.network_mode is host: containers are not isolated at all; use bridge",),
)


class _MayPass(CreateFailed):
    """A launch failed for a cause that may pass within seconds, so it is tried again.

    The message is that of the last try if the cause stays.
    """


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
        client: Connection | None = None,
    ) -> None:
        """``client``: the connection to the daemon; None: to the daemon that the options name.

        No connection is made before the first use.
        """
        super().__init__(node, installation, options, client)
        self._options = options
        self._locks = tuple(threading.Lock() for _ in range(64))  # of launches, by hash of name
        self._network: NodeNetwork | MemberNetwork | None = None  # None: the host's network
        # Not used if runs are in the host's network.
        self._services: ServiceNetworks | NoServiceNetworks = NoServiceNetworks()
        sandbox_count = 0
        if options.network_mode == "bridge":
            self._make_networks(options, installation)
            sandbox_count = options.sandboxes
        self._reserved_memory = sandbox_count * MEMORY  # bytes; not available to runs
        sandbox_labels = {
            INSTALLATION: installation,
            LABEL: " ".join((node, installation, options.instance)),
        }
        self.sandboxes = Sandboxes(
            self._client,
            labels=sandbox_labels,
            run_filters=self._filters(),
            limit=sandbox_count,
            user=options.user,
            dns=options.dns,
        )
        self._gpus = Gpus(self._client)
        self._security_options: Sequence[str] | None = None  # None: not determined yet
        self._open_ports: Sequence[int] = ()  # ports of this host that containers may reach
        self._mountpoints: dict[str, str] = {}  # paths on the daemon's host, by volume

    def _make_networks(self, options: DockerOptions, installation: str) -> None:
        """Set the network of runs, and that of runs which need a service on another machine."""
        name = options.network or safe_name("bfia", self._node)
        if options.rules_image:
            rules = HostRules(self._client, options.rules_image)
            self._network = MemberNetwork(self._client, name, rules)
            return
        owner = installation + options.instance
        self._network = NodeNetwork(
            self._client, name, self._labels, outside=options.outside, owner=owner
        )
        self._services = ServiceNetworks(self._client, name, self._labels, owner)

    def check(self) -> None:
        """Ping the daemon."""
        with translated(EngineDown):
            self._client().ping()

    def capacity(self) -> Capacity:
        """Return the resources of the daemon's host, without the memory for sandboxes."""
        with translated(EngineDown):
            info = self._client().info()
        memory = int(info["MemTotal"]) - self._reserved_memory
        return Capacity(float(info["NCPU"]), memory, len(device_names(info)))

    def launch(self, spec: LaunchSpec) -> None:
        """Create and start the container of a run, unless it was started before."""
        check_launch(spec)
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        # One launch of a name at a time; a few locks for all names suffice.
        lock = self._locks[hash(spec.name) % len(self._locks)]
        with lock, translated(CreateFailed):
            mounts = []
            for mount in spec.mounts:
                mounts.append(as_the_daemon_sees(mount, self._options.sources, self._mountpoint))
            self._launch_until_started(spec, image, mounts)

    def _launch_until_started(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
    ) -> None:
        """Start a run.

        While the run's name is not free or another gateway chose the same GPU, this tries again for
        at most `NAME_TIMEOUT`. If the network is gone, this tries again with another network, but
        only once. Raises `CreateFailed`, APIError.
        """
        deadline = time.monotonic() + NAME_TIMEOUT
        network_was_gone = False
        while True:
            network, hosts = self._network_of(spec)
            # The ready sandboxes may be in the network that is gone, and none is in a network for
            # the services that a run has to reach.
            may_use_sandbox = not (network_was_gone or spec.reach)
            try:
                self._try_to_launch(spec, image, mounts, network, hosts, may_use_sandbox)
                return
            except _MayPass:
                if time.monotonic() > deadline:
                    raise
            except APIError as error:
                if network_was_gone or not network_is_gone(error):
                    raise
                self._forget_networks(error)
                network_was_gone = True
            time.sleep(LAUNCH_PAUSE)

    def _forget_networks(self, error: APIError) -> None:
        """Have the networks looked up again at their next use.

        Raises ``error`` if runs use the host's network, as there is none to look up.
        """
        if self._network is None:
            raise error
        self._network.forget()
        self._services.forget()

    def _try_to_launch(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network: str,
        hosts: Mapping[str, str],
        may_use_sandbox: bool,
    ) -> None:
        """Start a run in a ready sandbox, else in the network.

        ``hosts``: the addresses of the run's services by host name, as containers cannot resolve
        such names. Raises `_MayPass` if the launch has to be tried again, `CreateFailed`, APIError.
        """
        # For "" `Sandboxes.start` yields no sandbox, but still postpones the preparation of
        # further sandboxes until the launch is over.
        sandbox_network = ""
        if may_use_sandbox:
            sandbox_network = network
        job = spec.labels.get(JOB, "")
        with self.sandboxes.start(sandbox_network, job, spec.later_runs) as sandbox:
            network_mode = network
            if sandbox:
                network_mode = network_mode_of(sandbox)
            self._create_and_start(spec, image, mounts, network_mode, hosts)

    def probe(self, name: str) -> Probe:
        """Return the state of a run.

        A run is cut off if its network, or its sandbox, was removed. A run that succeeded is never
        reported as cut off: it did not need the network any more.
        """
        container = self._inspect(name)
        if container is None:
            return Missing()
        probe = probe_of(container["State"])
        match probe:
            case Running():
                is_cut_off = self._networks(container) == {}
                return replace(probe, cut_off=is_cut_off)
            case Exited(code=code) if code != 0:
                is_cut_off = self._networks(container, exited=True) == {}
                return replace(probe, cut_off=is_cut_off)
        return probe

    def address(self, name: str) -> str:
        """Return the run's address in its network; empty if it is in none."""
        container = self._inspect(name)
        if container is None:
            return ""
        networks = self._networks(container).values()
        addresses_in_networks = (network.get("IPAddress") for network in networks)
        return str(next(filter(None, addresses_in_networks), ""))

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        """Measure the container's own layer, by the daemon's figures."""
        if self._inspect(name) is None:
            return DiskUse()
        filters = {"name": f"^/{name}$"}  # a pattern; the daemon's names begin with a slash
        with translated(), suppress(NotFound):
            api = self._client()
            containers = api.containers(
                all=True,
                size=True,
                filters=filters,
            )
            size = sum(int(container.get("SizeRw") or 0) for container in containers)
            return DiskUse(size, count_changes(api, name, max_files))
        return DiskUse()  # it was removed while it was measured

    def stop(self, name: str, grace: float) -> None:
        """Have the daemon send SIGTERM and then SIGKILL.

        The daemon counts in whole seconds, so ``grace`` is rounded up.
        """
        if self._inspect(name) is None:
            return
        seconds = max(0, math.ceil(grace))
        with translated(), suppress(NotFound):
            self._client().stop(name, timeout=seconds)

    def remove(self, name: str) -> None:
        """Remove the container, then its sandbox."""
        container = self._inspect(name)
        if container is None:
            return
        with translated():
            remove(self._client(), name)
        self.sandboxes.discard(sandbox_of(container["HostConfig"]["NetworkMode"]))

    def list(self) -> Sequence[ListedRun]:
        """Return the runs of this node of this installation.

        A run that is removed during the listing is omitted.
        """
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
        """Watch the daemon's events. The first watch also starts the preparation of sandboxes."""
        watch = EventWatch(
            self._client,
            self._filters(),
            self._exited_names,
            on_exit,
            on_away,
        )
        self._watches.append(watch)
        self.sandboxes.begin()
        return watch

    def _exited_names(self) -> Sequence[str]:
        """Return the names of the runs that have exited."""
        return self._names(status=["exited", "dead"])

    def close(self) -> None:
        """Remove the unused sandboxes, then end the watches and the connection."""
        self.sandboxes.close()
        super().close()

    def gateway_address(self) -> str:
        """Return the address under which containers reach this host. Raises `EngineError`."""
        if self._network is None:
            return "127.0.0.1"
        return self._network.address()

    def network_id(self) -> str:
        """Return the id of the network, which is created on demand.

        ``host`` if containers are in the host's network. Raises `EngineError`.
        """
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

    def obstacle_to(self, services: Services) -> str:
        """Return why containers cannot be connected to these services; empty if they can.

        Raises `EngineError`.
        """
        if not services or self._is_open():
            return ""
        try:
            addresses(services)
        except CreateFailed as error:
            return str(error)
        return self._services.obstacle()

    def _is_open(self) -> bool:
        """Whether containers reach other machines without a network for services.

        That is so in the host's network, with the setting ``outside``, and in a network that the
        admin created. Raises `EngineError`.
        """
        if self._network is None or self._options.outside:
            return True
        self._network.look()  # ``is_own`` is known only after the network was looked up
        return not self._network.is_own

    def isolation(self) -> Isolation:
        """Check how far the node's networks isolate the runs.

        In the host's network nothing is isolated. Raises `EngineError`.
        """
        if self._network is None:
            return _NOT_ISOLATED
        isolation = self._network.isolation()
        gaps = self._services.gaps()
        outside = isolation.outside and not gaps  # True: other machines cannot be reached
        return replace(isolation, outside=outside, gaps=(*isolation.gaps, *gaps))

    def remove_network(self) -> None:
        """Remove the networks, if there are any. Raises `EngineError` while one is in use."""
        if self._network is not None:
            self.sandboxes.drain()
            self._services.remove()
            self._network.remove()

    def undo_network(self) -> None:
        """Remove the network if this object created it and nothing uses it.

        Raises `EngineError`.
        """
        if self._network is not None:
            self._network.undo()

    def _network_of(
        self,
        spec: LaunchSpec,
    ) -> tuple[str, dict[str, str]]:
        """Return the network of a run, and the addresses of its services by host name.

        There are no addresses unless the run gets a network for its services. Raises `EngineError`,
        APIError.
        """
        if self._network is None:
            return "host", {}
        network_id = self._ensure_network(self._network)
        is_open = self._options.outside or not self._network.is_own
        if is_open or not spec.reach:
            return network_id, {}
        return self._services.ensure(spec.reach, self._open_ports)

    @staticmethod
    def _ensure_network(network: NodeNetwork | MemberNetwork) -> str:
        """Return the id of the node's network; create it, and close this host to it, if necessary.

        Raises `CreateFailed` if the network was created again with other addresses: the run's
        variables contain the former ones, and if a gateway in a container could not close it.
        Raises `EngineError`, APIError.
        """
        host_address_before = network.host
        network_id = network.ensure()
        # "": the network was not seen before, so no run has an address of it.
        has_moved = host_address_before not in ("", network.host)
        if has_moved:
            raise CreateFailed("the engine's network was made anew with other addresses")
        network.stay_closed()
        return network_id

    def _create_and_start(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network_mode: str,
        hosts: Mapping[str, str],
    ) -> None:
        """Start the run, unless it was started before.

        Raises `_MayPass` while the daemon does not show the container that holds the run's name,
        and if another gateway chose the same GPU. Raises `CreateFailed`, APIError.
        """
        try:
            with self._gpus.choose(spec.name, spec.limits.gpu) as devices:
                container = self._create(spec, image, mounts, network_mode, hosts, devices)
        except APIError as error:
            if error.status_code != _CONFLICT:
                raise
            holder = self._holder_of_name(spec, network_mode, error)
            was_started = holder["State"]["Status"] != "created"
            if was_started:
                return
            container = holder["Id"]  # created by a gateway that did not start it
        self._start(spec, image, container)

    def _holder_of_name(
        self, spec: LaunchSpec, network_mode: str, conflict: APIError
    ) -> Mapping[str, Any]:
        """Return our own container of a run's name.

        The sandbox of the failed creation is discarded: the existing container has its own network.
        Raises `_MayPass` if the daemon does not show the container, `CreateFailed` for another
        installation's container, APIError.
        """
        try:
            holder: Mapping[str, Any] = self._client().inspect_container(spec.name)
        except NotFound as error:
            raise _MayPass(
                f"the name {spec.name} is taken by a container that the daemon hides"
            ) from error
        if not belongs_to(labels_of(holder), self._node, self._installation):
            raise CreateFailed(
                f"the name {spec.name} is taken by another installation"
            ) from conflict
        self.sandboxes.discard(sandbox_of(network_mode))
        return holder

    def _start(self, spec: LaunchSpec, image: Image, container: str) -> None:
        """Check and start a created container; remove it after an error.

        Raises `_MayPass` if another gateway chose the same GPU, `EngineError`, APIError.
        """
        api = self._client()
        try:
            is_contested = spec.limits.gpu > 0 and self._gpus.is_contested(spec.name)
            if is_contested:
                raise _MayPass("another gateway chose the same gpu at the same time")
            targets = [mount.target for mount in spec.mounts]
            self._files.check_executable(container, image, spec.command, spec.environment, targets)
            self._files.check_user(container, image)
            if not self._options.read_only_root:
                self._files.open_directories(container, image, targets)
            api.start(container)
        except (APIError, EngineError):
            remove(api, container)
            raise

    def _create(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network_mode: str,
        hosts: Mapping[str, str],
        gpus: Sequence[str],
    ) -> str:
        """Create the container of a run; return its id. Raises APIError."""
        labels = {**image.emptied_labels, **spec.labels, IMAGE: spec.image}
        if gpus:
            labels[GPUS] = ",".join(gpus)
        command = None  # None: that of the image; the same holds for `user`
        if spec.command is not None:
            command = list(spec.command)
        user = None
        if image.runs_as_root:
            user = self._options.user
        container = self._client().create_container(
            image.digest,
            command=command,
            name=spec.name,
            environment=image.variables_for(spec, TEMPORARY),
            working_dir=image.working_directory(TEMPORARY),
            labels=labels,
            user=user,
            healthcheck=NO_CHECK,
            host_config=self._host_config(spec, mounts, network_mode, hosts, gpus),
        )
        return str(container["Id"])

    def _host_config(
        self,
        spec: LaunchSpec,
        mounts: Sequence[DockerMount],
        network_mode: str,
        hosts: Mapping[str, str],
        gpus: Sequence[str],
    ) -> dict[str, Any]:
        """Return the daemon's settings for a container, such as confinement, limits and mounts."""
        limits = spec.limits
        device_requests = []
        if gpus:
            device_requests.append(DeviceRequest(device_ids=[*gpus], capabilities=[["gpu"]]))
        nano_cpus = None
        if limits.cpu is not None:
            nano_cpus = round(limits.cpu * 1e9)
        dns = self._options.dns
        if sandbox_of(network_mode):
            dns = None  # the sandbox already has the resolvers, and its network namespace is joined
        log_config = LogConfig(
            type=LogConfig.types.JSON,
            config={
                "max-size": str(self._options.log_size),
                "max-file": str(LOG_FILES),
            },
        )
        config: dict[str, Any] = self._client().create_host_config(
            network_mode=network_mode,
            mounts=[*mounts],
            init=True,
            cap_drop=["ALL"],
            cap_add=list(spec.capabilities) or None,
            security_opt=[*self._confinement()],
            mem_limit=limits.memory,
            memswap_limit=limits.memory,  # memory and swap together, so there is no swap
            nano_cpus=nano_cpus,
            pids_limit=limits.pids,
            device_requests=device_requests,
            dns=dns,
            extra_hosts=dict(hosts),
            read_only=self._options.read_only_root,
            tmpfs=self._memory_folders(limits),
            shm_size=limits.memory,
            log_config=log_config,
        )
        return config

    def _confinement(self) -> Sequence[str]:
        """Return a container's security options, which depend on the daemon.

        Raises `EngineDown`.
        """
        if self._security_options is None:
            with translated(EngineDown):
                info = self._client().info()
            options = ["no-new-privileges:true"]
            if seccomp.is_replaceable(list_in(info, "SecurityOptions")):
                profile = json.dumps(seccomp.docker_profile())
                options.append(f"seccomp={profile}")
            self._security_options = options
        return self._security_options

    def _memory_folders(self, limits: Limits) -> dict[str, str]:
        """Return a container's folders in memory with their mount options."""
        # Executable: libraries compile code into their cache in the home folder, and load it there.
        home = "exec,mode=1777"
        if self._options.read_only_root:
            return {TEMPORARY: _SMALL_FOLDER, HOME: f"{home},{_SMALL_FOLDER}"}
        if limits.memory is not None:
            home += f",size={limits.memory}"
        return {HOME: home}

    def _inspect(self, name: str) -> Mapping[str, Any] | None:
        """Return the daemon's record of one of this node's runs; None for any other name."""
        return self._own_record(name, self._client().inspect_container, "Config")

    def _networks(
        self,
        container: Mapping[str, Any],
        exited: bool = False,
    ) -> Mapping[str, Any]:
        """Return the networks of a container or, if it has one, of its sandbox.

        Empty if it is in no network, or if its sandbox is gone or does not run. ``exited``: the
        container has exited, so its sandbox need not run any more.
        """
        holder = container
        sandbox = sandbox_of(container["HostConfig"]["NetworkMode"])
        if sandbox:
            with translated():
                try:
                    holder = self._client().inspect_container(sandbox)
                except NotFound:
                    return {}
            is_up = holder["State"]["Running"]
            if not (is_up or exited):
                return {}
        return object_in(holder["NetworkSettings"], "Networks")

    def _log_holder(self, name: str) -> str:
        """Return the path of the run's container in the daemon's API; empty for an unknown run."""
        if self._inspect(name) is None:
            return ""
        return f"containers/{name}"

    def _names(self, status: Sequence[str] = ()) -> Sequence[str]:
        """Return the names of the containers of this node's runs.

        ``status``: only containers with one of these states; empty: all.
        """
        filters = dict(self._filters())
        if status:
            filters["status"] = list(status)
        with translated():
            containers = self._client().containers(all=True, filters=filters)
        # A container that is being removed has no name.
        return [name_of(container) for container in containers if container["Names"]]

    def _mountpoint(self, volume: str) -> str:
        """Return the path of a volume on the daemon's host. Raises `CreateFailed`."""
        if volume not in self._mountpoints:
            with translated(CreateFailed):
                self._mountpoints[volume] = self._client().inspect_volume(volume)["Mountpoint"]
        return self._mountpoints[volume]


def labels_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a container's labels; the daemon writes null for a container without labels."""
    return object_in(container["Config"], "Labels")


def probe_of(state: Mapping[str, Any]) -> Probe:
    """Return the state that the daemon's record of a container describes.

    A container that was created and never started is `Missing`.
    """
    status = state["Status"]
    if status == "created":
        return Missing()
    started = _read_time(state.get("StartedAt"))
    if status in _STATUSES_UP:
        return Running(started)
    finished = _read_time(state.get("FinishedAt"))
    if started is not None and finished is not None:
        # The daemon records the start of a very short run after its exit.
        started = min(started, finished)
    code = int(state["ExitCode"])
    return Exited(
        code=code,
        signal=signal_of(code),
        oom_killed=bool(state.get("OOMKilled")),
        started_at=started,
        finished_at=finished,
    )


def _read_time(text: str | None) -> datetime | None:
    """Read the daemon's time; None for "never", which it writes as the year 1."""
    if not text:
        return None
    if text.startswith(_NO_TIME):
        return None
    return datetime.fromisoformat(text)


def count_changes(
    api: APIClient,
    container: str,
    max_files: int,
) -> int:
    """Count the created, changed and deleted files in a container's own layer.

    The daemon's list of them may be of any length, so it is read in chunks, and no further once the
    count exceeds ``max_files``. Raises APIError, OSError.
    """
    count = 0
    rest = b""
    with streamed(api, f"containers/{container}/changes") as response:
        while count <= max_files:
            chunk = response.read(_CHUNK)
            if not chunk:
                break
            text = rest + chunk
            count += text.count(_CHANGE)
            rest = text[-len(_CHANGE) + 1 :]  # may begin a mark that the next chunk completes
    return count
