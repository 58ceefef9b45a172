"""Calls other nodes: `SchedulerApi` and `ParticipantApi` over HTTP, each method a request."""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from adapter.bfia import translate, wire
from adapter.bfia.connections import Connections
from adapter.bfia.environment import container_status, environment
from adapter.bfia.peer import JOB_AUDIT, Peer
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.route_test import HELLO, try_route
from adapter.bfia.translate import PROTOCOL, create_body, job_spec, job_view, unknown_fields
from adapter.body import failure_of
from adapter.foreign_jobs import not_for_create_all
from gateway.domain import approval
from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import UNCERTAIN, Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import (
    GatewayError,
    Invalid,
    NotFound,
    NotServed,
    PeerUnreachable,
    Refused,
    problems_of,
)
from gateway.identity.keys import KeyPair
from gateway.ports import JobView, ParticipantApi, SchedulerApi, Site, TaskNews, TaskReport
from gateway.runtime.context import Exchange, traced
from gateway.runtime.trials import Step
from route_table.live import LiveRoutes
from route_table.model import Route, UnknownNode

Sign = Callable[[JobSpec, Sequence[NodeId]], Mapping[NodeId, Mapping[str, Any]]]
"""returns the signed bundles of a job for nodes"""
Permits = Callable[[NodeId, JobSpec | str], str]
"""returns the permits of a node that a job, or the job of an id, uses there"""


class _Client:
    def __init__(self, peer: Peer, sign: Sign = lambda spec, nodes: {}) -> None:
        self._peer = peer
        self._sign = sign

    def _bundles(self, spec: JobSpec, nodes: Sequence[NodeId]) -> dict[str, Any]:
        """Return the member of a body that holds the signed bundles; none to a node that has sent no keys."""
        found = self._sign(spec, nodes) if self._peer.takes_bundles else {}
        return {"signed_bundles": found} if found else {}


class SchedulerClient(_Client):
    """`SchedulerApi` of a peer."""

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Send ``job/create_all``; it waits for all nodes, so it gets three times the usual time."""
        with traced(spec.trace_id):
            self._peer.check_profile()
            body = translate.create_body(spec, self._peer.profile) | self._bundles(spec, spec.nodes)
            self._peer.post("/job/create_all", body, timeout_factor=3.0)
        return spec.job_id

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Send ``task/callback``; a peer whose profile takes none polls instead."""
        profile = self._peer.profile
        if not profile.accepts_callback:
            return
        body = {
            "task_id": report.task_id,
            "role": report.role,
            "status": translate.wire_status(report.status, profile),
        }
        self._peer.post("/task/callback", body | translate.failed_by(report.failure))

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Use an extension; a peer without it tries again by itself."""
        with suppress(NotServed):
            self._peer.ask("/job/resource/free", {"job_id": job_id})

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Send the peer's usual HTTP method, and by the other where it refuses that.

        Its first refusal counts.
        """
        ways = ("GET", "POST") if self._peer.profile.status_by_get else ("POST", "GET")
        try:
            data = self._peer.job_status(ways[0], job_id)
        except Refused as refused:
            try:
                data = self._peer.job_status(ways[1], job_id)
            except Refused:
                raise refused from None
        profile = self._peer.profile
        return replace(
            job_view(job_id, data),
            is_inferred=profile.stops_for_failures and not data.get("outcome"),
            ends_no_callback_job=profile.ends_no_callback_job,
        )

    def suspend_job(
        self,
        job_id: str,
        on: bool,
        sender: NodeId,
    ) -> None:
        """Use an extension. Raises `NotServed` by a peer without it."""
        self._peer.ask("/job/suspend" if on else "/job/resume", {"job_id": job_id})

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Use an extension. Raises `NotServed` by a peer without it."""
        body = {
            "job_id": job_id,
            "parameters": parameters,
            "reason": reason,
        }
        version = self._peer.ask("/job/parameters", body, timeout_factor=3.0).get("version")
        return version if isinstance(version, int) else 0

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
    ) -> None:
        """Send ``job/audit/confirm`` where a question was asked, else by our ``job/audit_confirm``."""
        if audit:
            self._peer.post(f"{JOB_AUDIT}/confirm", translate.audit_answer_body(audit, failure))
            return
        body: dict[str, Any] = {
            "job_id": job_id,
            "status": str(JobStatus.REJECTED if failure else JobStatus.READY),
        }
        self._peer.post("/job/audit_confirm", body | translate.failed_by(failure))

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunResult:
        """Use an extension. Raises `NotServed` by a peer without it."""
        body = {
            "job_id": wanted.job_id,
            "new_job_id": wanted.new_job_id,
            "from": wanted.start,
            "parameters": wanted.parameters,
        }
        return translate.rerun_answer(
            wanted, self._peer.ask("/job/rerun", body, timeout_factor=3.0)
        )

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Send ``job/stop_all``, which has no place for a cause; ``task_name`` in it is ours."""
        self._peer.post("/job/stop_all", _of_task(job_id, task_name))


class ParticipantClient(_Client):
    """`ParticipantApi` of a peer."""

    def __init__(
        self,
        peer: Peer,
        sign: Sign = lambda spec, nodes: {},
        permits: Permits = lambda node, job: "",
    ) -> None:
        super().__init__(peer, sign)
        self._permits = permits

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Send ``job/create``; that the peer has the job already is not an error, however its profile says so."""
        profile = self._peer.profile
        self._peer.check_profile()
        try:
            body = translate.create_body(spec, profile) | self._bundles(spec, [self._peer.node])
            response = self._peer.post(
                "/job/create", body, permits=self._permits(self._peer.node, spec)
            )
        except Refused as refused:
            if not profile.says_exists or profile.says_exists not in refused.message:
                raise
            return (
                Acceptance()
            )  # it has it from an earlier try whose answer was lost: ids are random
        return translate.acceptance(response, profile)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Send ``job/audit/apply`` where the peer's profile wants that; its answer comes later."""
        profile = self._peer.profile
        if not profile.audits_first:
            return None
        self._peer.check_profile()
        self._peer.post(f"{JOB_AUDIT}/apply", translate.audit_body(spec, profile))
        return Acceptance(waits=True, asked_only=True)

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Send ``job/audit/terminate``; a peer that does not serve it is skipped."""
        body = {"audit_id": approval.id_for(job_id), **translate.ending_fields(ending)}
        with suppress(NotServed):
            self._peer.ask(f"{JOB_AUDIT}/terminate", body)

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Use an extension. Raises `NotServed` by a peer without it."""
        body = translate.create_body(spec, self._peer.profile)
        return translate.items(
            self._peer.ask("/job/plan", body, permits=self._permits(self._peer.node, spec))
        )

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Use an extension; a peer without it reserves nothing, which is not an error."""
        with suppress(NotServed):
            self._peer.ask("/job/resource/apply", {"job_id": job_id})

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Use an extension; a peer without it reserved nothing."""
        with suppress(NotServed):
            self._peer.ask("/job/resource/return", {"job_id": job_id})

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Send ``job/start``; ``without`` in it is ours, and left out where nobody is."""
        body = {"job_id": job_id, **({"without": list(without)} if without else {})}
        self._peer.post("/job/start", body, permits=self._permits(self._peer.node, job_id))

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        holding: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Use an extension. Raises `NotServed` by a peer without it."""
        signed = self._bundles(amended, [self._peer.node]) if amended else {}
        body = {
            "job_id": job_id,
            "amendment": offered.id,
            "parameters": offered.parameters,
            "reason": offered.reason,
            "by": offered.by,
            "holding": list(holding),
            **signed,
        }
        self._peer.ask("/job/parameters/offer", body)

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Send ``task/start``; ``amendments`` in it is ours, for a job whose parameters were changed."""
        body: dict[str, Any] = {
            "job_id": job_id,
            "task_id": task_id,
            "task_name": task_name,
        }
        self._peer.post("/task/start", body | ({"amendments": list(holding)} if holding else {}))

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Send ``task/poll``; peers report an unknown task in different ways."""
        try:
            data = self._peer.post("/task/poll", {"task_id": task_id, "role": role})
        except Refused as refused:
            unknown = (
                refused.reason == Refused.reason and self._peer.profile.poll_error_means_unknown
            )
            if unknown or refused.reason == "TASK_UNKNOWN":
                raise NotFound(refused.message, reason="TASK_UNKNOWN") from refused
            raise
        status = translate.read_status(data.get("status"))
        return TaskNews(status, failure_of(data.get("failed_by")))

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Send ``job/stop``, or withdraw the question where the job was only asked about."""
        body = _of_task(job_id, task_name) | translate.ending_fields(ending)
        try:
            self._peer.post("/job/stop", body)
        except (NotFound, Refused) as refused:
            if task_name or not self._peer.profile.audits_first or refused.reason in UNCERTAIN:
                raise
            try:  # withdraw the question; where the node knows of none either, its first refusal stands
                self.withdraw(job_id, ending, sender)
            except PeerUnreachable:
                raise
            except GatewayError:
                raise refused from None
            return
        has_succeeded = ending is not None and ending.outcome is Outcome.SUCCEEDED
        if self._peer.profile.stops_at_second_request and not task_name and not has_succeeded:
            with suppress(Refused):  # the first was accepted
                self._peer.post("/job/stop", body)

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """Send ``task/stop``, or ``job/stop`` with the task's name, as the peer's profile says."""
        if self._peer.profile.stops_task_by_id or not job_id:
            self._peer.post("/task/stop", {"task_id": task_id})
        else:
            self._peer.post("/job/stop", {"job_id": job_id, "task_name": task_name})

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Use an extension. Raises `NotServed` by a peer without it."""
        body = {"job_id": job_id, "dry_run": dry_run}
        try:
            self._peer.ask("/job/delete", body)
        except NotFound as error:
            if error.reason != "JOB_UNKNOWN":
                raise


def _of_task(job_id: str, task_name: str) -> dict[str, Any]:
    """Return the body about a job, or about one of its tasks."""
    return {"job_id": job_id, **({"task_name": task_name} if task_name else {})}


_PORTS = {"http": 80, "https": 443}


class BfiaProtocol:
    """The standard as a protocol; each of its clients reads its peer's route anew at every call."""

    name = PROTOCOL
    numbers_tasks = False

    def __init__(
        self,
        me: NodeId,
        routes: LiveRoutes,
        observe: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self._me = me
        self._routes = routes
        self._connections = Connections(observe)
        self.sign: Callable[[NodeId], Mapping[str, str]] = lambda node: {}
        """returns further headers by which this node proves itself to another"""
        self.key: Callable[[], KeyPair | None] = lambda: None
        """returns the key pair that signs requests"""
        self.bundles: Sign = lambda spec, nodes: {}
        self.permits: Permits = lambda node, job: ""

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules."""
        return SchedulerClient(self.peer(node), self.bundles)

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part."""
        return ParticipantClient(self.peer(node), self.bundles, self.permits)

    def environment(
        self,
        local: LocalJob,
        run: Run,
        site: Site,
    ) -> dict[str, str]:
        """Return the variables that the component layer promises a run's container."""
        return environment(local, run, site, per_task=self.session_per_task(local.spec))

    def container_status(self, run: Run, address: str) -> TaskStatus | None:
        """Ask a container at its control port (component layer 5); None where it has not ended its work."""
        return container_status(run, address)

    def session_per_task(self, spec: JobSpec) -> bool:
        """Whether some node of a job has a session for each task, so that all its containers need one."""
        return any(self._profile(node).session_per_task for node in spec.nodes if node != self._me)

    def _profile(self, node: NodeId) -> Profile:
        try:
            return PROFILES.get(self._routes.resolve(node).profile, PROFILES["spec"])
        except UnknownNode:
            return PROFILES["spec"]

    def try_route(self, node: NodeId) -> list[Step]:
        """Test the route to a node in both directions."""
        return try_route(self.peer(node), self._routes.table, node, self._me)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the job as ``create_all`` has it, in the standard's own spelling."""
        return create_body(spec, PROFILES["spec"])

    def specified(
        self,
        request: Mapping[str, Any],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Read a job that `request` has written. Raises `Invalid`."""
        try:
            body = wire.CreateJob.model_validate(dict(request))
        except ValidationError as error:
            foreign = not_for_create_all(request)
            if foreign is not None:
                raise Invalid([foreign]) from None
            raise Invalid(problems_of(error.errors(), wire.CreateJob)) from None
        return replace(
            job_spec(body, body.job_id, scheduler, trace_id), unknown_fields=unknown_fields(body)
        )

    def send(
        self,
        node: NodeId,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_factor: float,
    ) -> tuple[int, Any]:
        """Post to a path of another protocol at a node; return HTTP status and JSON."""
        return self.peer(node).raw("POST", path, body, timeout_factor=timeout_factor, more=headers)

    def reaches(self, node: NodeId) -> bool:
        """Whether a connection to a node comes up.

        A node behind another one gets a request, as only its relay knows whether it is there.
        """
        try:
            route = self._routes.table.resolve(node)
            if route.via:
                self.peer(node).raw("POST", HELLO, {})
                return True
            url = urlsplit(route.url)
            with socket.create_connection(
                (url.hostname or "", url.port or _PORTS[url.scheme]), timeout=2.0
            ):
                return True
        except (UnknownNode, OSError, ValueError, KeyError, GatewayError):
            return False

    def close(self) -> None:
        """Close the connections to all peers."""
        self._connections.close()

    def peer(self, node: NodeId, route: Route | None = None) -> Peer:
        """Return the HTTP client for a node, as its route says at each call, or by another route."""
        resolve = self._routes.resolve if route is None else lambda _: route
        return Peer(self._me, node, resolve, self._connections, self.sign, self.key)
