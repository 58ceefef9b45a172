"""A node's silence counts only while something is asked of it.

Who is asked nothing cannot answer: its part of a task may be over while another party's goes on for hours, the
job may be suspended, or wait for resources elsewhere. Its silence begins anew with the next request that is lost.
"""

from dataclasses import replace

from gateway.domain import quorum, reservations
from gateway.domain.job import Job, NodeJob
from gateway.domain.scheduling.agenda import agenda
from gateway.domain.scheduling.commands import Request
from gateway.domain.scheduling.records import with_node
from gateway.domain.timeouts import Timing

_USUAL = Timing()  # when something is due is not asked here


def is_asked(job: Job, node: NodeJob) -> bool:
    """Say whether a request to the node is under way, or comes next."""
    requests = (due.command for due in agenda(job, _USUAL) if isinstance(due.command, Request))
    return any(request.node == node.node for request in requests) or reservations.is_asked(job, node)


def forgiven(job: Job) -> Job:
    """Return the job with the silence forgotten of every node of which nothing is asked any more."""
    for node in quorum.active(job):
        if node.unreachable_since is not None and not is_asked(job, node):
            job = with_node(job, replace(node, unreachable_since=None))
    return job
