"""What partners request of the management layer, ``/v1/interconn``: contracts, and the audits of each kind alike.

A node without a route may apply for a contract, and answer, query or terminate one whose id it knows; for all else
the sender has to be known.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Query, Request

from adapter.bfia.envelope import Route, ok
from adapter.bfia.management import wire
from adapter.bfia.management.client import INTERCONN, Card, answered, confirmation
from adapter.bfia.management.wire import AUDITED, Audited
from adapter.bfia.requests import Caller, Done, Named, Peers, Sender, on
from adapter.bfia.wire import Answer
from gateway.auth import origin
from gateway.domain import applications as domain
from gateway.domain.applications import APPLIED, APPROVED, REJECTED, Application, Kind, Side
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.http.peers import check_claim
from gateway.jobs.applications import Applications
from gateway.jobs.contracts import Offers, Project
from gateway.ports import Clock
from provider_registry.model import Component, DataSpec, Provider

_NODE, _CONTRACT = f"{INTERCONN}/node", f"{INTERCONN}/node/contract"
_OF_CONTRACT = {"contract_id": "contract-1"}
_OF_AUDIT = {"audit_id": "audit-1"}
_APPROVED = {"status": "APPROVED"}
AuditId = Annotated[str, Query(min_length=1, max_length=100)]
LongId = Annotated[str, Query(max_length=400)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]
PageSize = Annotated[int, Query(ge=-1, le=1000)]
X = TypeVar("X")


def node_router(card: Card, applications: Applications, peers: Peers, clock: Clock) -> APIRouter:
    """Return the paths about nodes and contracts, of which most serve unknown senders too."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    limiter = peers.limiters.rest

    @router.post(f"{_CONTRACT}/apply", summary="A node applies for a contract (management, node)")
    async def apply(
        request: Request, body: Annotated[wire.ApplyContract, Body(examples=[wire.NODE])], sender: Sender
    ) -> Answer[wire.ContractData]:
        if sender.source not in ("", body.node_id):
            raise Invalid([Problem("node_id", f"is not the sender, {sender.source}", body.node_id)])
        check_claim(request.scope, body.node_id)
        plain = body.model_dump(mode="json", exclude_unset=True)
        node, until = body.node_id, body.expired_time
        new = domain.applied(Kind.CONTRACT, "", node, Side.THEIRS, node, plain, clock(), until, url=body.address)
        address = request.client.host if request.client else ""
        kept = await on(limiter, sender, lambda: applications.receive_contract(new, address))
        return ok(wire.ContractData(contract_id=kept.id), peers.profile_of(body.node_id))

    @router.post(
        f"{_CONTRACT}/confirm", summary="The owner answers an application for a contract (management, node)"
    )
    async def confirm(
        body: Annotated[wire.ConfirmContract, Body(examples=[_OF_CONTRACT | _APPROVED])],
        sender: Sender,
        x_source_node_id: Named = "",
    ) -> Done:
        work = partial(applications.confirm, Kind.CONTRACT, body.contract_id, _named(sender.source), _answer(body))
        await on(limiter, sender, work)
        return ok(profile=peers.profile_of(sender.source))

    @router.post(f"{_CONTRACT}/terminate", summary="Either node ends a contract (management, node)")
    async def terminate(
        body: Annotated[wire.OfContract, Body(examples=[_OF_CONTRACT])],
        sender: Sender,
        x_source_node_id: Named = "",
    ) -> Done:
        await on(
            limiter,
            sender,
            lambda: applications.end(Kind.CONTRACT, body.contract_id, _named(sender.source)),
        )
        return ok(profile=peers.profile_of(sender.source))

    @router.get(
        f"{_CONTRACT}/query", summary="State of a contract that the sender has applied for (management, node)"
    )
    async def query(contract_id: AuditId, sender: Sender, x_source_node_id: Named = "") -> Answer[wire.StatusData]:
        work = partial(applications.status, Kind.CONTRACT, contract_id, _named(sender.source))
        return _status(card, await on(limiter, sender, work), peers, sender.source)

    @router.get(f"{_NODE}/query", summary="Who this node is (management, node)")
    async def who(node_id: AuditId, sender: Sender) -> Answer[wire.NodeData]:
        if node_id != card.node:
            raise NotFound(f"this is not the node {node_id}", reason="NODE_UNKNOWN")
        return ok(wire.NodeData(**card.public()), peers.profile_of(sender.source))

    @router.get(f"{_NODE}/health", summary="Whether this node answers (management, node)")
    async def health(sender: Sender) -> Answer[wire.StatusData]:
        return ok(wire.StatusData(status="ok"), peers.profile_of(sender.source))

    @router.post(f"{_NODE}/update", summary="A partner changes its address or key (management, node)")
    async def update(
        body: Annotated[wire.UpdateNode, Body(examples=[{**wire.NODE, **_OF_CONTRACT}])],
        caller: Caller = peers.caller,
    ) -> Done:
        if not (origin().key or origin().certificate):
            text = "an update has to be signed, or sent with a client certificate"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        plain = body.model_dump(mode="json", exclude_unset=True)
        return await caller.done(limiter, lambda: applications.update(caller.node, body.contract_id, plain))

    return router


def audit_router(card: Card, applications: Applications, peers: Peers, clock: Clock) -> APIRouter:
    """Return the paths of all kinds of audits."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    for one in AUDITED.values():
        _add(router, one, card, applications, peers, clock)
    return router


def _add(
    router: APIRouter, one: Audited, card: Card, applications: Applications, peers: Peers, clock: Clock
) -> None:
    base, kind, known, limiters = f"{INTERCONN}/{one.kind}/audit", one.kind, peers.caller, peers.limiters

    async def apply(body: Any, caller: Caller = known) -> Done:
        def work() -> None:
            applications.contract_with(caller.node, body.contract_id or None)
            applications.receive(_application(one, body, caller.node, clock))

        return await caller.done(limiters.rest, work)

    example = {**_OF_AUDIT, one.subject: f"{kind}-1", **one.example}
    apply.__annotations__["body"] = Annotated[one.body, Body(examples=[example])]
    router.post(f"{base}/apply", summary=f"A partner applies for the use of a {kind} (management, {kind})")(apply)

    @router.post(f"{base}/confirm", summary=f"The owner of a {kind} answers (management, {kind})")
    async def confirm(
        body: Annotated[wire.Confirm, Body(examples=[_OF_AUDIT | _APPROVED])], caller: Caller = known
    ) -> Done:
        work = partial(applications.confirm, kind, body.audit_id, caller.node, _answer(body))
        return await caller.done(limiters.rest, work)

    @router.post(f"{base}/terminate", summary=f"Either node ends the use of a {kind} (management, {kind})")
    async def terminate(body: Annotated[wire.OfAudit, Body(examples=[_OF_AUDIT])], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: applications.end(kind, body.audit_id, caller.node))

    @router.get(f"{base}/query", summary=f"State of the sender's application for a {kind} (management, {kind})")
    async def query(audit_id: AuditId, caller: Caller = known) -> Answer[wire.StatusData]:
        work = partial(applications.status, kind, audit_id, caller.node)
        return _status(card, await on(limiters.rest, caller.sender, work), peers, caller.node)


def _application(one: Audited, body: wire.Apply, partner: NodeId, clock: Clock) -> Application:
    plain = body.model_dump(mode="json", exclude_unset=True, exclude={"audit_id"})
    until, most = getattr(body, "time_limit", None), getattr(body, "times_limit", None)
    subject = getattr(body, one.subject)
    return domain.applied(one.kind, body.audit_id, partner, Side.THEIRS, subject, plain, clock(), until, most)


def _answer(body: wire.Confirm | wire.ConfirmContract) -> Any:
    if body.status not in (APPROVED, REJECTED):
        raise Invalid([Problem("status", "must be APPROVED or REJECTED", str(body.status))])
    return answered(body)


def _named(source: NodeId) -> NodeId:
    if not source:
        raise NotAllowed("name the node that sends the request in the header x-source-node-id")
    return source


def _status(card: Card, known: Application, peers: Peers, sender: NodeId) -> Answer[wire.StatusData]:
    more: Mapping[str, Any] = {} if known.status is APPLIED else confirmation(card, known)
    return ok(wire.StatusData(status=str(known.status), **more), peers.profile_of(sender))


def offers_router(offers: Offers, institution: str, applications: Applications, peers: Peers) -> APIRouter:
    """Return the lists and queries of what this node offers to a partner with a contract."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    known, limiters = peers.caller, peers.limiters

    async def seen(caller: Caller, contract_id: str, find: Callable[[], X]) -> X:
        def work() -> X:
            applications.contract_with(caller.node, contract_id)
            return find()

        return await on(limiters.rest, caller.sender, work)

    def page(caller: Caller, found: Sequence[Mapping[str, Any]], number: int, size: int) -> Answer[wire.Records]:
        shown = found if size == -1 else found[(number - 1) * size : number * size]
        return ok(wire.Records(records=list(map(dict, shown)), total=len(found)), caller.profile)

    def record(one: Dataset, *, whole: bool) -> dict[str, Any]:
        join, label = one.meta.get("match_id_name", ""), one.meta.get("label_name", "")
        types = one.types or ("string",) * len(one.columns)
        columns = [_column(name, kind) for name, kind in zip(one.columns, types, strict=False)]
        return {
            "dataset_id": one.dataset_id,
            "name": one.name,
            "owner": institution,
            "category": "table",
            "count": one.count,
            "description": one.description,
            **({"label_columns": label} if whole else {"join_columns": join}),
            "column_metas": columns,
        }

    @router.get(f"{INTERCONN}/dataset/pub/list", summary="Datasets that a partner may see (management, dataset)")
    async def datasets(
        contract_id: AuditId, caller: Caller = known, page_num: PageNumber = 1, page_size: PageSize = 20
    ) -> Answer[wire.Records]:
        found = await seen(
            caller, contract_id, lambda: [record(d, whole=False) for d in offers.datasets(caller.node)]
        )
        return page(caller, found, page_num, page_size)

    @router.get(f"{INTERCONN}/dataset/pub/query", summary="One of them: columns and count (management, dataset)")
    async def dataset(contract_id: AuditId, dataset_id: LongId, caller: Caller = known) -> Answer[wire.Record]:
        found = await seen(caller, contract_id, lambda: offers.dataset(caller.node, dataset_id))
        return ok(wire.Record(**record(found, whole=True)), caller.profile)

    @router.get(f"{INTERCONN}/project/list", summary="Projects shared with a partner (management, project)")
    async def projects(
        contract_id: AuditId, caller: Caller = known, page_num: PageNumber = 1, page_size: PageSize = 20
    ) -> Answer[wire.Records]:
        found = await seen(caller, contract_id, lambda: [_brief(one) for one in offers.projects(caller.node)])
        return page(caller, found, page_num, page_size)

    @router.get(f"{INTERCONN}/project/query", summary="One of them: its nodes and datasets (management, project)")
    async def project(contract_id: AuditId, project_id: AuditId, caller: Caller = known) -> Answer[wire.Record]:
        found = await seen(caller, contract_id, lambda: offers.project(caller.node, project_id))
        named = found.request.get("datasets") or []
        ids = [one.get("dataset_id") for one in named if isinstance(one, Mapping)]
        more = {"nodes": list(found.nodes), "datasets": {found.nodes[0]: ids} if ids else {}}
        return ok(wire.Record(**_brief(found), **more), caller.profile)

    @router.get(f"{INTERCONN}/component/list", summary="Components that a partner may use (management, component)")
    async def components(
        contract_id: LongId = "",
        contract_Id: LongId = "",
        category: LongId = "",
        developer: LongId = "",
        caller: Caller = known,
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Answer[wire.Records]:
        def find() -> list[dict[str, Any]]:
            all_ = ({k: _component(p, c)[k] for k in _LISTED} for p, c in offers.components(caller.node))
            return [
                one for one in all_ if developer in ("", one["developer"]) and category in ("", one["category"])
            ]

        found = await seen(caller, contract_id or contract_Id, find)  # the standard prints the second
        return page(caller, found, page_num, page_size)

    @router.get(f"{INTERCONN}/component/query", summary="One of them (management, component)")
    async def component(
        contract_id: AuditId, code: LongId, version: AuditId, caller: Caller = known
    ) -> Answer[wire.Record]:
        def find() -> dict[str, Any]:
            all_ = (_component(p, c) for p, c in offers.components(caller.node))
            for one in all_:
                if (one["code"], one["version"]) == (code, version):
                    return one
            raise NotFound("no component of that code and version is here", reason="COMPONENT_UNKNOWN")

        return ok(wire.Record(**await seen(caller, contract_id, find)), caller.profile)

    return router


_LISTED = ("code", "version", "category", "developer")
_KINDS = {"int": "int", "float": "double", "boolean": "boolean"}


def _column(name: str, kind: str) -> dict[str, Any]:
    distribution = "CONTINUOUS" if kind in ("int", "float") else "DISCRETE"
    return {"name": name, "data_type": _KINDS.get(kind, "varchar"), "distribution": distribution}


def _brief(one: Project) -> dict[str, Any]:
    return {"project_id": one.id, **{key: one.request.get(key, "") for key in ("name", "type", "description")}}


def _component(provider: Provider, one: Component) -> dict[str, Any]:
    return {
        "code": f"{provider.name}/{one.name}",
        "name": one.title or one.name,
        "version": provider.version,
        "category": "",
        "developer": provider.name,
        "description": one.description,
        "engine": provider.device,
        "inputs": [_port(port) for port in one.inputs],
        "outputs": [_port(port) for port in one.outputs],
        "status": "DISABLED" if provider.retired else "ENABLED",
    }


def _port(port: DataSpec) -> dict[str, Any]:
    return {"name": port.name, "type": port.category, "description": port.description}
