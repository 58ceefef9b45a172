"""Liveness of the gateways that share the node's database, and of other nodes.

Jobs do not depend on a gateway: any of them advances a due job. Containers do: they and their
channel belong to one gateway. After a long silence of that gateway its runs fail with CHANNEL_LOST,
and the retry rule decides what follows.

A node that a call did not reach is probed with a small request every second or two, on behalf of
all work that waits for it. A node that responds to probes but not to calls is probed at growing
pauses.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.domain.execution.messages import Event, OwnerLost
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId
from gateway.ports import Clock
from gateway.runtime.loop import Loop
from gateway.store.repositories import GATEWAY_TIMEOUT, Gateways, KnownGateway

log = structlog.get_logger(__name__)

PROBE_INTERVAL = 1.0  # seconds between two probes of a silent node
# Longest pause in seconds between two probes of a node that falls silent again and again.
MAX_PROBE_INTERVAL = 30.0
_RELAPSE = 15.0  # seconds after a recovery within which a new silence is the same outage
_PROBE_WORKERS = 16  # nodes probed at the same time, at most
_MAX_BEAT_INTERVAL = 2.0  # seconds between two heartbeats, at most


class Heartbeat:
    """Writes the heartbeat of one gateway, and takes over the jobs of lost ones."""

    def __init__(
        self,
        gateways: Gateways,
        owner: str,
        record: Callable[[str, Event], object],
        clock: Clock,
        *,
        lost_after: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``record(job_id, event)`` applies an event of a job's runs.

        ``lost_after``: seconds of silence after which a gateway counts as lost, with its
        containers.
        """
        self._gateways = gateways
        self._owner = owner
        self._record = record
        self._clock = clock
        self._lost_after = lost_after
        self._monotonic = monotonic
        self._url = ""
        self._known: dict[str, KnownGateway] = {}
        self._taken_over: set[str] = set()  # lost gateways whose jobs all have another home
        # monotonic time of the first of the unbroken heartbeats; None: the last one failed
        self._steady_since: float | None = None
        self._loop = Loop(
            "heartbeat",
            self._beat_when_due,
            self._always_due,
            every=min(_MAX_BEAT_INTERVAL, lost_after / 3),
            workers=1,
        )

    def start(self, url: str) -> None:
        """Start; ``url`` is this gateway's address for the other gateways."""
        self._url = url
        self.beat()
        self._loop.start()

    def stop(self) -> None:
        """Stop the heartbeat; the other gateways notice the silence."""
        self._loop.stop()

    def _beat_when_due(self, _owner: str) -> None:
        """Write the heartbeat; the function that the loop calls."""
        self.beat()

    def _always_due(self, _now: object) -> list[str]:
        """Return the only key of the loop: it is due at every interval."""
        return [self._owner]

    def beat(self) -> None:
        """Write the heartbeat, and take over the jobs of lost gateways.

        Only a gateway that has beaten without a break for ``lost_after`` seconds may count others
        as lost. Otherwise every gateway would seem silent after an outage of the database, after a
        common start of all machines, or after a freeze of this process.
        """
        try:
            # Seconds since the last heartbeat of this gateway, perhaps by an earlier process.
            silence = self._gateways.beat(self._owner, self._url)
            gateways = self._gateways.all()
        except Exception as error:  # without the database, others cannot be judged
            if self._steady_since is not None:
                log.warning("cannot write the heartbeat", cause=str(error)[:500])
            self._steady_since = None
            return
        self._known = {gateway.owner: gateway for gateway in gateways}
        now = self._monotonic()
        # The loop beats within a third of `lost_after`, so a longer silence is a break.
        if self._steady_since is None or silence > self._lost_after / 2:
            self._steady_since = now
        if now - self._steady_since >= self._lost_after:
            self._take_over_lost(gateways)

    def _take_over_lost(self, gateways: list[KnownGateway]) -> None:
        """Take over the jobs of gateways that were silent for too long."""
        for gateway in gateways:
            is_lost = gateway.owner != self._owner and gateway.silent > self._lost_after
            if is_lost:
                self._take_over(gateway.owner)
            else:
                self._taken_over.discard(gateway.owner)

    def _take_over(self, owner: str) -> None:
        """Fail the runs of a lost gateway, and make this one the home of its jobs.

        The search for its jobs without runs is slow, and is made only until all of them have this
        gateway as their home.
        """
        job_ids = dict.fromkeys(self._gateways.jobs_with_runs_of(owner))
        is_first_time = owner not in self._taken_over
        if is_first_time:
            job_ids |= dict.fromkeys(self._gateways.jobs_at_home(owner))
        is_complete = True
        for job_id in job_ids:
            try:
                self._record(job_id, OwnerLost(owner, self._owner, self._clock()))
            except Exception:
                log.exception("cannot take over", job=job_id, owner=owner)
                is_complete = False
        if is_first_time and is_complete:
            self._taken_over.add(owner)

    # ------------------------------------------------------------ homes of jobs

    def home_of(self, local: LocalJob) -> str:
        """Return the gateway for new runs of a job.

        It is the job's home if that is alive or has unfinished runs of the job, else this gateway.
        """
        home = local.home
        if home in ("", self._owner):
            return self._owner
        has_runs = any(run.owner == home and not run.over for run in local.runs)
        if self._is_alive(home) or has_runs:
            return home
        return self._owner

    def _is_alive(self, owner: str) -> bool:
        """Return whether a gateway has written its heartbeat recently."""
        gateway = self._known.get(owner)
        return gateway is not None and gateway.silent <= GATEWAY_TIMEOUT

    def address_of_other(self, home: str) -> str | None:
        """Return the address of another gateway; None for this one and for unknown ones."""
        gateway = self._known.get(home)
        if home == self._owner or gateway is None:
            return None
        return gateway.url

    def other_with_files(self, owner: str) -> str:
        """Return, as words of a message, which other gateway has the files of a run's owner.

        Empty if this gateway has them.
        """
        instance = owner.rpartition("/")[0]  # an owner is an instance, "/" and its engine
        if instance in ("", self._owner.rpartition("/")[0]):
            return ""
        gateway = self._known.get(owner)
        # After a restore, the address of the earlier owner is this gateway's own.
        if gateway is None or gateway.url in ("", self._url):
            return "another gateway"
        return f"the gateway {gateway.url}"


@dataclass(frozen=True)
class _Probe:
    """The next probe of a silent node."""

    at: float  # monotonic time
    pause: float  # seconds between the starts of the last probe and of this one


@dataclass(frozen=True)
class _Recovery:
    """The last recovery of a node."""

    at: float  # monotonic time
    pause: float  # seconds between the last probes before it


class ProbeTimes:
    """When each silent node is probed next. Callers pass the monotonic time, and hold a lock."""

    def __init__(self, first_pause: float = PROBE_INTERVAL) -> None:
        """``first_pause``: seconds before the first probe of a node in a new outage."""
        self._first_pause = first_pause
        self._probes: dict[NodeId, _Probe] = {}  # of the silent nodes
        self._recoveries: dict[NodeId, _Recovery] = {}

    def note_silence(self, node: NodeId, now: float) -> None:
        """Plan the first probe of a node, later if the node was reached a moment ago.

        Nothing changes for a node that is silent already.
        """
        if node in self._probes:
            return
        pause = self._first_pause
        recovery = self._recoveries.pop(node, None)
        if recovery is not None and now - recovery.at < _RELAPSE:
            pause = min(recovery.pause * 2, MAX_PROBE_INTERVAL)
        self._probes[node] = _Probe(now + pause, pause)

    def due(self, now: float) -> list[NodeId]:
        """Return the nodes with a probe due."""
        return [node for node, probe in self._probes.items() if probe.at <= now]

    def forget(self, node: NodeId) -> None:
        """Plan no further probe of a silent node."""
        self._probes.pop(node, None)

    def note_probe(self, node: NodeId, started: float, *, is_reached: bool) -> None:
        """Plan the next probe of a silent node after a failed one; none if it was reached.

        The pause counts from the time at which the failed probe started.
        """
        pause = self._probes.pop(node).pause
        if is_reached:
            self._recoveries[node] = _Recovery(started, pause)
        else:
            self._probes[node] = _Probe(started + pause, pause)


class Outages:
    """Probes the silent nodes, and reports a node that can be reached again."""

    def __init__(
        self,
        has_route: Callable[[NodeId], bool],
        reaches: Callable[[NodeId], bool],
        recovered: Callable[[NodeId], None],
        every: float = PROBE_INTERVAL,
    ) -> None:
        """``reaches`` sends a node a small request and returns whether it responded.

        A node for which ``has_route`` is False is no longer probed. ``recovered`` is called with a
        node that was reached again. ``every``: seconds before the first probe of a node, and
        between two looks for due probes.
        """
        self._has_route = has_route
        self._reaches = reaches
        self._recovered = recovered
        self._lock = threading.Lock()
        self._times = ProbeTimes(every)
        self._is_started = False
        self._is_closing = False
        self._loop = Loop(
            "outages",
            self.probe,
            self._due_at,
            every=every,
            workers=_PROBE_WORKERS,
        )

    def note_silence(self, node: NodeId) -> None:
        """Note that a call did not reach a node."""
        with self._lock:
            if self._is_closing:
                return
            self._times.note_silence(node, time.monotonic())
            if not self._is_started:
                self._is_started = True
                self._loop.start()

    def close(self) -> None:
        """Stop the probes."""
        with self._lock:
            self._is_closing = True
        self._loop.stop()

    def _due(self) -> list[NodeId]:
        """Return the nodes with a probe due."""
        with self._lock:
            return self._times.due(time.monotonic())

    def _due_at(self, _now: object) -> list[NodeId]:
        """Return the nodes to probe now; the loop's time is not monotonic and so is ignored."""
        return self._due()

    def probe(self, node: NodeId) -> None:
        """Probe a node, and report it if it was reached.

        Nothing happens if another worker has probed the node since it became due.
        """
        if node not in self._due():
            return
        if not self._has_route(node):
            with self._lock:
                self._times.forget(node)
            return
        started = time.monotonic()
        is_reached = self._reaches(node)
        with self._lock:
            self._times.note_probe(node, started, is_reached=is_reached)
        if is_reached:
            log.info("a node can be reached again", node=node)
            self._recovered(node)
