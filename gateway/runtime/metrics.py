"""Figures for monitoring, in the form that Prometheus reads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.broker import Broker
from gateway.domain.resources import CORE, ClaimState, Ledger
from gateway.runtime.context import Exchange
from gateway.store.queries import Counts

_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ACTIONS = (*_CALLS, 30.0, 60.0, 120.0)


class Metrics(Collector):
    """The figures of one node: counted as things happen, or looked up at the moment of a request."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        counts: Callable[[], Counts],
        channel: Broker,
        clock: Callable[[], datetime],
        ledger: Callable[[], Ledger],
        engines: Callable[[], Mapping[str, bool]],
    ) -> None:
        """``engines``: whether each engine answers."""
        self._registry = registry = CollectorRegistry()
        text = "Requests to other nodes by their result: ok, refused, or unreachable."
        self._requests = Counter(
            "bfia_peer_requests", text, ["node", "path", "result"], registry=registry
        )
        text = "How long requests to other nodes took."
        self._seconds = Histogram(
            "bfia_peer_request_seconds", text, ["node"], buckets=_CALLS, registry=registry
        )
        text = "How long the container engine took, by what it was asked for."
        self._engine = Histogram(
            "bfia_engine_seconds", text, ["action"], buckets=_ACTIONS, registry=registry
        )
        text = "Times a job could not continue because of an error inside the gateway."
        self._stuck = Counter("bfia_advance_failures", text, ["side"], registry=registry)
        self._counts = counts
        self._channel = channel
        self._clock = clock
        self._ledger = ledger
        self._engines = engines
        self._registry.register(self)

    def requested(self, exchange: Exchange) -> None:
        """Count one request to another node."""
        result = (
            "unreachable"
            if exchange.http is None
            else "ok"
            if exchange.code in (0, 200)
            else "refused"
        )
        self._requests.labels(exchange.node, exchange.path, result).inc()
        self._seconds.labels(exchange.node).observe(exchange.seconds)

    def acted(self, action: str, seconds: float) -> None:
        """Note how long one action on the container engine took, in seconds."""
        self._engine.labels(action).observe(seconds)

    def stuck(self, side: str) -> None:
        """Count one time that a job could not continue."""
        self._stuck.labels(side).inc()

    def text(self) -> bytes:
        """Return all figures."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing: the registry is not to look at them when it is built."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Look up what is not counted."""
        counts, used, ledger = self._counts(), self._channel.usage(), self._ledger()
        oldest = counts.oldest_waiting
        age = max(0.0, self._clock().timestamp() - oldest) if oldest is not None else 0.0
        text = "Age of the oldest job that has not begun to run, in seconds; 0: none waits."
        yield _gauge(
            "bfia_jobs", "Jobs by side and state.", ["side", "status", "outcome"], counts.jobs
        )
        yield _gauge("bfia_runs", "Container runs of this node by state.", ["status"], counts.runs)
        yield _gauge(
            "bfia_tasks",
            "Tasks of jobs scheduled here that have not ended.",
            ["status"],
            counts.tasks,
        )
        yield GaugeMetricFamily("bfia_queue_age_seconds", text, value=age)
        yield GaugeMetricFamily(
            "bfia_channel_sessions", "Sessions of the channel.", value=used.sessions
        )
        yield GaugeMetricFamily(
            "bfia_channel_messages", "Messages not yet delivered.", value=used.messages
        )
        yield GaugeMetricFamily(
            "bfia_channel_bytes", "Bytes of messages not yet delivered.", value=used.bytes
        )
        refused = CounterMetricFamily(
            "bfia_channel_refused", "Refused requests of the channel.", labels=["request", "reason"]
        )
        for (operation, reason), number in self._channel.refusals().items():
            refused.add_metric([operation, reason], number)
        yield refused
        yield from _of_sessions(self._channel)
        for name, text, amounts in (
            (
                "total",
                "What the node has for jobs: cpu in cores, memory and disk in bytes, GPUs.",
                ledger.total,
            ),
            ("held", "What jobs hold of it.", ledger.held),
            ("free", "What others may hold.", ledger.free),
        ):
            numbers = {
                kind: amount / CORE if kind == "cpu" else amount
                for kind, amount in amounts
                if kind != "gpu" or ledger.total.gpu
            }
            yield _gauge(f"bfia_resources_{name}", text, ["kind"], numbers)
        yield from _of_engines(ledger)
        text = "1: the engine answers, 0: it is away."
        yield _gauge("bfia_engine_answers", text, ["engine"], self._engines())
        waiting = sum(claim.state is ClaimState.WAITING for claim in ledger.claims.values())
        text = "Jobs that hold something, or wait for it."
        yield _gauge(
            "bfia_resources_jobs",
            text,
            ["state"],
            {"held": len(ledger.holders), "waiting": waiting},
        )


def _of_sessions(channel: Broker) -> Iterator[Metric]:
    """Yield what each session has received and what waits in it; its topics would be too many labels."""
    sessions = {session: channel.waiting(session) for session in channel.sessions()}
    messages = {session: sum(on.messages for on in topics) for session, topics in sessions.items()}
    sizes = {session: sum(on.bytes for on in topics) for session, topics in sessions.items()}
    oldest = {
        session: max((on.oldest for on in topics), default=0.0)
        for session, topics in sessions.items()
    }
    readers = {
        session: sum(len(on.readers) for on in topics) for session, topics in sessions.items()
    }
    label = ["session"]
    yield _gauge(
        "bfia_channel_session_messages", "Messages not yet delivered, by session.", label, messages
    )
    yield _gauge(
        "bfia_channel_session_bytes",
        "Bytes of messages not yet delivered, by session.",
        label,
        sizes,
    )
    yield _gauge("bfia_channel_session_oldest_seconds", "Age of the oldest of them.", label, oldest)
    yield _gauge(
        "bfia_channel_session_readers", "Containers that wait for a message.", label, readers
    )
    got = CounterMetricFamily(
        "bfia_channel_session_received_messages", "Messages received.", labels=label
    )
    size = CounterMetricFamily(
        "bfia_channel_session_received_bytes", "Bytes of messages received.", labels=label
    )
    received = channel.received()
    for session, came in received.items():
        got.add_metric([session], came.messages)
        size.add_metric([session], came.bytes)
    yield from (got, size)
    text = "Bytes received a second, over the last ten."
    rates = {session: came.bytes_per_second for session, came in received.items()}
    yield _gauge("bfia_channel_session_received_bytes_per_second", text, label, rates)


def _of_engines(ledger: Ledger) -> Iterator[GaugeMetricFamily]:
    """Yield the same for each further engine whose totals are known."""
    if not ledger.further:
        return
    held = {engine: ledger.held_at(engine) for engine in ledger.further}
    for name, text, of in (
        (
            "total",
            "What an engine beside the main one has for jobs: cores, bytes, GPUs.",
            ledger.further,
        ),
        ("held", "What jobs hold of it.", held),
        ("free", "What others may hold; of one that does not answer, nothing.", ledger.available),
    ):
        numbers = {(engine, "cpu"): of[engine].cpu / CORE for engine in ledger.further}
        numbers |= {(engine, "memory"): of[engine].memory for engine in ledger.further}
        numbers |= {
            (engine, "gpu"): of[engine].gpu for engine, has in ledger.further.items() if has.gpu
        }
        yield _gauge(f"bfia_engine_resources_{name}", text, ["engine", "kind"], numbers)


def _gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    numbers: Mapping[Any, float],
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for values, number in sorted(numbers.items()):
        gauge.add_metric([values] if isinstance(values, str) else values, number)
    return gauge
