"""What partners request of the management layer, ``/v1/interconn``: contracts, and the audits of each kind alike.

A node without a route may apply for a contract, and answer, query or terminate one whose id it knows; for all else
the sender has to be known.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request

from adapter.bfia.envelope import Route, ok
from adapter.bfia.management import wire
from adapter.bfia.management.client import INTERCONN, Card, answered, confirmation
from adapter.bfia.management.wire import AUDITED, Audited
from adapter.bfia.requests import (
    Caller,
    Paths,
    Peers,
    Sender,
    SenderSignature,
    on,
    sender_signature,
)
from adapter.bfia.wire import Answer, StateData
from gateway.auth import origin
from gateway.domain import applications as domain
from gateway.domain.applications import APPLIED, APPROVED, REJECTED, Application, Kind, Side
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.http.peers import check_claim
from gateway.identity.signatures import Verifier
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


def node_router(
    card: Card,
    applications: Applications,
    peers: Peers,
    verifier: Verifier,
    clock: Clock,
) -> APIRouter:
    """Return the paths about nodes and contracts, of which most serve unknown senders too."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    limiter = peers.limiters.rest
    signature_of = sender_signature(verifier)

    @router.post(f"{_CONTRACT}/apply", summary="A node applies for a contract (management, node)")
    async def apply(
        request: Request,
        body: Annotated[wire.ApplyContract, Body(examples=[wire.NODE])],
        sender: Sender,
        signature: SenderSignature = signature_of,
    ) -> Answer[wire.ContractData]:
        if sender.source not in ("", body.node_id):
            raise Invalid([Problem("node_id", f"is not the sender, {sender.source}", body.node_id)])
        check_claim(request.scope, body.node_id)
        plain = body.model_dump(mode="json", exclude_unset=True)
        node, until = body.node_id, body.expired_time
        new = domain.applied(
            Kind.CONTRACT, "", node, Side.THEIRS, node, plain, clock(), until, url=body.address
        )
        address = request.client.host if request.client else ""
        key = wire.key_of(body.auth_credential)

        def receive() -> Application:
            if not signature.present:
                return applications.receive_contract(new, address)
            signature.check([key])
            return applications.receive_contract(replace(new, keys=(key,)), address)

        kept = await on(limiter, sender, receive)
        return ok(wire.ContractData(contract_id=kept.id), peers.profile_of(body.node_id))

    path = Paths(router, peers, _CONTRACT, unknown=True)

    @path("/confirm", "The owner answers an application for a contract (management, node)")
    def confirm(
        body: Annotated[wire.ConfirmContract, Body(examples=[_OF_CONTRACT | _APPROVED])],
        caller: Caller,
        signature: SenderSignature = signature_of,
    ) -> None:
        applications.confirm(Kind.CONTRACT, body.contract_id, caller.node, _answer(body), signature)

    @path("/terminate", "Either node ends a contract (management, node)")
    def terminate(
        body: Annotated[wire.OfContract, Body(examples=[_OF_CONTRACT])],
        caller: Caller,
        signature: SenderSignature = signature_of,
    ) -> None:
        applications.end(Kind.CONTRACT, body.contract_id, caller.node, signature)

    @path(
        "/query",
        "State of a contract that the sender has applied for (management, node)",
        method="GET",
    )
    def query(
        contract_id: AuditId,
        caller: Caller,
        signature: SenderSignature = signature_of,
    ) -> StateData:
        return _status(
            card, applications.status(Kind.CONTRACT, contract_id, caller.node, signature)
        )

    @router.get(f"{_NODE}/query", summary="Who this node is (management, node)")
    async def who(node_id: AuditId, sender: Sender) -> Answer[wire.NodeData]:
        if node_id != card.node:
            raise NotFound(f"this is not the node {node_id}", reason="NODE_UNKNOWN")
        return ok(wire.NodeData(**card.shown()), peers.profile_of(sender.source))

    @router.get(f"{_NODE}/health", summary="Whether this node answers (management, node)")
    async def health(sender: Sender) -> Answer[StateData]:
        return ok(StateData(status="ok"), peers.profile_of(sender.source))

    # it looks a name up, which may take long: not among those that check signatures
    threads = peers.limiters.peers

    @Paths(router, peers, _NODE)(
        "/update", "A partner changes its address or key (management, node)", threads
    )
    def update(
        body: Annotated[wire.UpdateNode, Body(examples=[{**wire.NODE, **_OF_CONTRACT}])],
        caller: Caller,
    ) -> None:
        if not (origin().key or origin().certificate):
            text = "an update has to be signed, or sent with a client certificate"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        plain = body.model_dump(mode="json", exclude_unset=True)
        applications.update(caller.node, body.contract_id, plain, wire.key_of(body.auth_credential))

    return router


def audit_router(
    card: Card,
    applications: Applications,
    peers: Peers,
    clock: Clock,
) -> APIRouter:
    """Return the paths of all kinds of audits."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    for one in AUDITED.values():
        _add(router, one, card, applications, peers, clock)
    return router


def _add(
    router: APIRouter,
    one: Audited,
    card: Card,
    applications: Applications,
    peers: Peers,
    clock: Clock,
) -> None:
    kind, path = one.kind, Paths(router, peers, f"{INTERCONN}/{one.kind}/audit")

    def apply(body: Any, caller: Caller) -> None:
        applications.contract_with(caller.node, body.contract_id or None)
        plain = body.model_dump(
            mode="json",
            exclude_unset=True,
            exclude={"audit_id"},
        )
        until, most = getattr(body, "time_limit", None), getattr(body, "times_limit", None)
        who, subject = caller.node, getattr(body, one.subject)
        new = domain.applied(
            kind, body.audit_id, who, Side.THEIRS, subject, plain, clock(), until, most
        )
        applications.receive(new)

    example = {
        **_OF_AUDIT,
        one.subject: f"{kind}-1",
        **one.example,
    }
    apply.__annotations__["body"] = Annotated[one.body, Body(examples=[example])]
    path("/apply", f"A partner applies for the use of a {kind} (management, {kind})")(apply)

    @path("/confirm", f"The owner of a {kind} answers (management, {kind})")
    def confirm(
        body: Annotated[wire.Confirm, Body(examples=[_OF_AUDIT | _APPROVED])], caller: Caller
    ) -> None:
        applications.confirm(kind, body.audit_id, caller.node, _answer(body))

    @path("/terminate", f"Either node ends the use of a {kind} (management, {kind})")
    def terminate(
        body: Annotated[wire.OfAudit, Body(examples=[_OF_AUDIT])], caller: Caller
    ) -> None:
        applications.end(kind, body.audit_id, caller.node)

    @path(
        "/query",
        f"State of the sender's application for a {kind} (management, {kind})",
        method="GET",
    )
    def query(audit_id: AuditId, caller: Caller) -> StateData:
        return _status(card, applications.status(kind, audit_id, caller.node))


def _answer(body: wire.Confirm | wire.ConfirmContract) -> Any:
    if body.status not in (APPROVED, REJECTED):
        raise Invalid([Problem("status", "must be APPROVED or REJECTED", str(body.status))])
    return answered(body)


def _status(card: Card, known: Application) -> StateData:
    more: Mapping[str, Any] = {} if known.status is APPLIED else confirmation(card, known)
    return StateData(status=str(known.status), **more)


def offers_router(
    offers: Offers,
    institution: str,
    applications: Applications,
    peers: Peers,
) -> APIRouter:
    """Return the lists and queries of what this node offers to a partner with a contract."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    path = partial(Paths(router, peers, f"{INTERCONN}/"), method="GET")
    contract = applications.contract_with

    def page(
        found: Iterable[Mapping[str, Any]],
        number: int,
        size: int,
    ) -> wire.Records:
        every = list(map(dict, found))
        return wire.Records(
            records=every if size == -1 else every[(number - 1) * size : number * size],
            total=len(every),
        )

    def record(one: Dataset, *, whole: bool) -> dict[str, Any]:
        join, label = one.meta.get("match_id_name", ""), one.meta.get("label_name", "")
        types = one.types or ("string",) * len(one.columns)
        columns = [
            {
                "name": name,
                "data_type": _KINDS.get(kind, "varchar"),
                "distribution": "CONTINUOUS" if kind in ("int", "float") else "DISCRETE",
            }
            for name, kind in zip(one.columns, types, strict=False)
        ]
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

    @path("dataset/pub/list", "Datasets that a partner may see (management, dataset)")
    def datasets(
        contract_id: AuditId,
        caller: Caller,
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        contract(caller.node, contract_id)
        return page(
            (record(d, whole=False) for d in offers.datasets(caller.node)), page_num, page_size
        )

    @path("dataset/pub/query", "One of them: columns and count (management, dataset)")
    def dataset(
        contract_id: AuditId,
        dataset_id: LongId,
        caller: Caller,
    ) -> wire.Record:
        contract(caller.node, contract_id)
        return wire.Record(**record(offers.dataset(caller.node, dataset_id), whole=True))

    @path("project/list", "Projects shared with a partner (management, project)")
    def projects(
        contract_id: AuditId,
        caller: Caller,
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        contract(caller.node, contract_id)
        return page(map(_brief, offers.projects(caller.node)), page_num, page_size)

    @path("project/query", "One of them: its nodes and datasets (management, project)")
    def project(
        contract_id: AuditId,
        project_id: AuditId,
        caller: Caller,
    ) -> wire.Record:
        contract(caller.node, contract_id)
        found = offers.project(caller.node, project_id)
        named = found.request.get("datasets") or []
        ids = [one.get("dataset_id") for one in named if isinstance(one, Mapping)]
        more = {"nodes": list(found.nodes), "datasets": {found.nodes[0]: ids} if ids else {}}
        return wire.Record(**_brief(found), **more)

    def described(caller: Caller) -> Iterator[dict[str, Any]]:
        return (_component(p, c) for p, c in offers.components(caller.node))

    @path("component/list", "Components that a partner may use (management, component)")
    def components(
        caller: Caller,
        contract_id: LongId = "",
        contract_Id: LongId = "",
        category: LongId = "",
        developer: LongId = "",
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        contract(caller.node, contract_id or contract_Id)  # the standard prints the second
        every = ({key: one[key] for key in _LISTED} for one in described(caller))
        wanted = (
            c
            for c in every
            if developer in ("", c["developer"]) and category in ("", c["category"])
        )
        return page(wanted, page_num, page_size)

    @path("component/query", "One of them (management, component)")
    def component(
        contract_id: AuditId,
        code: LongId,
        version: AuditId,
        caller: Caller,
    ) -> wire.Record:
        contract(caller.node, contract_id)
        for one in described(caller):
            if (one["code"], one["version"]) == (code, version):
                return wire.Record(**one)
        raise NotFound("no component of that code and version is here", reason="COMPONENT_UNKNOWN")

    return router


_LISTED = ("code", "version", "category", "developer")
_KINDS = {
    "int": "int",
    "float": "double",
    "boolean": "boolean",
}


def _brief(one: Project) -> dict[str, Any]:
    return {
        "project_id": one.id,
        **{key: one.request.get(key, "") for key in ("name", "type", "description")},
    }


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
    return {
        "name": port.name,
        "type": port.category,
        "description": port.description,
    }
