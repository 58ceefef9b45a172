"""Chooses who a call goes to: this node's own use cases, or a protocol's client. The one place that chooses."""

from collections.abc import Mapping

from gateway.domain.model import NodeId
from gateway.ports import ParticipantApi, ProtocolAdapter, SchedulerApi
from gateway.store.store import outside_transaction


class Peers:
    """Knows this node's own use cases and each protocol's adapter."""

    def __init__(self, node: NodeId, adapters: Mapping[str, ProtocolAdapter]) -> None:
        self.node = node
        self._adapters = adapters
        self._scheduler: SchedulerApi | None = None
        self._participant: ParticipantApi | None = None

    def settle_here(self, scheduler: SchedulerApi, participant: ParticipantApi) -> None:
        """Name this node's own use cases; they and this object need each other."""
        self._scheduler, self._participant = scheduler, participant

    def scheduler(self, node: NodeId, protocol: str) -> SchedulerApi:
        outside_transaction()
        if node == self.node and self._scheduler is not None:
            return self._scheduler
        return self._adapters[protocol].scheduler(node)

    def participant(self, node: NodeId, protocol: str) -> ParticipantApi:
        outside_transaction()
        if node == self.node and self._participant is not None:
            return self._participant
        return self._adapters[protocol].participant(node)

    def adapter(self, protocol: str) -> ProtocolAdapter:
        return self._adapters[protocol]
