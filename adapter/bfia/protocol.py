"""`ProtocolAdapter` of this folder: clients for calls that go out, and the environment of containers."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from adapter.bfia import wire
from adapter.bfia.client import ParticipantClient, SchedulerClient
from adapter.bfia.environment import environment
from adapter.bfia.peer import Connections, Peer
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.route_test import HELLO, try_route
from adapter.bfia.translate import PROTOCOL, create_body, job_spec
from adapter.bfia.validation import unread
from adapter.problems import problems_of
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.errors import GatewayError, Invalid
from gateway.ports import ParticipantApi, SchedulerApi, Site
from gateway.runtime.checks import Step
from gateway.runtime.context import Exchange
from route_table.live import LiveRoutes
from route_table.model import UnknownNode

_PORTS = {"http": 80, "https": 443}


class BfiaProtocol:
    """Hands out clients; each reads its peer's route anew at every call."""

    name = PROTOCOL
    numbers_tasks = False

    def __init__(
        self, me: NodeId, routes: LiveRoutes, observe: Callable[[Exchange], None] = lambda _: None
    ) -> None:
        self._me = me
        self._routes = routes
        self._connections = Connections(observe)
        self.sign: Callable[[NodeId], Mapping[str, str]] = lambda node: {}
        """returns further headers by which this node proves itself to another"""

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules."""
        return SchedulerClient(self._peer(node))

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part."""
        return ParticipantClient(self._peer(node))

    def environment(self, local: LocalJob, run: Run, site: Site) -> dict[str, str]:
        """Return the variables that the component layer promises a run's container."""
        return environment(local, run, site, per_task=self.session_per_task(local.spec))

    def session_per_task(self, spec: JobSpec) -> bool:
        """Say whether some node of a job has a session for each task, so that all its containers need one."""
        return any(self._profile(node).session_per_task for node in spec.nodes if node != self._me)

    def _profile(self, node: NodeId) -> Profile:
        try:
            return PROFILES.get(self._routes.resolve(node).profile, PROFILES["spec"])
        except UnknownNode:
            return PROFILES["spec"]

    def peer(self, node: NodeId) -> Peer:
        """Return the way to a node."""
        return self._peer(node)

    def try_route(self, node: NodeId) -> list[Step]:
        """Try the route to a node in both directions."""
        return try_route(self._peer(node), self._routes.table, node, self._me)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the job as ``create_all`` has it, in the standard's own spelling."""
        return create_body(spec, PROFILES["spec"])

    def specified(self, request: Mapping[str, Any], scheduler: NodeId, trace_id: str) -> JobSpec:
        """Read a job that `request` has written. Raises `Invalid`."""
        try:
            body = wire.CreateJob.model_validate(dict(request))
        except ValidationError as error:
            raise Invalid(problems_of(error.errors(), wire.CreateJob)) from None
        return replace(job_spec(body, body.job_id, scheduler, trace_id), unread=unread(body))

    def send(
        self, node: NodeId, path: str, body: Mapping[str, Any], headers: Mapping[str, str], patience: float
    ) -> tuple[int, Any]:
        """Post to a path of another protocol at a node; return HTTP status and JSON."""
        return self._peer(node).send(path, body, headers, patience)

    def reaches(self, node: NodeId) -> bool:
        """Tell whether a connection to a node comes up; says nothing of what it would answer.

        A node behind another one is asked for a path, as only its relay knows whether it is there.
        """
        try:
            route = self._routes.table.resolve(node)
            if route.via:
                self._peer(node).raw("POST", HELLO.path, {})
                return True
            url = urlsplit(route.url)
            with socket.create_connection((url.hostname or "", url.port or _PORTS[url.scheme]), timeout=2.0):
                return True
        except (UnknownNode, OSError, ValueError, KeyError, GatewayError):
            return False

    def close(self) -> None:
        """Close the connections to all peers."""
        self._connections.close()

    def _peer(self, node: NodeId) -> Peer:
        return Peer(self._me, node, self._routes, self._connections, self.sign)
