"""Metrics of the node in the format of Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.broker import Broker
from gateway.domain.amounts import CORE, Amounts, AmountsByEngine
from gateway.domain.resources import ClaimState, Ledger
from gateway.domain.spec import NodeId
from gateway.domain.volumes import Volume
from gateway.runtime.context import Exchange
from gateway.runtime.pacing import PartnerPacing
from gateway.store.queries import Counts

# Upper bounds of the buckets, in seconds.
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ENGINE_BUCKETS = (*_REQUEST_BUCKETS, 30.0, 60.0, 120.0)
_OK_CODES = (0, 200)  # codes of success in the body of a response, by any of the protocols


class Metrics(Collector):
    """The metrics of one node.

    Some are counted at each event. The others are read from the node whenever Prometheus requests
    the metrics (`collect`).
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        counts: Callable[[], Counts],
        channel: Broker,
        clock: Callable[[], datetime],
        ledger: Callable[[], Ledger],
        engines: Callable[[], Mapping[str, bool]],
        links: Callable[[], Mapping[tuple[str, str], int]],
        volumes: Callable[[], Mapping[NodeId, Volume]],
        paces: Mapping[str, PartnerPacing],
    ) -> None:
        """``counts`` returns the numbers of jobs, runs and tasks by state.

        ``channel`` has the messages of containers. ``ledger`` returns the node's pool of resources.
        ``engines`` returns, by each engine's name, whether the engine responds. ``links`` returns
        the number of standing links by node and direction (``in`` or ``out``). ``volumes`` returns
        the bytes exchanged with each partner since the start. ``paces`` has the pace of all
        partners by direction.
        """
        self._counts = counts
        self._channel = channel
        self._clock = clock
        self._ledger = ledger
        self._engines = engines
        self._links = links
        self._volumes = volumes
        self._paces = paces
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "bfia_peer_requests",
            "Requests to other nodes by their result: ok, refused, or unreachable.",
            ["node", "path", "result"],
            registry=self._registry,
        )
        self._request_seconds = Histogram(
            "bfia_peer_request_seconds",
            "How long requests to other nodes took.",
            ["node"],
            buckets=_REQUEST_BUCKETS,
            registry=self._registry,
        )
        self._engine_seconds = Histogram(
            "bfia_engine_seconds",
            "How long the container engine took, by what it was asked for.",
            ["action"],
            buckets=_ENGINE_BUCKETS,
            registry=self._registry,
        )
        self._failed_advances = Counter(
            "bfia_advance_failures",
            "Times a job could not continue because of an error inside the gateway.",
            ["side"],
            registry=self._registry,
        )
        self._registry.register(self)

    # ------------------------------------------------------------ counting

    def count_request(self, exchange: Exchange) -> None:
        """Count one request to another node, and record its duration."""
        self._requests.labels(exchange.node, exchange.path, _result_of(exchange)).inc()
        self._request_seconds.labels(exchange.node).observe(exchange.seconds)

    def record_action(self, action: str, seconds: float) -> None:
        """Record the duration of one action of the executor at an engine, by the action's name."""
        self._engine_seconds.labels(action).observe(seconds)

    def stuck(self, side: str) -> None:
        """Count one failure of a job to continue; ``side`` is ``scheduler`` or ``participant``."""
        self._failed_advances.labels(side).inc()

    # ------------------------------------------------------------ reading

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing.

        Without this method `register` would call `collect` while the node is still being built.
        """
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read, not counted."""
        counts = self._counts()
        ledger = self._ledger()
        yield from _job_metrics(counts, self._clock().timestamp())
        yield from _channel_metrics(self._channel)
        yield from _session_metrics(self._channel)
        yield from _resource_metrics(ledger)
        yield from _engine_metrics(ledger)
        yield _gauge(
            "bfia_engine_answers",
            "1: the engine answers, 0: it is away.",
            ["engine"],
            self._engines(),
        )
        yield _claims_gauge(ledger)
        yield _gauge(
            "bfia_links",
            "Links that stand at this gateway, by node; 0: the route has links, and none stands.",
            ["node", "direction"],
            self._links(),
        )
        yield from _volume_metrics(self._volumes())
        yield from _pace_metrics(self._paces)


def _result_of(exchange: Exchange) -> str:
    """Return the result of a request to another node: unreachable, ok or refused."""
    if exchange.http is None:
        return "unreachable"
    if exchange.code in _OK_CODES:
        return "ok"
    return "refused"


def _job_metrics(counts: Counts, now: float) -> Iterator[Metric]:
    """Yield the numbers of jobs, runs and tasks, and the age of the oldest waiting job."""
    yield _gauge(
        "bfia_jobs",
        "Jobs by side and state.",
        ["side", "status", "outcome"],
        counts.jobs,
    )
    yield _gauge(
        "bfia_runs",
        "Container runs of this node by state.",
        ["status"],
        counts.runs,
    )
    yield _gauge(
        "bfia_tasks",
        "Tasks of jobs scheduled here that have not ended.",
        ["status"],
        counts.tasks,
    )
    age = 0.0
    if counts.oldest_waiting is not None:
        age = max(0.0, now - counts.oldest_waiting)
    yield GaugeMetricFamily(
        "bfia_queue_age_seconds",
        "Age of the oldest job that has not begun to run, in seconds; 0: none waits.",
        value=age,
    )


def _channel_metrics(channel: Broker) -> Iterator[Metric]:
    """Yield the usage of the channel and its refused requests."""
    usage = channel.usage()
    yield GaugeMetricFamily(
        "bfia_channel_sessions",
        "Sessions of the channel.",
        value=usage.sessions,
    )
    yield GaugeMetricFamily(
        "bfia_channel_messages",
        "Messages not yet delivered.",
        value=usage.messages,
    )
    yield GaugeMetricFamily(
        "bfia_channel_bytes",
        "Bytes of messages not yet delivered.",
        value=usage.bytes,
    )
    refused = CounterMetricFamily(
        "bfia_channel_refused",
        "Refused requests of the channel.",
        labels=["request", "reason"],
    )
    for (operation, reason), number in channel.refusals().items():
        refused.add_metric([operation, reason], number)
    yield refused


def _session_metrics(channel: Broker) -> Iterator[Metric]:
    """Yield the waiting and received messages of each session.

    The topics of a session are added up, as a label for each topic would make too many series.
    """
    messages: dict[str, int] = {}
    sizes: dict[str, int] = {}
    oldest: dict[str, float] = {}
    readers: dict[str, int] = {}
    for session in channel.sessions():
        topics = channel.backlog(session)
        messages[session] = sum(topic.messages for topic in topics)
        sizes[session] = sum(topic.bytes for topic in topics)
        oldest[session] = max((topic.oldest for topic in topics), default=0.0)
        readers[session] = sum(len(topic.readers) for topic in topics)
    yield _session_gauge(
        "bfia_channel_session_messages",
        "Messages not yet delivered, by session.",
        messages,
    )
    yield _session_gauge(
        "bfia_channel_session_bytes",
        "Bytes of messages not yet delivered, by session.",
        sizes,
    )
    yield _session_gauge(
        "bfia_channel_session_oldest_seconds",
        "Age in seconds of the oldest message not yet delivered, by session.",
        oldest,
    )
    yield _session_gauge(
        "bfia_channel_session_readers",
        "Containers that wait for a message.",
        readers,
    )
    yield from _received_metrics(channel)


def _received_metrics(channel: Broker) -> Iterator[Metric]:
    """Yield the messages and bytes that each session has received, and the current rate."""
    messages = CounterMetricFamily(
        "bfia_channel_session_received_messages",
        "Messages received.",
        labels=["session"],
    )
    sizes = CounterMetricFamily(
        "bfia_channel_session_received_bytes",
        "Bytes of messages received.",
        labels=["session"],
    )
    rates = {}
    for session, received in channel.traffic().items():
        messages.add_metric([session], received.messages)
        sizes.add_metric([session], received.bytes)
        rates[session] = received.bytes_per_second
    yield messages
    yield sizes
    yield _session_gauge(
        "bfia_channel_session_received_bytes_per_second",
        "Bytes received per second, averaged over the last 10 seconds.",
        rates,
    )


def _resource_metrics(ledger: Ledger) -> Iterator[GaugeMetricFamily]:
    """Yield the total, held and free resources of the main engine, with the disk of all engines."""
    has_gpus = bool(ledger.total.gpu)
    yield _gauge(
        "bfia_resources_total",
        "What the node has for jobs: cpu in cores, memory and disk in bytes, GPUs.",
        ["kind"],
        _by_kind(ledger.total, has_gpus),
    )
    yield _gauge(
        "bfia_resources_held",
        "What jobs hold of the node's resources.",
        ["kind"],
        _by_kind(ledger.held, has_gpus),
    )
    yield _gauge(
        "bfia_resources_free",
        "What is free for further jobs.",
        ["kind"],
        _by_kind(ledger.free, has_gpus),
    )


def _engine_metrics(ledger: Ledger) -> Iterator[GaugeMetricFamily]:
    """Yield the total, held and free resources of each further engine with known totals.

    The disk, which all engines share, is among the resources of the main engine.
    """
    if not ledger.further:
        return
    held_amounts = {engine: ledger.held_by_engine(engine) for engine in ledger.further}
    labels = ["engine", "kind"]
    yield _gauge(
        "bfia_engine_resources_total",
        "What an engine beside the main one has for jobs: cores, bytes, GPUs.",
        labels,
        _by_engine_and_kind(ledger, ledger.further),
    )
    yield _gauge(
        "bfia_engine_resources_held",
        "What jobs hold of the engine's resources.",
        labels,
        _by_engine_and_kind(ledger, held_amounts),
    )
    yield _gauge(
        "bfia_engine_resources_free",
        "What is free for further jobs; 0 while the engine does not answer.",
        labels,
        _by_engine_and_kind(ledger, ledger.available),
    )


def _claims_gauge(ledger: Ledger) -> GaugeMetricFamily:
    """Return the number of jobs that hold resources, and of jobs that wait for resources."""
    waiting = sum(claim.state is ClaimState.WAITING for claim in ledger.claims.values())
    return _gauge(
        "bfia_resources_jobs",
        "Jobs that hold something, or wait for it.",
        ["state"],
        {"held": len(ledger.holders), "waiting": waiting},
    )


def _volume_metrics(volumes: Mapping[NodeId, Volume]) -> Iterator[CounterMetricFamily]:
    """Yield the bytes exchanged with each partner of the route table."""
    received = CounterMetricFamily(
        "bfia_partner_received_bytes",
        "Bytes of requests and responses received from a partner, without headers.",
        labels=["node"],
    )
    sent = CounterMetricFamily(
        "bfia_partner_sent_bytes",
        "Bytes of requests and responses sent to a partner, without headers.",
        labels=["node"],
    )
    for node, volume in sorted(volumes.items()):
        received.add_metric([node], volume.bytes_in)
        sent.add_metric([node], volume.bytes_out)
    yield received
    yield sent


def _pace_metrics(paces: Mapping[str, PartnerPacing]) -> Iterator[Metric]:
    """Yield how the bandwidth of each limited partner is used; ``paces`` by direction."""
    labels = ["node", "direction"]
    limits = {}
    waiting = {}
    waited = CounterMetricFamily(
        "bfia_partner_bandwidth_waited_seconds",
        "Seconds that messages have waited for their turns, all together.",
        labels=labels,
    )
    for direction, pacing in paces.items():
        for node, state in pacing.states().items():
            limits[node, direction] = state.limit
            waiting[node, direction] = state.waiting
            waited.add_metric([node, direction], state.waited_seconds)
    yield _gauge(
        "bfia_partner_bandwidth_limit_bytes",
        "Bytes per second that may be exchanged with a partner in a direction.",
        labels,
        limits,
    )
    yield _gauge(
        "bfia_partner_bandwidth_waiting",
        "Messages that wait for their turns.",
        labels,
        waiting,
    )
    yield waited


def _by_kind(amounts: Amounts, has_gpus: bool) -> dict[str, float]:
    """Return amounts in the units of the metrics, by kind.

    These are cores, bytes and numbers of GPUs. A node without GPUs has no entry for them.
    """
    numbers: dict[str, float] = {
        "cpu": amounts.cpu / CORE,
        "memory": amounts.memory,
        "disk": amounts.disk,
    }
    if has_gpus:
        numbers["gpu"] = amounts.gpu
    return numbers


def _by_engine_and_kind(
    ledger: Ledger, amounts: Mapping[str, Amounts] | AmountsByEngine
) -> dict[tuple[str, str], float]:
    """Return amounts by (further engine, kind), in the units of `_by_kind`.

    The engines are those of ``ledger.further``. If ``amounts`` is a mapping, it has every one of
    them; in `AmountsByEngine`, an engine that is left out has 0. An engine without GPUs has no
    entry for them.
    """
    numbers: dict[tuple[str, str], float] = {}
    for engine, total in ledger.further.items():
        numbers[engine, "cpu"] = amounts[engine].cpu / CORE
        numbers[engine, "memory"] = amounts[engine].memory
        if total.gpu:
            numbers[engine, "gpu"] = amounts[engine].gpu
    return numbers


def _session_gauge(
    name: str,
    text: str,
    numbers: Mapping[str, float],
) -> GaugeMetricFamily:
    """Return a gauge with a value per session."""
    return _gauge(name, text, ["session"], numbers)


def _gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    numbers: Mapping[Any, float],
) -> GaugeMetricFamily:
    """Return a gauge with a value for each key of ``numbers``.

    ``labels`` are the names of the labels. A key is the value of the only label, or a tuple with a
    value for each label.
    """
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for key, number in sorted(numbers.items()):
        label_values = [key] if isinstance(key, str) else key
        gauge.add_metric(label_values, number)
    return gauge
