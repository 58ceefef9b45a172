"""Runs algorithm images as tasks of a Docker Swarm, through one of its managers.

The managers hold all state: a run is a service of one task, with an overlay network of its own, so that no run
reaches another. Exits are found by asking, as managers report none.
"""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import EndpointSpec, ServiceMode

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
from engines.docker.client import network_is_gone, remove, translated, words
from engines.docker.daemon import DaemonEngine, as_the_daemon_sees
from engines.image import Image
from engines.messages import start_error
from engines.registry.names import ImageName, parse_image_name
from engines.swarm.tasks import ENDING, OVER, SwarmOptions, Task, devices, ends, newest, template
from engines.watch import Follower, wait_for_end, wait_for_start

log = logging.getLogger(__name__)


_ISOLATION = Isolation(
    tasks=True,
    host=False,
    outside=False,
    gaps=(
        "containers reach other machines, and what listens on all addresses of theirs: let each machine's packet "
        "filter close docker_gwbridge but for this gateway and its storages (docs/swarm.md)",
    ),
)
_CONFLICT = 409
_PAUSE, _EVERY = 0.1, 1.0
"""seconds between two looks at a run that begins or ends, and at all runs"""
_NETWORK_SECONDS = 10.0
"""for a manager to see that a network is not in use any more"""


class SwarmEngine(DaemonEngine):
    """Tasks of one Swarm; see `engines.base.Engine` for what each method promises.

    Requests come from a machine's address, which others there share, and only its daemon knows what runs write.
    """

    kind = "swarm"
    capabilities = frozenset({"fractional_cpu", "network", "mounts", "capabilities"})

    def __init__(
        self,
        node: str,
        installation: str,
        options: SwarmOptions = SwarmOptions(),
    ) -> None:
        """Connects only when first used."""
        super().__init__(node, installation, options)
        self._options = options
        if not options.sources:
            self.capabilities = self.capabilities - {"mounts"}

    def check(self) -> None:
        with translated(EngineDown):
            swarm = self._client().info().get("Swarm") or {}
        if not swarm.get("ControlAvailable"):
            raise EngineDown(
                "the daemon is not a manager of a Swarm: docker swarm init, or name one that is"
            )

    def capacity(self) -> Capacity:
        if not (machines := self._machines()):
            raise EngineDown("none of the Swarm's machines takes runs: all are away or drained")
        return replace(_sum(machines.values()), others=_sum(self._others(machines)))

    def isolation(self) -> Isolation:
        self.check()
        return _ISOLATION

    def launch(self, spec: LaunchSpec) -> None:
        check_launch(spec)
        if spec.mounts and not self._options.sources:
            raise NotSupported(
                "no folder is shared with the machines of this Swarm: use data at a storage elsewhere (storages), "
                "or share the folder and say so (storage_source, runs_source)"
            )
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        with translated(CreateFailed):
            if self._service(spec.name) is None:
                self._check_executable(spec, image)
                self._create(spec, image)
            begun, options = partial(self._begun, spec.name), self._options
            wait_for_start(self, spec.name, begun, options.place_seconds, options.pull.deadline)

    def probe(self, name: str) -> Probe:
        service = self._service(name)
        task = self._task_of(service)
        if service is None or task is None or not task.begun:
            return Missing()
        drained = task.state == "shutdown" and not ends(
            service
        )  # Swarm ended it, which was not asked to
        if drained or (task.perhaps_lost and self._is_gone(task.machine)):
            return Missing()
        return task.probe()

    def stop(self, name: str, grace: float) -> None:
        """Have Swarm send SIGTERM, and SIGKILL after the grace that the run was started with."""
        with translated():
            wait_for_end(self, name, lambda: self._end(self._service(name)), self._options.grace)

    def remove(self, name: str) -> None:
        with translated():
            if (service := self._service(name)) is not None:
                with suppress(NotFound):
                    self._api().remove_service(service["ID"])
            elif not is_name(name) or not self._api().networks([name], filters=self._filters()):
                return
            self._remove_network(name, time.monotonic() + _NETWORK_SECONDS)

    def list(self) -> Sequence[ListedRun]:
        with translated():
            seen = [service["Spec"] for service in self._api().services(filters=self._filters())]
        return [
            ListedRun(one["Name"], run_labels(one["Labels"]), self.probe(one["Name"]))
            for one in seen
        ]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        self._sweep()
        watch = _Polling(self._over, on_exit, on_away)
        self._watches.append(watch)
        return watch

    # ------------------------------------------------------------ beginning and ending

    def _create(self, spec: LaunchSpec, image: Image) -> None:
        """Create the service unless it is there. Raises `CreateFailed` for another's, APIError."""
        api, inside = self._api(), replace(spec, labels={**image.emptied_labels, **spec.labels})
        mounts = [
            as_the_daemon_sees(mount, self._options.sources, _no_volume) for mount in spec.mounts
        ]
        cores = min((machine.cpu for machine in self._machines().values()), default=1.0)
        # by its id an image is never pulled; one of a registry, by a digest, which stands for the same content:
        # its own repository's, as another's may stand for other content on machines of another kind
        name = parse_image_name(spec.image)
        known = sorted(image.repo_digests, key=lambda one: not _same_source(one, name))
        what = next(iter(known), image.digest)
        mode = ServiceMode("replicated", replicas=1)
        endpoint = EndpointSpec(mode="dnsrr")  # an address of its own would need IPVS
        until = time.monotonic() + _NETWORK_SECONDS
        while True:
            network = self._network(spec.name)
            task = template(inside, what, image, mounts, network, cores, self._options)
            labels = {**spec.labels, "bfia.image": spec.image}
            try:
                api.create_service(
                    task,
                    name=spec.name,
                    labels=labels,
                    mode=mode,
                    endpoint_spec=endpoint,
                )
                return
            except APIError as error:
                if _exists(error):
                    if self._service(spec.name) is None:
                        raise CreateFailed(
                            f"the name {spec.name} is taken by another installation"
                        ) from error
                    return
                if not network_is_gone(error) or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)  # the network of a run of this name was just being removed

    def _begun(
        self,
        name: str,
        unplaced: bool,
        late: bool,
    ) -> bool:
        """Tell whether a run has begun. Raises what `wait_for_start` says, with the words of the Swarm."""
        if (service := self._service(name)) is None:
            raise CreateFailed("it was removed before it had begun")
        task = self._task_of(service)
        if task is not None:
            if task.begun:
                return True
            if task.over:
                raise _failure(task.error)
            if task.perhaps_lost and self._is_gone(task.machine):
                raise start_error("the machine on which it was placed is gone")
            if late:
                text = f"it did not begin in time on its machine ({task.state}): {task.error}"
                raise _failure(text)
        if unplaced and (task is None or not task.machine):
            why = task.error if task is not None else "nothing was scheduled"
            raise _failure(f"no machine of the Swarm takes it: {why}")
        return False

    def _check_executable(self, spec: LaunchSpec, image: Image) -> None:
        """Check at the manager what the image has to start, and as whom. Raises `EngineError`, APIError."""
        api = self._api()
        made = api.create_container(
            image.digest, command=None if spec.command is None else [*spec.command]
        )["Id"]
        try:
            targets = [mount.target for mount in spec.mounts]
            self._images.check_executable(made, image, spec.command, spec.environment, targets)
            self._images.check_user(made, image)
        finally:
            remove(api, made)

    def _end(self, service: Mapping[str, Any] | None) -> bool:
        """Have the task of a service end; return False if another has just changed it. Raises APIError."""
        try:
            if service is not None:
                version = service["Version"]["Index"]
                self._api().update_service(
                    service["ID"], version, task_template=ENDING, fetch_current_spec=True
                )
        except APIError as error:
            if "out of sequence" in words(error):
                return False
            if not isinstance(error, NotFound):
                raise
        return True

    # ------------------------------------------------------------ looking

    def _api(self) -> Any:
        """Return the client, most of whose calls for a Swarm have no types."""
        return self._client()

    def _service(self, name: str) -> Mapping[str, Any] | None:
        """Return the service of a run of ours."""
        return self._ours(name, self._api().inspect_service, "Spec")

    def _task_of(self, service: Mapping[str, Any] | None) -> Task | None:
        """Return the task of a run, None before there is one."""
        if service is None:
            return None
        with translated():
            return next(iter(newest(self._api().tasks(filters={"service": service["ID"]}))), None)

    def _over(self) -> Iterator[str]:
        """Yield the runs that have exited or are lost."""
        with translated():
            tasks = newest(self._api().tasks(filters=self._filters()))
        is_gone = cache(self._is_gone)
        for task in tasks:
            if task.over or (task.perhaps_lost and is_gone(task.machine)):
                yield task.name

    def _is_gone(self, machine: str) -> bool:
        """Whether a machine of the Swarm does not answer, or is none any more."""
        with translated(), suppress(NotFound):
            return bool(self._api().inspect_node(machine)["Status"]["State"] == "down")
        return True

    def _machines(self) -> Mapping[str, Capacity]:
        """Return what each machine has that takes runs. Raises `EngineDown`."""
        with translated(EngineDown):
            nodes = self._api().nodes()
            return {
                node["ID"]: self._amounts(node["Description"]["Resources"])
                for node in nodes
                if node["Status"]["State"] == "ready" and node["Spec"]["Availability"] == "active"
            }

    def _others(self, machines: Container[str]) -> Iterator[Capacity]:
        """Yield what is kept on these machines for tasks that are not ours. Raises `EngineDown`."""
        with translated(EngineDown):
            tasks = self._api().tasks(filters={"desired-state": "running"})
        for task in tasks:
            spec = task["Spec"]
            ours = belongs_to(
                (spec.get("ContainerSpec") or {}).get("Labels") or {},
                self._node,
                self._installation,
            )
            if task.get("NodeID") in machines and not ours and task["Status"]["State"] not in OVER:
                yield self._amounts((spec.get("Resources") or {}).get("Reservations") or {})

    def _amounts(self, seen: Mapping[str, Any]) -> Capacity:
        gpu = devices(seen, self._options.gpu)
        return Capacity(seen.get("NanoCPUs", 0) / 1e9, int(seen.get("MemoryBytes", 0)), gpu)

    def _log_place(self, name: str) -> str:
        task = self._task_of(self._service(name))
        if task is None or not task.begun or self._is_gone(task.machine):
            return ""
        return f"tasks/{task.id}"

    # ------------------------------------------------------------ networks

    def _network(self, name: str) -> str:
        """Return the network of a run, made here or by another thread."""
        try:
            self._api().create_network(
                name,
                driver="overlay",
                scope="swarm",
                labels=self._labels,
            )
        except APIError as error:
            if not _exists(error):
                raise
        return name

    def _remove_network(self, name: str, until: float) -> None:
        while True:
            try:
                self._api().remove_network(name)
                return
            except APIError as error:
                if (
                    isinstance(error, NotFound) or time.monotonic() > until
                ):  # the next start removes it
                    return
            time.sleep(_PAUSE)

    def _sweep(self) -> None:
        """Remove the networks of runs that are gone, as far as possible."""
        with suppress(EngineError), translated():
            api = self._api()
            there = {service["Spec"]["Name"] for service in api.services(filters=self._filters())}
            for network in api.networks(filters=self._filters()):
                if network["Name"] not in there:
                    self._remove_network(network["Name"], 0.0)


def _sum(amounts: Iterable[Capacity]) -> Capacity:
    seen = [*amounts]
    return Capacity(
        sum(one.cpu for one in seen), sum(one.memory for one in seen), sum(one.gpu for one in seen)
    )


def _same_source(image: str, name: ImageName | None) -> bool:
    """Whether an image is of the same repository."""
    other = parse_image_name(image)
    if other is None or name is None:
        return other is name
    return other.source == name.source


def _exists(error: APIError) -> bool:
    """Whether something has the name already; the managers say so with several statuses."""
    return error.status_code == _CONFLICT or "conflicts with an existing object" in words(error)


def _failure(text: str) -> EngineError:
    """Return the error that the words of a Swarm about a task stand for."""
    if "no such image" in text.lower():
        remedy = "push it to a registry that every machine reaches, and register it from there, or load it at each"
        return ImageNotFound(f"a machine of the Swarm lacks the image ({text})", remedy)
    return start_error(text)


def _no_volume(volume: str) -> str:
    raise CreateFailed(
        f"volume {volume}: a Swarm shares no volumes; name a folder (bind) that every machine has"
    )


class _Polling(Follower):
    """Reports each exit once."""

    def __init__(
        self,
        over: Callable[[], Iterator[str]],
        on_exit: Callable[[str], None],
        on_away: Callable[[str], None] | None,
    ) -> None:
        self._over = over
        self._reported: set[str] = set()
        super().__init__(_EVERY, on_exit, on_away)

    def _look(self) -> None:
        over = set(self._over())
        for name in over - self._reported:
            self.report(name)
        self._reported = over
