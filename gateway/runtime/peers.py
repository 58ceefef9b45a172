"""Chooses who a call goes to: this node's own use cases, or a protocol's client. The one place that chooses."""

from collections.abc import Callable, Mapping

from gateway.domain.spec import JobSpec, NodeId
from gateway.ports import ParticipantApi, ProtocolAdapter, SchedulerApi
from gateway.store.database import outside_transaction


class Peers:
    """Knows this node's own use cases and each protocol's adapter."""

    def __init__(
        self,
        node: NodeId,
        adapters: Mapping[str, ProtocolAdapter],
        speaks: Callable[[NodeId, str], str] = lambda _, protocol: protocol,
    ) -> None:
        """``speaks`` tells which protocol a node speaks, where a job of the given protocol is the matter."""
        self.node = node
        self._adapters = adapters
        self._speaks = speaks
        self._scheduler: SchedulerApi | None = None
        self._participant: ParticipantApi | None = None

    def settle_here(self, scheduler: SchedulerApi, participant: ParticipantApi) -> None:
        """Name this node's own use cases; they and this object need each other."""
        self._scheduler, self._participant = scheduler, participant

    def scheduler(self, node: NodeId, protocol: str) -> SchedulerApi:
        """Return who schedules at a node: our own use case, or a client in the protocol that its route names."""
        outside_transaction()
        if node == self.node and self._scheduler is not None:
            return self._scheduler
        return self._adapters[self._speaks(node, protocol)].scheduler(node)

    def participant(self, node: NodeId, protocol: str) -> ParticipantApi:
        """Return who takes part at a node: as `scheduler`."""
        outside_transaction()
        if node == self.node and self._participant is not None:
            return self._participant
        return self._adapters[self._speaks(node, protocol)].participant(node)

    def numbers_tasks(self, spec: JobSpec) -> bool:
        """Say whether the ids of a job's tasks have to tell the task, for one of its nodes."""
        spoken = {spec.protocol, *(self._speaks(node, spec.protocol) for node in spec.nodes if node != self.node)}
        return any(self._adapters[protocol].numbers_tasks for protocol in spoken)

    def adapter(self, protocol: str) -> ProtocolAdapter:
        """Return a protocol's adapter by its name."""
        return self._adapters[protocol]
