"""Makes the clients for nodes that speak FATE's protocol, as parties and as schedulers.

A node gets each call once for each of its roles. A call about a task names its version, which is
the number of the attempt. FATE's protocol has no requests for a job's state, suspension, approval
and deletion. These are sent in the standard's protocol: a gateway like this one serves it at the
same address, FATE's own nodes do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adapter.fate.calls import Caller, Send
from adapter.fate.dag.description import Descriptions, Standard
from adapter.fate.participant import ParticipantClient
from adapter.fate.scheduler import SchedulerClient
from adapter.fate.signing import Signatures
from adapter.fate.words import PROTOCOL, JobOf
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.domain.task_ids import TaskIds
from gateway.ports import ParticipantApi, SchedulerApi, Site


@dataclass(frozen=True)
class FateProtocol:
    """Makes clients for nodes with this protocol.

    Containers get the environment of the standard, also for jobs of FATE's schedulers.
    """

    me: NodeId
    descriptions: Descriptions
    standard: Standard  # the standard's protocol, for what FATE's lacks
    send: Send
    signatures: Signatures
    job_of: JobOf
    # Takes the id of a job in which this node takes part; returns the job's protocol.
    protocol_of: Callable[[str], str]

    name = PROTOCOL

    def task_ids(self, node: NodeId) -> TaskIds:
        """Return the form with the task's name and the attempt's number, as nodes identify it."""
        return TaskIds.NUMBERED

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules jobs."""
        return SchedulerClient(
            me=self.me,
            caller=self._caller(node),
            descriptions=self.descriptions,
            standard=self.standard.scheduler(node),
            protocol_of=self.protocol_of,
        )

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part in jobs."""
        return ParticipantClient(
            caller=self._caller(node),
            descriptions=self.descriptions,
            standard=self.standard.participant(node),
            job_of=self.job_of,
        )

    def environment(
        self,
        local: LocalJob,
        run: Run,
        site: Site,
    ) -> dict[str, str]:
        """Return the variables of a run."""
        return self.standard.environment(local, run, site)

    def container_status(self, run: Run, address: str) -> TaskStatus | None:
        """Ask a run's container for its state."""
        return self.standard.container_status(run, address)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the body of the request that creates a job."""
        return self.descriptions.write(spec)

    def _caller(self, node: NodeId) -> Caller:
        """Return the caller for a node."""
        return Caller(node, self.send, self.signatures.sign)
