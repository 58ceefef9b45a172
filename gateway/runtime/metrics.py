"""Figures for monitoring, in the form that Prometheus reads: counted as things happen, or looked up when asked."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.broker.mailbox import Usage
from gateway.domain.resources import CORE, ClaimState, Ledger
from gateway.domain.spec import Note
from gateway.ports import Clock
from gateway.runtime.context import Exchange
from gateway.store.queries import Counts
from gateway.store.store import Store

_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ACTIONS = (*_CALLS, 30.0, 60.0, 120.0)


class Metrics:
    """The figures of one node."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        counts: Callable[[], Counts],
        channel: Callable[[], Usage],
        clock: Callable[[], datetime],
        ledger: Callable[[], Ledger],
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "bfia_peer_requests",
            "Requests to other nodes by their result: ok, refused, or unreachable.",
            ["node", "path", "result"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "bfia_peer_request_seconds",
            "How long requests to other nodes took.",
            ["node"],
            buckets=_CALLS,
            registry=self._registry,
        )
        self._engine = Histogram(
            "bfia_engine_seconds",
            "How long the container engine took, by what it was asked for.",
            ["action"],
            buckets=_ACTIONS,
            registry=self._registry,
        )
        self._stuck = Counter(
            "bfia_advance_failures",
            "Times that a job could not be gone on with because of an error inside the gateway.",
            ["side"],
            registry=self._registry,
        )
        self._registry.register(_Looked(counts, channel, clock))
        self._registry.register(_Pool(ledger))

    def requested(self, exchange: Exchange) -> None:
        """Count one request to another node."""
        result = "unreachable" if exchange.http is None else "ok" if exchange.code in (0, 200) else "refused"
        self._requests.labels(exchange.node, exchange.path, result).inc()
        self._seconds.labels(exchange.node).observe(exchange.seconds)

    def acted(self, action: str, seconds: float) -> None:
        """Note how long one action on the container engine took, in seconds."""
        self._engine.labels(action).observe(seconds)

    def stuck(self, side: str) -> None:
        """Count one time that a job could not be gone on with."""
        self._stuck.labels(side).inc()

    def text(self) -> bytes:
        """Return all figures."""
        return generate_latest(self._registry)


class _Looked(Collector):
    """What is looked up at the moment somebody asks."""

    def __init__(
        self, counts: Callable[[], Counts], channel: Callable[[], Usage], clock: Callable[[], datetime]
    ) -> None:
        self._counts = counts
        self._channel = channel
        self._clock = clock

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts = self._counts()
        jobs = GaugeMetricFamily("bfia_jobs", "Jobs by side and state.", labels=["side", "status", "outcome"])
        for (side, status, outcome), number in sorted(counts.jobs.items()):
            jobs.add_metric([side, status, outcome], number)
        yield jobs
        runs = GaugeMetricFamily("bfia_runs", "Container runs of this node by state.", labels=["status"])
        for status, number in sorted(counts.runs.items()):
            runs.add_metric([status], number)
        yield runs
        tasks = GaugeMetricFamily("bfia_tasks", "Tasks that this node schedules by state.", labels=["status"])
        for status, number in sorted(counts.tasks.items()):
            tasks.add_metric([status], number)
        yield tasks
        oldest = counts.oldest_waiting
        age = max(0.0, self._clock().timestamp() - oldest) if oldest is not None else 0.0
        text = "Age of the oldest job that has not begun to run, in seconds; 0: none waits."
        yield GaugeMetricFamily("bfia_queue_age_seconds", text, value=age)
        used = self._channel()
        yield GaugeMetricFamily("bfia_channel_sessions", "Sessions of the channel.", value=used.sessions)
        yield GaugeMetricFamily("bfia_channel_messages", "Messages not yet delivered.", value=used.messages)
        yield GaugeMetricFamily("bfia_channel_bytes", "Bytes of messages not yet delivered.", value=used.bytes)


class _Pool(Collector):
    """What the node has for jobs, and what they hold of it: cores, bytes, bytes."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        ledger = self._ledger()
        for name, text, amounts in (
            ("total", "What the node has for jobs: cpu in cores, memory and disk in bytes.", ledger.total),
            ("held", "What jobs hold of it.", ledger.held),
            ("free", "What others may hold.", ledger.free),
        ):
            gauge = GaugeMetricFamily(f"bfia_resources_{name}", text, labels=["kind"])
            for kind, amount in amounts:
                gauge.add_metric([kind], amount / CORE if kind == "cpu" else amount)
            yield gauge
        yield from _of_engines(ledger)
        jobs = GaugeMetricFamily(
            "bfia_resources_jobs", "Jobs that hold something, or wait for it.", labels=["state"]
        )
        waiting = sum(claim.state is ClaimState.WAITING for claim in ledger.claims.values())
        jobs.add_metric(["held"], len(ledger.holders))
        jobs.add_metric(["waiting"], waiting)
        yield jobs


def _of_engines(ledger: Ledger) -> Iterator[GaugeMetricFamily]:
    """Yield the same for each further engine whose totals are known, and whether it answers."""
    if not ledger.further and not ledger.away:
        return
    room = ledger.room
    for name, text, of in (
        ("total", "What an engine beside the main one has for jobs: cores, bytes.", lambda e: ledger.further[e]),
        ("held", "What jobs hold of it.", ledger.held_at),
        ("free", "What others may hold; of one that does not answer, nothing.", lambda e: room[e]),
    ):
        gauge = GaugeMetricFamily(f"bfia_engine_resources_{name}", text, labels=["engine", "kind"])
        for engine in ledger.further:
            amounts = of(engine)
            gauge.add_metric([engine, "cpu"], amounts.cpu / CORE)
            gauge.add_metric([engine, "memory"], amounts.memory)
        yield gauge
    answers = GaugeMetricFamily("bfia_engine_answers", "1: the engine answers, 0: it is away.", labels=["engine"])
    for engine in sorted(ledger.further.keys() | ledger.away.keys()):
        answers.add_metric([engine], engine not in ledger.away)
    yield answers


EVENT = "cannot go on"


def telling(
    store: Store, side: str, clock: Clock, count: Callable[[str], None]
) -> Callable[[str, Exception, int], None]:
    """Return what a loop of this side tells of a failure. ``side``: ``scheduler`` or ``participant``.

    Of failures in a row the first is written into the job's timeline.
    """

    def failed(job_id: str, error: Exception, times: int) -> None:
        count(side)
        if times == 1:
            name = type(error).__name__
            text = f"{name} inside the gateway; it is tried again every second, and the gateway's log tells more"
            store.note(job_id, side, [Note(clock(), EVENT, "", {"reason": "INTERNAL", "message": text})])

    return failed
