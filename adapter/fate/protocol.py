"""`ProtocolAdapter` of this folder."""

from collections.abc import Callable
from typing import Any

from adapter.fate.calling import Caller
from adapter.fate.client import ParticipantClient
from adapter.fate.dag.description import PROTOCOL, Descriptions
from adapter.fate.ports import JobOf, Send, Standard
from adapter.fate.scheduler_client import SchedulerClient
from adapter.fate.signing import Signatures
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.ports import ParticipantApi, SchedulerApi, Site


class FateProtocol:
    """Hands out clients. What runs in a container is the standard's affair, whoever schedules."""

    name = PROTOCOL
    numbers_tasks = True

    def __init__(
        self,
        me: NodeId,
        descriptions: Descriptions,
        standard: Standard,
        send: Send,
        signatures: Signatures,
        job_of: JobOf,
        protocol_of: Callable[[str], str],
    ) -> None:
        self._me = me
        self._descriptions = descriptions
        self._standard = standard
        self._send = send
        self._signatures = signatures
        self._job_of = job_of
        self._protocol_of = protocol_of

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules."""
        beside = self._standard.scheduler(node)
        return SchedulerClient(self._me, self._caller(node), self._descriptions, beside, self._protocol_of)

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part."""
        beside = self._standard.participant(node)
        return ParticipantClient(self._me, self._caller(node), self._descriptions, beside, self._job_of)

    def environment(self, local: LocalJob, run: Run, site: Site) -> dict[str, str]:
        """Return the standard's variables for a run's container."""
        return self._standard.environment(local, run, site)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the job as FATE's description has it."""
        return self._descriptions.written(spec)

    def _caller(self, node: NodeId) -> Caller:
        return Caller(node, self._send, self._signatures.sign)
