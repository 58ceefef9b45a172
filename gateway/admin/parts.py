"""What the operators' paths work with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.base import Engine
from gateway.broker.broker import Broker
from gateway.data.logs import RunLogs
from gateway.data.storage import FileStorage
from gateway.domain.spec import NodeId
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.participant import Participant
from gateway.jobs.resources import Resources
from gateway.ports import Limiters
from gateway.runtime.checks import Step
from gateway.runtime.metrics import Metrics
from gateway.store.access import SqlAudit, SqlTokens
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes


@dataclass(frozen=True)
class AdminParts:
    """What the paths of our own API are built of."""

    node: NodeId
    owner: str
    """gateway instance and engine: whose containers these are where several share a database"""
    store: Store
    coordinator: Coordinator
    participant: Participant
    routes: LiveRoutes
    try_route: Callable[[NodeId], Sequence[Step]]
    metrics: Metrics
    tokens: SqlTokens
    audit: SqlAudit
    registry: Registry
    engine: Engine
    broker: Broker
    storage: FileStorage
    run_logs: RunLogs
    resources: Resources
    limiters: Limiters
