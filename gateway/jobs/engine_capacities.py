"""The capacities of the node's engines, observed every few seconds and bounded by the settings.

While an engine does not respond, its totals are the last ones that this process observed. Before
its first response they are the last ones stored: by this gateway for its main engine, by any
gateway of the node for other engines. An engine with neither observed nor stored totals has none,
but the main one counts as having the totals of this machine. The main engine's name is "".
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import structlog

from engines.base import Capacity, Engine, EngineError
from engines.process.engine import this_machine
from gateway.config.schema import Settings
from gateway.config.schema.engine import NamedEngine
from gateway.config.schema.jobs import ResourceSettings
from gateway.data.reading import nearest_existing
from gateway.domain import resources
from gateway.domain.amounts import CORE, GIB, Amounts
from gateway.domain.resources import Defaults, EngineCapacity, NodeCapacity
from gateway.domain.run import Run
from gateway.domain.spec import moment
from gateway.errors import GatewayError
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import Loop
from gateway.store.repositories import EngineTotals

log = structlog.get_logger(__name__)

INTERVAL = 15.0  # seconds between two observations of an engine
FIRST_LOOK = 10.0  # seconds that a caller waits for the first responses of the engines
# Share of its engine's memory, and of the node's disk, that a run may use at most if neither its
# job nor the settings limit it.
SHARE = 0.75
# Engines observed in parallel, so that one that hangs does not delay the others.
_MAX_WORKERS = 4


def _ignore_change() -> None:
    """Do nothing about a change of an engine."""


@dataclass(frozen=True)
class _Observation:
    """The result of asking an engine for its capacity."""

    capacity: Capacity | None  # the last one known; None if the engine has never responded
    away_since: datetime | None = None  # None: it responds
    cause: str = ""  # why the engine does not respond; empty while it responds

    @property
    def responds(self) -> bool:
        """Whether the engine responds now."""
        return self.away_since is None

    def differs_from(self, previous: "_Observation") -> bool:
        """Return whether the change since the previous observation may affect waiting jobs."""
        return self.capacity != previous.capacity or self.responds != previous.responds


class EngineCapacities:
    """The capacities of the node's engines; call it for the capacity of the node."""

    def __init__(
        self,
        context: NodeContext,
        engines: Mapping[str, Engine],
        settings: Settings,
        on_change: Callable[[], None] = _ignore_change,
        first_look: float = FIRST_LOOK,
    ) -> None:
        """``on_change`` is called when an engine changes: its capacity, or whether it responds.

        ``first_look``: seconds that a caller waits for the first responses of the engines.
        """
        self._node = context.node
        self._engines = engines
        self._settings = settings
        # The settings that bound each engine's cores and memory, by the engine's name.
        self._bounds: dict[str, NamedEngine | ResourceSettings] = {"": settings.resources}
        self._bounds |= settings.engines
        self._stored_totals = EngineTotals(context.store)
        self._clock = context.clock
        self._first_look = first_look
        # The gateways of a node may have different main engines, so each stores the totals of its
        # own under its own name.
        self._main_name = context.owner or "main"
        self._on_change = on_change
        self._last_stored: dict[str, Capacity] = {}
        self._observations: dict[str, _Observation] = {}
        self._locks = {name: threading.Lock() for name in engines}
        self.defaults = task_defaults(settings)

        def all_engines(_: object) -> Iterable[str]:
            return engines

        self.loop = Loop(
            "engines",
            self.look,
            all_engines,
            every=INTERVAL,
            workers=min(len(engines), _MAX_WORKERS),
        )

    def __call__(self) -> NodeCapacity:
        """Return the node's capacity.

        A main engine without observed or stored totals counts as having those of this machine.
        """
        further = self.by_engine()
        main = further.pop("")
        total = main.total
        cores = main.cores
        if total is None:
            machine = this_machine()
            total = self._bounded("", machine)
            cores = machine.cpu
        return NodeCapacity(
            node=self._node,
            total=replace(total, disk=self._disk),
            cores=cores,
            share=self._settings.resources.job_share,
            defaults=self.defaults,
            further=further,
            engine=self._engines[""].kind,
            others=main.others,
        )

    def by_engine(self) -> dict[str, EngineCapacity]:
        """Return the capacity last observed of each engine.

        Engines that were not observed yet are waited for briefly.
        """
        unobserved = [name for name in self._engines if name not in self._observations]
        if unobserved:
            self._wait_for(unobserved)
        return {name: self._capacity(name) for name in self._engines}

    def responding(self) -> dict[str, bool]:
        """Return whether each engine responds, by its name in metrics."""
        return {name or "main": not engine.away for name, engine in self.by_engine().items()}

    def ceilings(self, run: Run) -> Mapping[str, float | None]:
        """Return a run's limits; missing limits are derived.

        In ``run.limits``, None is a missing limit of cpu, memory or disk. Derived limits follow
        from the capacity of the run's engine and are not reserved. In the result, None means that
        there is no limit: cores have none if any engine of the node cannot limit fractions of a
        core.
        """
        requested = [run.limits.get(kind) for kind in ("cpu", "memory", "disk")]
        if None not in requested:
            return run.limits
        limits = dict(run.limits)
        for kind, ceiling in self._derived_limits(run).items():
            if limits.get(kind) is None:
                limits[kind] = ceiling
        return limits

    def _derived_limits(
        self,
        run: Run,
    ) -> dict[str, float | None]:
        """Return the limits of a run that requests none, by the capacity of its engine.

        The limit of cores is None as for `ceilings`.
        """
        node = self()
        capacity = node.of(run.engine)
        total = capacity.total or node.total  # an engine that has never responded has no total
        cores: float | None = None
        engines = self._engines.values()
        if all("fractional_cpu" in engine.capabilities for engine in engines):
            # With overcommitment the total is more than the cores of the engine.
            cores = min(total.cpu / CORE, capacity.cores or node.cores)
            # A partner's task for which neither the job nor the node sets a CPU limit gets only a
            # share.
            if run.limit_origins.get("cpu") == resources.PARTNERS_LIMIT:
                cores *= self._settings.resources.partner_share
        return {
            "cpu": cores,
            "memory": int(total.memory * SHARE),
            "disk": int(total.disk * SHARE),
        }

    # -------------------------------------------------- asking the engines

    def look(self, name: str) -> None:
        """Ask an engine for its capacity and report a change."""
        with self._locks[name]:
            changed = self._observe(name)
        if changed:
            self._on_change()

    def _wait_for(self, names: Sequence[str]) -> None:
        """Observe engines for the first time, in parallel, and wait for their responses.

        An engine that takes too long counts as silent until it responds.
        """
        threads = []
        for name in names:
            thread = threading.Thread(
                target=self._look_quietly,
                args=(name,),
                daemon=True,
            )
            thread.start()
            threads.append(thread)
        end = time.monotonic() + self._first_look
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        late = [name for name in names if name not in self._observations]
        if not late:
            return
        stored = self._stored_totals.all()
        now = self._clock()
        for name in late:
            capacity = stored.get(name or self._main_name)
            silence = _Observation(capacity, now, "it has not answered yet")
            # No overwriting: an engine that has responded in the meantime keeps its observation.
            self._observations.setdefault(name, silence)

    def _look_quietly(self, name: str) -> None:
        """Ask an engine; if the database fails, leave it to the loop, which asks again later."""
        with suppress(GatewayError):
            self.look(name)

    def _observe(self, name: str) -> bool:
        """Observe an engine and record the result.

        Returns whether the result differs from the previous one; False for the first observation.
        """
        try:
            observation = _Observation(self._engines[name].capacity())
        except EngineError as error:
            observation = self._silence(name, error)
        # Read after the engine was asked: `_wait_for` may have written in the meantime.
        previous = self._observations.get(name)
        self._observations[name] = observation
        _log_change(name, observation, previous)
        if observation.responds and observation.capacity is not None:
            self._store_total(name, observation.capacity)
        return previous is not None and observation.differs_from(previous)

    def _silence(self, name: str, error: EngineError) -> _Observation:
        """Return the observation of an engine that did not respond."""
        previous = self._observations.get(name)
        if previous is None:
            capacity = self._stored_totals.all().get(name or self._main_name)
            return _Observation(capacity, self._clock(), str(error))
        since = previous.away_since or self._clock()
        return _Observation(previous.capacity, since, str(error))

    def _store_total(self, name: str, capacity: Capacity) -> None:
        """Store an engine's total for all gateways of the node, if it has changed."""
        total = replace(capacity, others=None)
        if self._last_stored.get(name) != total:
            self._stored_totals.put(name or self._main_name, total, self._clock())
            self._last_stored[name] = total

    # -------------------------------------------------- bounds of the settings

    def _capacity(self, name: str) -> EngineCapacity:
        """Return the capacity last observed of an engine, within the bounds of the settings."""
        observation = self._observations[name]
        away = ""
        if observation.away_since is not None:
            since = moment(observation.away_since)
            # Shown only for further engines, which have names; the main engine's text never is.
            away = f"engine {name} of node {self._node} has not answered since {since}"
        capacity = observation.capacity
        if capacity is None:
            return EngineCapacity(
                None,
                away=away,
                cause=observation.cause,
            )
        total = self._bounded(name, capacity)
        # The use by others is charged first to the part of the engine that the settings keep from
        # jobs. The part for jobs shrinks only if the rest of the engine is smaller than that part.
        usable = self._bounded(name, _without_others(capacity))
        return EngineCapacity(
            total=total,
            cores=capacity.cpu,
            away=away,
            cause=observation.cause,
            others=total - usable,
        )

    def _bounded(self, name: str, capacity: Capacity) -> Amounts:
        """Return the part of an engine's capacity that jobs may use, overcommitment included."""
        cores = capacity.cpu
        memory = capacity.memory
        bounds = self._bounds.get(name)
        if bounds and bounds.cpu:
            cores = min(cores, bounds.cpu)
        if bounds and bounds.memory_gib is not None:
            memory = min(memory, int(bounds.memory_gib * GIB))
        settings = self._settings.resources
        return Amounts.of(
            cores * settings.cpu_overcommit,
            memory * settings.memory_overcommit,
            gpu=capacity.gpu,
        )

    @cached_property
    def _disk(self) -> int:
        """Bytes for jobs on the file system of the storage, within the bound of the settings."""
        size = shutil.disk_usage(nearest_existing(self._settings.storage.path)).total
        cap = _bytes(self._settings.resources.disk_gib)
        if not cap:
            return size
        return min(size, cap)


def task_defaults(settings: Settings) -> Defaults:
    """Return the limits of tasks that request none, and of roles with limits of their own."""
    limits = settings.limits
    roles = {
        role: Defaults(
            cpu=bounds.cpu,
            memory=_bytes(bounds.memory_gib),
            pids=limits.pids,
            disk=_bytes(bounds.disk_gib),
        )
        for role, bounds in settings.resources.roles.items()
    }
    return Defaults(
        cpu=limits.cpu,
        memory=_bytes(limits.memory_gib),
        pids=limits.pids,
        disk=_bytes(limits.disk_gib),
        roles=roles or None,
    )


def _bytes(gib: float | None) -> int | None:
    """Return the bytes of an amount in GiB; None for None."""
    if gib is None:
        return None
    return int(gib * GIB)


def _without_others(capacity: Capacity) -> Capacity:
    """Return a capacity minus the part in use by others than this node."""
    others = capacity.others or Capacity(0, 0)
    return Capacity(
        capacity.cpu - others.cpu,
        capacity.memory - others.memory,
        capacity.gpu - others.gpu,
    )


def _log_change(
    name: str,
    observation: _Observation,
    previous: _Observation | None,
) -> None:
    """Log that an engine has fallen silent or responds again; a first response is not logged."""
    was_responding = previous is None or previous.responds
    if observation.responds == was_responding:
        return
    if observation.responds:
        log.info("an engine answers again", engine=name or "main")
    else:
        log.warning("an engine does not answer", engine=name or "main", cause=observation.cause)
