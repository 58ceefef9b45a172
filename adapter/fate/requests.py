"""What both families of paths between nodes share: who asks, on which threads, and what they work with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request

from adapter.fate.dag.description import Descriptions
from adapter.fate.ports import JobOf, LocalOf
from adapter.fate.reruns import newest
from adapter.fate.signing import Signatures
from gateway.auth import origin
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import NotAllowed, NotFound
from gateway.http.peer_identity import check_claim
from gateway.ports import Limiters, ParticipantApi, SchedulerApi
from gateway.runtime.context import new_trace_id, traced

X = TypeVar("X")

_SOURCE = ("x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id")
_TOLD_AT_MOST = 10_000


@dataclass(frozen=True)
class FateParts:
    """What the paths for FATE sites are built of."""

    node: NodeId
    scheduler: SchedulerApi
    participant: ParticipantApi
    descriptions: Descriptions
    signatures: Signatures
    limiters: Limiters
    knows: Callable[[NodeId], bool]
    speaks: Callable[[NodeId], bool]
    """whether the route to a node says that it speaks this protocol"""
    job_of: JobOf
    local_of: LocalOf
    new_id: Callable[[], str]
    """an id for a job that is handed in"""
    agree: Callable[[str, str, str], object]
    """takes a person's consent to a job that waits for it: job, who, in which words"""
    is_at: Callable[[str, float], object]
    """takes in how far its scheduling node says that a job is: per cent"""
    told: "Told" = field(default_factory=lambda: Told())


@dataclass(frozen=True)
class Asker:
    """Who asks: the node, and whether it named itself, which FATE's own nodes do not."""

    node: NodeId
    named: bool


class Told:
    """Which tasks FATE's own nodes were told to run: they do not take an end of what they do not know to run.

    Kept in memory only; after a restart such a node is told once more.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}

    def running(self, task_id: str, role: str) -> bool:
        """Return whether it was told before, and note that it is now."""
        before = (task_id, role) in self._seen
        if not before:
            self._seen[task_id, role] = None
            while len(self._seen) > _TOLD_AT_MOST:
                self._seen.pop(next(iter(self._seen)))
        return before


def trace_of(request: Request) -> str:
    """Return the trace id that the request brings, or a new one."""
    return request.headers.get("x-trace-id", "")[:128] or new_trace_id()


def names_itself(request: Request) -> bool:
    """Say whether the node that asks says who it is, as a gateway like this one does and FATE's nodes do not."""
    return any(request.headers.get(name) for name in _SOURCE)


async def asker(parts: FateParts, request: Request, *claimed: NodeId) -> Asker:
    """Return who asks. Raises `NotAllowed`.

    FATE's nodes do not name themselves: theirs is the node that may ask, where its route says that it speaks this
    protocol. ``claimed`` are the nodes that may, in order. A node that has to sign has signed.
    """
    source = next((v.strip() for name in _SOURCE if (v := request.headers.get(name))), "")
    if source == parts.node or (source and not parts.knows(source)):
        raise NotAllowed(f"node {source} has no enabled route here: ask the admin of this node for one")
    others = (node for node in claimed if node not in ("", parts.node))
    found = source or next((node for node in others if parts.speaks(node)), "")
    if not found:
        text = "say which node asks, in the header x-source-node-id: no node that may ask has a route of profile"
        raise NotAllowed(f"{text} fate-partner here")
    check_claim(request.scope, found)
    await signed(parts.signatures, parts.limiters, found, request)
    origin().node = found
    return Asker(found, bool(source))


async def signed(signatures: Signatures, limiters: Limiters, node: NodeId, request: Request) -> None:
    """Check the signature of a request, on whatever path, where its node has to sign. Raises `NotAllowed`."""
    if not signatures.asks(node):
        return
    body, query = await request.body(), request.url.query
    path = f"{request.url.path}?{query}" if query else request.url.path
    await _run(limiters.rest, lambda: signatures.check(node, request.headers, path, body))
    origin().key = request.headers.get("appId", "")


async def commanded(
    parts: FateParts, request: Request, job_id: str, role: str, party_id: str
) -> tuple[LocalJob, Asker]:
    """Return a job in which this node plays a role, as it was begun last, and who commands: who schedules it.

    FATE keeps a job for each of its parties: one that is not here is a job that is not here. Raises `NotFound`,
    `NotAllowed`.
    """
    local = await _run(parts.limiters.rest, lambda: newest(job_id, parts.local_of))
    if local is None:
        raise NotFound(f"no job {job_id} runs here", reason="JOB_UNKNOWN")
    who = await asker(parts, request, local.spec.scheduler)
    if who.node != local.spec.scheduler:
        raise NotAllowed(f"only {local.spec.scheduler}, which schedules job {job_id}, may do that")
    if not plays(local.spec, parts.node, role, party_id):
        raise NotFound(f"job {job_id} has no party {role} of {party_id} here", reason="JOB_UNKNOWN")
    return local, who


def plays(spec: JobSpec, node: NodeId, role: str, party_id: str) -> bool:
    """Return whether a node is that party of a job. A gateway like this one need not name the role."""
    return party_id in ("", node) and (not role or any(role in (p.role, p.label) for p in spec.parties_at(node)))


async def on(limiter: CapacityLimiter, request: Request, work: Callable[[], X]) -> X:
    """Run blocking work on the given threads, under the trace id of the request."""

    def run() -> X:
        with traced(trace_of(request)):
            return work()

    return await _run(limiter, run)


async def _run(limiter: CapacityLimiter, work: Callable[[], X]) -> X:
    return await anyio.to_thread.run_sync(work, limiter=limiter)
