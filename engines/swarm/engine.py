"""Runs algorithm images as tasks of a Docker Swarm, through one of its managers.

The managers hold all state: a run is a service of one task, with an overlay network of its own, so
that no run reaches another. Exits are found by polling, as managers do not report them.
"""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import EndpointSpec, ServiceMode
from docker.types import Mount as DockerMount

from engines.base import (
    Capacity,
    CreateFailed,
    EngineDown,
    EngineError,
    ImageNotFound,
    Isolation,
    LaunchSpec,
    ListedRun,
    Missing,
    NotSupported,
    Probe,
    Watch,
    belongs_to,
    check_digest,
    check_launch,
    is_name,
    run_labels,
)
from engines.docker.client import Connection, message_of, network_is_gone, remove, translated
from engines.docker.daemon import DaemonEngine, as_the_daemon_sees
from engines.error_texts import start_error
from engines.image import Image
from engines.records import object_in
from engines.registry.names import select_digests
from engines.swarm.tasks import (
    ENDING,
    NANO,
    OVER,
    SwarmOptions,
    Task,
    devices,
    first_tasks,
    is_ending,
    run_template,
)
from engines.watch import Follower, wait_for_end, wait_for_start

log = logging.getLogger(__name__)

# True: a run cannot reach the other runs. False: it may reach its host, and other machines.
_ISOLATION = Isolation(
    tasks=True,
    host=False,
    outside=False,
    gaps=(
        "containers reach other machines, and what listens on all addresses of theirs: let each "
        "machine's packet filter close docker_gwbridge but for this gateway and its storages "
        "(bfia-gateway docs swarm)",
    ),
)
_CONFLICT = 409  # HTTP status if a name is in use
PAUSE = 0.1  # seconds between two attempts to create or remove
_POLL_INTERVAL = 1.0  # seconds between two looks for exits
_NETWORK_SECONDS = 10.0  # seconds for managers to notice that a network is unused or removed


class SwarmEngine(DaemonEngine):
    """Tasks of one Swarm. `engines.base.Engine` specifies the methods.

    Runs have no address of their own, as requests come from a machine's address, which other tasks
    share. Disk use is unknown, as only the machine's daemon knows it.
    """

    kind = "swarm"
    capabilities = frozenset({"fractional_cpu", "network", "mounts", "capabilities"})

    def __init__(
        self,
        node: str,
        installation: str,
        options: SwarmOptions = SwarmOptions(),
        client: Connection | None = None,
    ) -> None:
        """``client``: the connection to a manager; None: to the daemon that the options name.

        No connection is made before the first use.
        """
        super().__init__(node, installation, options, client)
        self._options = options
        if not options.sources:
            self.capabilities = self.capabilities - {"mounts"}

    def check(self) -> None:
        """Check that the daemon is a manager of a Swarm."""
        with translated(EngineDown):
            swarm = object_in(self._client().info(), "Swarm")
        if not swarm.get("ControlAvailable"):
            raise EngineDown(
                "the daemon is not a manager of a Swarm: docker swarm init, or name one that is"
            )

    def capacity(self) -> Capacity:
        """Return the resources of all machines that take runs, and what other tasks reserve there.

        Raises `EngineDown`, also if no machine takes runs.
        """
        machines = self._machines()
        if not machines:
            raise EngineDown("none of the Swarm's machines takes runs: all are away or drained")
        used_by_others = _sum_of(self._reserved_by_others(machines))
        return replace(_sum_of(machines.values()), others=used_by_others)

    def isolation(self) -> Isolation:
        """Check that the Swarm responds.

        The packet filters of its machines cannot be checked from here.
        """
        self.check()
        return _ISOLATION

    def launch(self, spec: LaunchSpec) -> None:
        """Create the run's service, and wait until its task has started.

        An earlier launch may have created the service.
        """
        check_launch(spec)
        if spec.mounts and not self._options.sources:
            raise NotSupported(
                "no folder is shared with the machines of this Swarm: use data at a storage "
                "elsewhere (storages), or share the folder and say so (storage_source, runs_source)"
            )
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)

        def has_started(place_time_over: bool, start_time_over: bool) -> bool:
            return self._has_started(spec.name, place_time_over, start_time_over)

        with translated(CreateFailed):
            if self._service(spec.name) is None:
                self._check_container(spec, image)
                self._create(spec, image)
            wait_for_start(
                self,
                spec.name,
                has_started,
                place_seconds=self._options.place_seconds,
                fetch_seconds=self._options.pull.max_seconds,
            )

    def probe(self, name: str) -> Probe:
        """Return the state of the run's task.

        A run that Swarm ended without our request, or whose machine is gone, is `Missing`: its exit
        is unknown.
        """
        service = self._service(name)
        task = self._task_of(service)
        if service is None or task is None:
            return Missing()
        # Swarm ends the tasks on a machine that it drains.
        is_drained = task.state == "shutdown" and not is_ending(service)
        if not task.has_started or is_drained or self._is_lost(task):
            log.warning(
                "run %s counts as missing: its task is %s, its desired state is %s (%s)",
                name,
                task.state,
                task.desired_state,
                task.error,
            )
            return Missing()
        return task.probe()

    def stop(self, name: str, grace: float) -> None:
        """Have Swarm send SIGTERM, then SIGKILL.

        The time between them is the configured ``grace`` at the run's launch, not the argument.
        """

        def request_end() -> bool:
            return self._end(self._service(name))

        with translated():
            wait_for_end(self, name, request_end, self._options.grace)

    def remove(self, name: str) -> None:
        """Remove the run's service, then its network, also if only the network still exists."""
        with translated():
            service = self._service(name)
            if service is not None:
                with suppress(NotFound):
                    self._api().remove_service(service["ID"])
            if service is not None or self._has_network(name):
                self._remove_network(name, time.monotonic() + _NETWORK_SECONDS)

    def list(self) -> Sequence[ListedRun]:
        """Return the services of this node and installation."""
        with translated():
            services = self._api().services(filters=self._filters())
        runs = []
        for service in services:
            name = service["Spec"]["Name"]
            labels = run_labels(service["Spec"]["Labels"])
            runs.append(ListedRun(name, labels, self.probe(name)))
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Poll for exits. Networks that an earlier process did not remove are removed first."""
        self._remove_unused_networks()
        watch = _Polling(self._names_of_ended_runs, on_exit, on_away)
        self._watches.append(watch)
        return watch

    # ------------------------------------------------------------ starting and ending

    def _create(self, spec: LaunchSpec, image: Image) -> None:
        """Create the service of a run unless it exists.

        Raises APIError, and `CreateFailed` if another installation has a service of this name.
        """
        mounts = []
        for mount in spec.mounts:
            mounts.append(as_the_daemon_sees(mount, self._options.sources, _no_volume))
        deadline = time.monotonic() + _NETWORK_SECONDS
        while True:
            network = self._network(spec.name)
            try:
                self._create_service(spec, image, mounts, network)
                return
            except APIError as error:
                if _exists_already(error):
                    self._check_owner(spec.name, error)
                    return
                # The network of an earlier run of this name may just have been removed.
                may_recover = network_is_gone(error) and time.monotonic() <= deadline
                if not may_recover:
                    raise
            time.sleep(PAUSE)

    def _check_owner(self, name: str, conflict: APIError) -> None:
        """Raise `CreateFailed` unless the service with the name of a run is our own."""
        if self._service(name) is None:
            raise CreateFailed(f"the name {name} is taken by another installation") from conflict

    def _create_service(
        self,
        spec: LaunchSpec,
        image: Image,
        mounts: Sequence[DockerMount],
        network: str,
    ) -> None:
        """Create the service of a run in a network. Raises `EngineDown`, APIError."""
        # The cores of the smallest machine, or 1 while no machine takes runs. A run without a
        # reservation may be placed on that machine, and its limit must not exceed these cores.
        cores = min((machine.cpu for machine in self._machines().values()), default=1.0)
        task = run_template(
            # The image's labels are emptied, as other programs on the machine may act on them.
            replace(spec, labels={**image.emptied_labels, **spec.labels}),
            reference=_reference_of(image, spec.image),
            image=image,
            mounts=mounts,
            network=network,
            cores=cores,
            options=self._options,
        )
        self._api().create_service(
            task,
            name=spec.name,
            labels={**spec.labels, "bfia.image": spec.image},
            mode=ServiceMode("replicated", replicas=1),
            endpoint_spec=EndpointSpec(mode="dnsrr"),  # a virtual address would need IPVS
        )

    def _has_started(self, name: str, place_time_over: bool, start_time_over: bool) -> bool:
        """Whether a run has started; the flags are those of `engines.watch.HasStarted`.

        Raises a subclass of `EngineError` if the run will not start.
        """
        service = self._service(name)
        if service is None:
            raise CreateFailed("it was removed before it had begun")
        task = self._task_of(service)
        if task is None:
            if place_time_over:
                raise _unplaced_error("nothing was scheduled")
            return False
        if task.has_started:
            return True
        self._check_may_start(task, place_time_over, start_time_over)
        return False

    def _check_may_start(self, task: Task, place_time_over: bool, start_time_over: bool) -> None:
        """Raise a subclass of `EngineError` if a task will not start."""
        if task.is_over:
            raise _task_error(task.error)
        if self._is_lost(task):
            raise start_error("the machine on which it was placed is gone")
        if start_time_over:
            raise _task_error(
                f"it did not begin in time on its machine ({task.state}): {task.error}"
            )
        if place_time_over and not task.machine:
            raise _unplaced_error(task.error)

    def _check_container(self, spec: LaunchSpec, image: Image) -> None:
        """Check the executable of a run and the user of its image.

        The manager's daemon creates a container for the checks, which is never started. Raises
        `EngineError`, APIError.
        """
        api = self._api()
        command = None
        if spec.command is not None:
            command = list(spec.command)
        container = api.create_container(image.digest, command=command)["Id"]
        try:
            targets = [mount.target for mount in spec.mounts]
            self._files.check_executable(container, image, spec.command, spec.environment, targets)
            self._files.check_user(container, image)
        finally:
            remove(api, container)

    def _end(self, service: Mapping[str, Any] | None) -> bool:
        """Have Swarm end the task of a service; a service that is gone needs no request.

        Returns False if another client has just changed the service. Swarm then refuses the
        request, and the caller repeats the call. Raises APIError.
        """
        if service is None:
            return True
        version = service["Version"]["Index"]
        try:
            with suppress(NotFound):
                self._api().update_service(
                    service["ID"], version, task_template=ENDING, fetch_current_spec=True
                )
        except APIError as error:
            was_changed = "out of sequence" in message_of(error)
            if was_changed:
                return False
            raise
        return True

    # ------------------------------------------------------------ looking up

    def _api(self) -> Any:
        """Return the client; most of its calls for a Swarm have no types."""
        return self._client()

    def _service(self, name: str) -> Mapping[str, Any] | None:
        """Return the service of one of this node's runs; None if there is none."""
        return self._own_record(name, self._api().inspect_service, "Spec")

    def _task_of(
        self,
        service: Mapping[str, Any] | None,
    ) -> Task | None:
        """Return the task of a run's service; None without a service or before it has a task."""
        if service is None:
            return None
        with translated():
            tasks = first_tasks(self._api().tasks(filters={"service": service["ID"]}))
        return next(iter(tasks), None)

    def _names_of_ended_runs(self) -> set[str]:
        """Return the runs that have exited or are lost."""
        with translated():
            tasks = first_tasks(self._api().tasks(filters=self._filters()))
        is_gone = cache(self._is_gone)  # asks only once about each machine
        names = set()
        for task in tasks:
            is_lost = task.may_be_lost and is_gone(task.machine)
            if task.is_over or is_lost:
                names.add(task.name)
        return names

    def _is_lost(self, task: Task) -> bool:
        """Whether the machine of a task is gone, so that its exit will never be known."""
        return task.may_be_lost and self._is_gone(task.machine)

    def _is_gone(self, machine: str) -> bool:
        """Whether a machine does not respond, or has left the Swarm."""
        with translated(), suppress(NotFound):
            return bool(self._api().inspect_node(machine)["Status"]["State"] == "down")
        return True

    def _machines(self) -> Mapping[str, Capacity]:
        """Return the capacity of each machine that takes runs; the keys are the machines' ids.

        Raises `EngineDown`.
        """
        with translated(EngineDown):
            nodes = self._api().nodes()
        machines = {}
        for node in filter(_takes_tasks, nodes):
            machines[node["ID"]] = self._capacity_of(node["Description"]["Resources"])
        return machines

    def _reserved_by_others(self, machines: Container[str]) -> Iterator[Capacity]:
        """Yield the reservations on these machines of tasks that are not this node's runs.

        Raises `EngineDown`.
        """
        with translated(EngineDown):
            tasks = self._api().tasks(filters={"desired-state": "running"})
        for task in tasks:
            is_own_run = belongs_to(_labels_of(task["Spec"]), self._node, self._installation)
            is_over = task["Status"]["State"] in OVER
            if is_own_run or is_over:
                continue
            if task.get("NodeID") in machines:
                yield self._capacity_of(_reservations_of(task["Spec"]))

    def _capacity_of(self, resources: Mapping[str, Any]) -> Capacity:
        """Return resources in Swarm's form as a capacity."""
        return Capacity(
            cpu=resources.get("NanoCPUs", 0) / NANO,
            memory=int(resources.get("MemoryBytes", 0)),
            gpu=devices(resources, self._options.gpu),
        )

    def _log_holder(self, name: str) -> str:
        """Return the path of the run's task in the daemon's API.

        Empty if the task never started, or its machine is gone.
        """
        task = self._task_of(self._service(name))
        if task is None or not task.has_started:
            return ""
        if self._is_gone(task.machine):
            return ""
        return f"tasks/{task.id}"

    # ------------------------------------------------------------ networks

    def _network(self, name: str) -> str:
        """Create the network of a run unless it exists, and return its name: the name of the run.

        Raises APIError.
        """
        try:
            self._api().create_network(name, driver="overlay", scope="swarm", labels=self._labels)
        except APIError as error:
            if not _exists_already(error):
                raise
        return name

    def _has_network(self, name: str) -> bool:
        """Whether a network of one of this node's runs exists. Raises APIError."""
        return is_name(name) and bool(self._api().networks([name], filters=self._filters()))

    def _remove_network(self, name: str, deadline: float) -> None:
        """Remove a network once it is not in use.

        If it is still in use at the deadline (on the monotonic clock), its removal is left to the
        gateway's next start.
        """
        while True:
            try:
                with suppress(NotFound):
                    self._api().remove_network(name)
                return
            except APIError:
                if time.monotonic() > deadline:
                    return
            time.sleep(PAUSE)

    def _remove_unused_networks(self) -> None:
        """Remove the networks of runs that are gone, as far as possible."""
        with suppress(EngineError), translated():
            api = self._api()
            services = api.services(filters=self._filters())
            runs = {service["Spec"]["Name"] for service in services}
            for network in api.networks(filters=self._filters()):
                if network["Name"] not in runs:
                    self._remove_network(network["Name"], deadline=0.0)  # one attempt, no wait


class _Polling(Follower):
    """Reports each exit once."""

    def __init__(
        self,
        find_ended: Callable[[], set[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        """``find_ended`` returns the names of all runs that have ended."""
        self._find_ended = find_ended
        self._reported: set[str] = set()
        super().__init__(_POLL_INTERVAL, on_exit, on_away)

    def _look(self) -> None:
        """Report the runs that have ended since the last look."""
        ended = self._find_ended()
        for name in ended - self._reported:
            self.report(name)
        self._reported = ended  # without the runs that were removed since


def _takes_tasks(node: Mapping[str, Any]) -> bool:
    """Whether a machine responds and its admin lets it take tasks."""
    is_ready = node["Status"]["State"] == "ready"
    return is_ready and bool(node["Spec"]["Availability"] == "active")


def _labels_of(task_template: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of a task's container; empty for a task without any."""
    container = object_in(task_template, "ContainerSpec")
    return object_in(container, "Labels")


def _reservations_of(task_template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the resources that Swarm reserves for a task; empty without a reservation."""
    resources = object_in(task_template, "Resources")
    return object_in(resources, "Reservations")


def _sum_of(capacities: Iterable[Capacity]) -> Capacity:
    """Return the sum of several machines' resources."""
    cpu = 0.0
    memory = 0
    gpu = 0
    for capacity in capacities:
        cpu += capacity.cpu
        memory += capacity.memory
        gpu += capacity.gpu
    return Capacity(cpu, memory, gpu)


def _reference_of(image: Image, name: str) -> str:
    """Return how machines name an image: by a digest of its registry, else by its id.

    A digest in the repository of ``name`` comes first: a digest in another repository may name
    other content for machines of another architecture. By its id an image is never pulled, so each
    machine must have it.
    """
    preferred = select_digests(name, image.repo_digests)
    references = [*preferred, *image.repo_digests, image.digest]
    return references[0]


def _exists_already(error: APIError) -> bool:
    """Whether a name is in use, for which the managers have two kinds of refusals."""
    if error.status_code == _CONFLICT:
        return True
    return "conflicts with an existing object" in message_of(error)


def _unplaced_error(why: str) -> EngineError:
    """Return the error for a run that no machine has taken in time."""
    return _task_error(f"no machine of the Swarm takes it: {why}")


def _task_error(text: str) -> EngineError:
    """Return the error behind Swarm's words about a task."""
    if "no such image" in text.lower():
        remedy = (
            "push it to a registry that every machine reaches, and register it from there, or "
            "load it at each"
        )
        return ImageNotFound(f"a machine of the Swarm lacks the image ({text})", remedy)
    return start_error(text)


def _no_volume(volume: str) -> str:
    """Refuse a volume. Raises `CreateFailed`."""
    raise CreateFailed(
        f"volume {volume}: a Swarm shares no volumes; name a folder (bind) that every machine has"
    )
