"""Calls other nodes: `SchedulerApi` and `ParticipantApi` over HTTP, one request per method."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from adapter.bfia import translate, views, wire
from adapter.bfia.connections import Connections, NoResponse, NotConnected, Request
from adapter.bfia.environment import container_status, environment
from adapter.bfia.paths import JOB_AUDIT, SCHEDULE
from adapter.bfia.peer import Peer
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.route_check import HELLO, try_route
from adapter.bfia.submitted import unknown_fields
from adapter.bfia.translate import PROTOCOL, create_body, job_spec
from adapter.bfia.views import job_view
from adapter.body import failure_of
from adapter.foreign_jobs import problem_of_foreign_job
from gateway.domain import approval
from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import UNCERTAIN, Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.task_ids import TaskIds
from gateway.domain.volumes import CountVolume, ignore_volume
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
from gateway.identity.seals import Seals
from gateway.links.links import Connector
from gateway.ports import JobView, ParticipantApi, SchedulerApi, Site, TaskNews, TaskReport
from gateway.runtime.context import Exchange, traced
from gateway.runtime.trials import Observe, Step, ignore
from route_table.live import LiveRoutes
from route_table.model import Route, UnknownNode
from route_table.proof import ListenerProof

# Job, nodes -> the job's signed bundles for these nodes.
BundlesOf = Callable[[JobSpec, Sequence[NodeId]], Mapping[NodeId, Mapping[str, Any]]]
# Node, job (or its id) -> value of the header with the permits for the job that the node has issued
# to this node; "" without permits
PermitsOf = Callable[[NodeId, JobSpec | str], str]

_REACH_TIMEOUT = 2.0  # seconds for a connection to come up, and as many again for the response
# HTTP statuses of a proxy that does not reach the node behind it
_PROXY_STATUSES = (502, 503, 504)
_ALL_NODES_FACTOR = 3.0  # times the usual deadline for a call that waits for all nodes of a job


def _no_bundles(
    spec: JobSpec,
    nodes: Sequence[NodeId],
) -> Mapping[NodeId, Mapping[str, Any]]:
    """Return no bundles: jobs are not signed."""
    return {}


# Called with a node that has created a job with permits of its own, and the job
PermitsUsed = Callable[[NodeId, JobSpec], None]


def _ignore_use(node: NodeId, job: JobSpec) -> None:
    """Count no use of permits."""


def _no_permits(node: NodeId, job: JobSpec | str) -> str:
    """Return no permits: the peer needs none."""
    return ""


def _no_headers(node: NodeId) -> Mapping[str, str]:
    """Return no further headers."""
    return {}


def _no_key() -> KeyPair | None:
    """Return no key pair: requests are not signed."""
    return None


def _ignore(exchange: Exchange) -> None:
    """Do not observe an exchange."""


class _Client:
    """The common part of the clients of a peer.

    Their methods ignore ``sender``: a request always names this node as its source, by `Peer`.
    `Peer.post` is for paths that every peer serves, `Peer.ask` for paths that a peer may lack.
    """

    def __init__(self, peer: Peer, bundles_of: BundlesOf = _no_bundles) -> None:
        self._peer = peer
        self._bundles_of = bundles_of

    def _bundles(
        self,
        spec: JobSpec,
        nodes: Sequence[NodeId],
    ) -> dict[str, Any]:
        """Return the field ``signed_bundles`` of a body, with the bundles for some nodes.

        Empty for a peer that takes no bundles, and for a job that is not signed.
        """
        if not self._peer.takes_bundles:
            return {}
        bundles = self._bundles_of(spec, nodes)
        if not bundles:
            return {}
        return {"signed_bundles": bundles}


class SchedulerClient(_Client):
    """`SchedulerApi` of a peer."""

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Send ``job/create_all``.

        The peer responds only after all nodes of the job have responded to the peer; so it gets
        three times the usual time.
        """
        with traced(spec.trace_id):
            self._peer.check_profile()
            body = translate.create_body(spec, self._peer.profile) | self._bundles(
                spec,
                spec.nodes,
            )
            self._peer.post("/job/create_all", body, timeout_factor=_ALL_NODES_FACTOR)
        return spec.job_id

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Send ``task/callback``, unless the peer's profile accepts none: such a peer polls."""
        profile = self._peer.profile
        if not profile.accepts_callback:
            return
        body = {
            "task_id": report.task_id,
            "role": report.role,
            "status": views.wire_status(report.status, profile),
        }
        self._peer.post("/task/callback", body | translate.failure_fields(report.failure))

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Send ``job/resource/free``, an extension.

        It is only a hint: a peer that does not serve this path tries again by itself.
        """
        with suppress(NotServed):
            self._peer.ask("/job/resource/free", {"job_id": job_id})

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Send ``status_all`` with the peer's usual HTTP method; after a refusal, with the other.

        If the peer refuses both, raises the first refusal.
        """
        profile = self._peer.profile
        methods = ["POST", "GET"]
        if profile.status_by_get:
            methods.reverse()
        usual, alternative = methods
        try:
            data = self._peer.job_status(usual, job_id)
        except Refused as refused:
            try:
                data = self._peer.job_status(alternative, job_id)
            except Refused:
                raise refused from None
        # Without an outcome in the response, the view's outcome is inferred from the states of the
        # tasks. The view says so only for a profile with ``stops_for_failures``, as the states at
        # such a peer do not tell a failed job from a stopped one.
        is_inferred = profile.stops_for_failures and not data.get("outcome")
        return replace(
            job_view(job_id, data),
            is_inferred=is_inferred,
            never_ends_callback_jobs=profile.never_ends_callback_jobs,
        )

    def suspend_job(self, job_id: str, should_be_suspended: bool, sender: NodeId) -> None:
        """Send ``job/suspend`` or ``job/resume``, which are extensions.

        Raises `NotServed` if the peer lacks the path.
        """
        path = "/job/resume"
        if should_be_suspended:
            path = "/job/suspend"
        self._peer.ask(path, {"job_id": job_id})

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Send ``job/parameters``, an extension; return the version of the parameters.

        The version is 0 if the peer does not report it. Raises `NotServed` if the peer lacks the
        path.
        """
        body = {"job_id": job_id, "parameters": parameters, "reason": reason}
        data = self._peer.ask("/job/parameters", body, timeout_factor=_ALL_NODES_FACTOR)
        version = data.get("version")
        if not isinstance(version, int):
            return 0
        return version

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
        permit: str = "",
    ) -> None:
        """Send this node's decision on a job.

        ``audit`` is the id of the audit that the peer applied for with ``job/audit/apply``: the
        decision is sent by ``job/audit/confirm``, with the ``permit``. Without an id, it is sent by
        ``job/audit_confirm``. ``failure``: why this node does not take part; None if it does.
        """
        if audit:
            body = translate.audit_answer_body(audit, failure)
            if permit:
                body |= translate.job_permit(
                    job_id, permit, owner=sender, applicant=self._peer.node
                )
            self._peer.post(f"{JOB_AUDIT}/confirm", body)
            return
        status = JobStatus.READY
        if failure is not None:
            status = JobStatus.REJECTED
        body = {
            "job_id": job_id,
            "status": str(status),
            **translate.failure_fields(failure),
        }
        self._peer.post("/job/audit_confirm", body)

    def rerun_job(self, order: Order, sender: NodeId) -> RerunResult:
        """Send ``job/rerun``, an extension. Raises `NotServed` if the peer lacks the path."""
        body = {
            "job_id": order.job_id,
            "new_job_id": order.new_job_id,
            "from": order.start,
            "parameters": order.parameters,
        }
        data = self._peer.ask("/job/rerun", body, timeout_factor=_ALL_NODES_FACTOR)
        return views.read_rerun_result(order, data)

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Send ``job/stop_all``; its field ``task_name`` is an extension.

        ``why`` is not sent: the request has no field for a cause.
        """
        self._peer.post("/job/stop_all", _job_or_task(job_id, task_name))


class ParticipantClient(_Client):
    """`ParticipantApi` of a peer."""

    def __init__(
        self,
        peer: Peer,
        bundles_of: BundlesOf = _no_bundles,
        permits: PermitsOf = _no_permits,
        permits_used: PermitsUsed = _ignore_use,
    ) -> None:
        super().__init__(peer, bundles_of)
        self._permits = permits
        self._permits_used = permits_used

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Send ``job/create``.

        A peer that refuses because it already has the job counts as having accepted it.
        """
        peer = self._peer
        profile = peer.profile
        peer.check_profile()
        body = translate.create_body(spec, profile) | self._bundles(
            spec,
            [peer.node],
        )
        permits = self._permits(peer.node, spec)
        acceptance = Acceptance()
        try:
            data = peer.post("/job/create", body, permits=permits)
            acceptance = translate.read_acceptance(data, profile)
        except Refused as refused:
            # Job ids are random: the peer has this job by an earlier try whose response was lost.
            has_job = bool(profile.job_exists_words) and profile.job_exists_words in refused.message
            if not has_job:
                raise
        if permits:
            self._permits_used(peer.node, spec)
        return acceptance

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Send ``job/audit/apply``; the peer sends its decision later, as a request.

        None, and no request, if the peer's profile needs no audit before a job.
        """
        profile = self._peer.profile
        if not profile.audits_first:
            return None
        self._peer.check_profile()
        self._peer.post(
            f"{JOB_AUDIT}/apply",
            translate.audit_body(spec, profile),
            permits=self._permits(self._peer.node, spec),
        )
        return Acceptance(waits=True, asked_only=True)

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Send ``job/audit/terminate``; a peer that does not serve this path causes no error."""
        body = {"audit_id": approval.audit_id_for(job_id), **translate.ending_fields(ending)}
        with suppress(NotServed):
            self._peer.ask(f"{JOB_AUDIT}/terminate", body)

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Send ``job/plan``, an extension. Raises `NotServed` if the peer lacks the path."""
        body = translate.create_body(spec, self._peer.profile)
        permits = self._permits(self._peer.node, spec)
        return views.read_plan(self._peer.ask("/job/plan", body, permits=permits))

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Send ``job/resource/apply``, an extension.

        A peer that does not serve this path reserves nothing, which is not an error.
        """
        with suppress(NotServed):
            self._peer.ask("/job/resource/apply", {"job_id": job_id})

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Send ``job/resource/return``, an extension.

        A peer that does not serve this path has reserved nothing, so this is not an error.
        """
        with suppress(NotServed):
            self._peer.ask("/job/resource/return", {"job_id": job_id})

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Send ``job/start``; ``without`` (the excluded parties) is an extension."""
        body: dict[str, Any] = {"job_id": job_id}
        if without:
            body["without"] = list(without)
        self._peer.post(
            "/job/start",
            body,
            permits=self._permits(self._peer.node, job_id),
        )

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        offers_in_force: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Send ``job/parameters/offer``, an extension.

        ``offers_in_force``: ids of earlier amendments; ``amended``: the job with the offered
        parameters, whose signed bundles are sent. Raises `NotServed` if the peer lacks the path.
        """
        body = {
            "job_id": job_id,
            "amendment": offered.id,
            "parameters": offered.parameters,
            "reason": offered.reason,
            "by": offered.by,
            "holding": list(offers_in_force),
        }
        if amended is not None:
            body |= self._bundles(amended, [self._peer.node])
        self._peer.ask("/job/parameters/offer", body)

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        offers_in_force: Sequence[str] = (),
    ) -> None:
        """Send ``task/start``.

        ``offers_in_force`` (ids of amendments) is sent as the extension ``amendments``.
        """
        body: dict[str, Any] = {
            "job_id": job_id,
            "task_id": task_id,
            "task_name": task_name,
        }
        if offers_in_force:
            body["amendments"] = list(offers_in_force)
        self._peer.post("/task/start", body)

    def poll_task(self, task_id: str, role: str, sender: NodeId) -> TaskNews:
        """Send ``task/poll``.

        Raises `NotFound` for an unknown task, however the peer reports it.
        """
        try:
            data = self._peer.post("/task/poll", {"task_id": task_id, "role": role})
        except Refused as refused:
            if self._means_unknown_task(refused):
                raise NotFound(refused.message, reason="TASK_UNKNOWN") from refused
            raise
        status = views.read_status(data.get("status"))
        return TaskNews(status, failure_of(data.get("failed_by")))

    def _means_unknown_task(self, refused: Refused) -> bool:
        """True if a refused poll means that the task is unknown: by its reason, or the profile."""
        if refused.reason == "TASK_UNKNOWN":
            return True
        # `Refused.reason` is the default for a refusal in which the peer names no reason.
        names_reason = refused.reason != Refused.reason
        return self._peer.profile.poll_error_means_unknown and not names_reason

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Send ``job/stop``.

        If the peer refuses because it has only an audit of the job, withdraw the audit. A peer
        whose profile needs a second request to stop a running job gets the request twice.
        """
        profile = self._peer.profile
        body = _job_or_task(job_id, task_name) | translate.ending_fields(ending)
        try:
            self._peer.post("/job/stop", body)
        except (NotFound, Refused) as refused:
            may_be_in_audit = profile.audits_first and not task_name
            # An uncertain refusal does not show that the peer has only an audit.
            if not may_be_in_audit or refused.reason in UNCERTAIN:
                raise
            self._withdraw_after(refused, job_id, ending, sender)
            return
        has_succeeded = ending is not None and ending.outcome is Outcome.SUCCEEDED
        stops_running_job = not task_name and not has_succeeded
        if stops_running_job and profile.stops_at_second_request:
            with suppress(Refused):  # does not matter: the first request was accepted
                self._peer.post("/job/stop", body)

    def _withdraw_after(
        self, refused: GatewayError, job_id: str, ending: Ending | None, sender: NodeId
    ) -> None:
        """Withdraw the audit of a job after the peer has ``refused`` to stop the job.

        Raises that earlier refusal if the peer refuses this request, too, and `PeerUnreachable` if
        the peer does not respond.
        """
        try:
            self.withdraw(job_id, ending, sender)
        except PeerUnreachable:
            raise
        except GatewayError:
            raise refused from None

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """Send ``task/stop`` if the peer's profile says so, or if ``job_id`` is empty.

        Otherwise send ``job/stop`` with the task's name.
        """
        if self._peer.profile.stops_task_by_id or not job_id:
            self._peer.post("/task/stop", {"task_id": task_id})
        else:
            self._peer.post("/job/stop", {"job_id": job_id, "task_name": task_name})

    def delete_job(self, job_id: str, dry_run: bool, sender: NodeId) -> None:
        """Send ``job/delete``, an extension; a job that the peer does not know counts as deleted.

        Raises `NotServed` if the peer lacks the path.
        """
        body = {"job_id": job_id, "dry_run": dry_run}
        try:
            self._peer.ask("/job/delete", body)
        except NotFound as error:
            if error.reason != "JOB_UNKNOWN":
                raise

    def clean_task(
        self,
        job_id: str,
        task_name: str,
        content: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Send ``task/clean``, an extension. Raises `NotServed` if the peer lacks the path."""
        body = {
            "job_id": job_id,
            "task_name": task_name,
            "content": content,
            "dry_run": dry_run,
        }
        self._peer.ask("/task/clean", body)


def _job_or_task(job_id: str, task_name: str) -> dict[str, Any]:
    """Return a body about a job, or about one of its tasks."""
    body = {"job_id": job_id}
    if task_name:
        body["task_name"] = task_name
    return body


class BfiaProtocol:
    """The standard as a protocol. Its clients look up the route to their peer at every call."""

    name = PROTOCOL

    def __init__(
        self,
        me: NodeId,
        routes: LiveRoutes,
        observe: Callable[[Exchange], None] = _ignore,
        listener: ListenerProof = ListenerProof(),
        links: Connector | None = None,
        count_volume: CountVolume = ignore_volume,
    ) -> None:
        """``listener``: what this node's listener for peers demands of all nodes.

        ``links`` opens connections over links; None: this process has none. ``count_volume`` counts
        the bytes of each exchange.
        """
        self._me = me
        self._listener = listener
        self._routes = routes
        self._links = links
        self._connections = Connections(observe, links, count_volume)
        # Connections of their own: lost calls may occupy every place of the others.
        self._probes = Connections(links=links, count_volume=count_volume)
        # Node -> headers that prove this node's identity to that node, as FATE's protocol requires
        self.proof_headers: Callable[[NodeId], Mapping[str, str]] = _no_headers
        # Returns the key pair that signs requests; None: requests are sent unsigned.
        self.key: Callable[[], KeyPair | None] = _no_key
        # Seals containers' messages and control requests; None: this node seals none.
        self.seals: Seals | None = None
        self.bundles: BundlesOf = _no_bundles
        self.permits: PermitsOf = _no_permits
        self.permits_used: PermitsUsed = _ignore_use

    def task_ids(self, node: NodeId) -> TaskIds:
        """Return the form of task ids that a node needs, by the profile of its route.

        This node takes every form: no route of the table is its own.
        """
        if node == self._me:
            return TaskIds.OPAQUE
        if self._profile(node).kubernetes_names:
            return TaskIds.KUBERNETES
        return TaskIds.OPAQUE

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a scheduling node."""
        return SchedulerClient(self.peer(node), self.bundles)

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a participating node."""
        return ParticipantClient(
            self.peer(node),
            self.bundles,
            self.permits,
            self.permits_used,
        )

    def environment(
        self,
        local: LocalJob,
        run: Run,
        site: Site,
    ) -> dict[str, str]:
        """Return the environment variables of a run's container, by the standard's component layer.

        The method calls the function of the same name.
        """
        return environment(
            local,
            run,
            site,
            per_task=self.session_per_task(local.spec),
        )

    def container_status(self, run: Run, address: str) -> TaskStatus | None:
        """Ask a container at its control port how its task ended (component layer, section 5).

        None if the container does not report an end.
        """
        return container_status(run, address)

    def session_per_task(self, spec: JobSpec) -> bool:
        """True if the job asks for a session for each task, or one of its other nodes has them.

        Then all containers of the job need a session for each task.
        """
        if spec.settings.task_sessions:
            return True
        peers = [node for node in spec.nodes if node != self._me]
        return any(self._profile(node).session_per_task for node in peers)

    def _profile(self, node: NodeId) -> Profile:
        """Return the profile of a node's route.

        Without a route, or for a profile of another protocol, return the profile ``spec``.
        """
        try:
            route = self._routes.resolve(node)
        except UnknownNode:
            return PROFILES["spec"]
        return PROFILES.get(route.profile, PROFILES["spec"])

    def try_route(self, node: NodeId, observe: Observe = ignore) -> list[Step]:
        """Test the route to a node in both directions.

        ``observe`` is called with each step once it was taken.
        """
        return try_route(
            self.peer(node),
            self._routes.table,
            node,
            self._me,
            self._listener,
            self.seals,
            observe,
            self._links,
        )

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the body of a job's ``create_all`` in the standard's own spelling."""
        return create_body(spec, PROFILES["spec"])

    def read_request(
        self,
        request: Mapping[str, Any],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Return the job in a body of ``create_all``, as the method `request` returns it.

        Raises `Invalid`: with a single problem if the body is a job of another platform, otherwise
        with every invalid field.
        """
        try:
            body = wire.CreateJob.model_validate(dict(request))
        except ValidationError as error:
            foreign = problem_of_foreign_job(request)
            if foreign is not None:
                raise Invalid([foreign]) from None
            raise Invalid(problems_of(error.errors(), wire.CreateJob)) from None
        spec = job_spec(body, body.job_id, scheduler, trace_id)
        return replace(spec, unknown_fields=unknown_fields(body))

    def send(
        self,
        node: NodeId,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_factor: float,
    ) -> tuple[int, Any]:
        """Post to a path of another protocol at a node; return HTTP status and JSON."""
        return self.peer(node).raw(
            "POST", path, body, timeout_factor=timeout_factor, other_headers=headers
        )

    def has_route(self, node: NodeId) -> bool:
        """True if a node can be called.

        While jobs with the node are running, a removed route counts, too.
        """
        try:
            self._routes.resolve(node)
        except UnknownNode:
            return False
        return True

    def reaches(self, node: NodeId) -> bool:
        """True if a small request to a node gets a response, whatever it says.

        A connection would prove nothing: proxies and firewalls accept one for a node that they do
        not reach. While jobs with the node are running, a removed route counts, too, as their calls
        use it. The response for a node behind a relay may be the relay's refusal.
        """
        try:
            route = self._routes.resolve(node)
            if not route.via:
                return self._responds(route)
            self.peer(node).raw("POST", HELLO, {})
        except (UnknownNode, ValueError, KeyError, GatewayError):
            return False
        return True

    def _responds(self, route: Route) -> bool:
        """True if the node at a route's address responds in time; not for a proxy's own response.

        Raises `PeerUnreachable` for unusable files of the identity, and `ValueError` or `KeyError`
        for a bad URL.
        """
        client = self._probes.to(route.url, route.identity)
        request = Request("POST", SCHEDULE + HELLO, {"content-type": "application/json"}, b"{}")
        try:
            response = client.send(request, _REACH_TIMEOUT)
        except (NotConnected, NoResponse):
            return False
        return response.status not in _PROXY_STATUSES

    def keep_connections(self) -> None:
        """Keep connections for control requests to the peers in use, and open those to partners."""
        self._connections.keep(self._partner_routes())

    def _partner_routes(self) -> list[Route]:
        """Return the routes to partners with keys that are dialled at an address of their own.

        Other peers are called only when there is a job for them. A link is open already.
        """
        routes = []
        for node, entry in self._routes.table.routes.items():
            is_partner = entry.enabled and entry.keys
            is_dialled = not (entry.via or entry.dial or entry.reached)
            if is_partner and is_dialled:
                routes.append(self._routes.resolve(node))
        return routes

    def close(self) -> None:
        """Close the connections to all peers."""
        self._connections.close()
        self._probes.close()

    def peer(self, node: NodeId, route: Route | None = None) -> Peer:
        """Return the HTTP client for a node.

        ``route`` None: the client uses the node's own route, and reads it again at each call.
        """

        def resolve(_: NodeId) -> Route:
            if route is None:
                return self._routes.resolve(node)
            return route

        return Peer(
            self._me,
            node,
            resolve,
            self._connections,
            self.proof_headers,
            self.key,
            self.seals,
        )
