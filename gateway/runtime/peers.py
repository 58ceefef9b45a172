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
        here: Callable[[], tuple[SchedulerApi, ParticipantApi]] | None = None,
    ) -> None:
        """``speaks`` tells which protocol a node speaks in a job; ``here`` returns this node's own use cases."""
        self.node = node
        self._adapters = adapters
        self._speaks = speaks
        self._here = here

    def scheduler(self, node: NodeId, protocol: str) -> SchedulerApi:
        """Return who schedules at a node: our own use case, or a client in the protocol that its route names."""
        outside_transaction()
        if node == self.node and self._here is not None:
            return self._here()[0]
        return self._adapters[self._speaks(node, protocol)].scheduler(node)

    def participant(self, node: NodeId, protocol: str) -> ParticipantApi:
        """Return who takes part at a node: as `scheduler`."""
        outside_transaction()
        if node == self.node and self._here is not None:
            return self._here()[1]
        return self._adapters[self._speaks(node, protocol)].participant(node)

    def numbers_tasks(self, spec: JobSpec) -> bool:
        """Say whether the ids of a job's tasks have to tell the task, for one of its nodes."""
        spoken = {spec.protocol, *(self._speaks(node, spec.protocol) for node in spec.nodes if node != self.node)}
        return any(self._adapters[protocol].numbers_tasks for protocol in spoken)

    def adapter(self, protocol: str) -> ProtocolAdapter:
        """Return a protocol's adapter by its name."""
        return self._adapters[protocol]
