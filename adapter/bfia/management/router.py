"""Paths of the management layer for partners, ``/v1/interconn``: contracts, audits, and lists of
offers. Audit is the standard's word for an application for the use of a dataset, project, flow or
model, and for the partner's decision on it.

A node without a route may query who this node is and whether it responds, apply for a contract, and
answer, query or terminate a contract whose id it knows. Every other path requires a known sender.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request

from adapter.bfia.envelope import Route, ok
from adapter.bfia.management import wire
from adapter.bfia.management.client import Card, confirmation, read_decision
from adapter.bfia.management.wire import AUDITED, Audited
from adapter.bfia.paths import NODE, ROOT
from adapter.bfia.requests import (
    Caller,
    Paths,
    Peers,
    Sender,
    SenderSignature,
    run_blocking,
    sender_signature,
)
from adapter.bfia.wire import Answer, StateData
from gateway.auth import origin
from gateway.config.schema.tee import policy_of
from gateway.domain import applications as domain
from gateway.domain.applications import APPLIED, APPROVED, REJECTED, Application, Kind, Side
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.http.peers import check_claim
from gateway.identity.signatures import Verifier
from gateway.jobs.applications import Applications
from gateway.jobs.offers import Offers, Project
from gateway.ports import Clock
from provider_registry.model import Component, DataSpec, Provider

_CONTRACT = f"{NODE}/contract"
_ALL_RECORDS = -1  # the page_size that requests the whole list

# Examples of bodies, for the API description.
_CONTRACT_EXAMPLE = {"contract_id": "contract-1"}
_AUDIT_EXAMPLE = {"audit_id": "audit-1"}
_APPROVED_EXAMPLE = {"status": "APPROVED"}

# Type of a column here -> its name in the standard; any other type is called varchar.
_DATA_TYPES = {
    "int": "int",
    "float": "double",
    "boolean": "boolean",
}
_CONTINUOUS = ("int", "float")  # types of columns whose distribution is called continuous
_COMPONENT_SUMMARY = ("code", "version", "category", "developer")  # fields in the list

# Query parameters: a required id or version, and a longer text that may be empty
ShortId = Annotated[str, Query(min_length=1, max_length=100)]
LongText = Annotated[str, Query(max_length=400)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]
PageSize = Annotated[int, Query(ge=_ALL_RECORDS, le=1000)]
# Path and summary -> decorator that adds the path, as `Paths` does.
AddPath = Callable[..., Callable[[Any], Any]]
# Caller, contract id: raises `NotAllowed` or `NotFound` unless the caller has a contract of that id
# in force.
CheckContract = Callable[[Caller, str], None]


def node_router(
    card: Card,
    applications: Applications,
    peers: Peers,
    verifier: Verifier,
    clock: Clock,
) -> APIRouter:
    """Return the paths about nodes and contracts; only ``/update`` requires a known sender."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    _add_contract_paths(router, card, applications, peers, verifier, clock)

    @router.get(f"{NODE}/query", summary="Who this node is (management, node)")
    async def who(node_id: ShortId, sender: Sender) -> Answer[wire.NodeData]:
        if node_id != card.node:
            raise NotFound(f"this is not the node {node_id}", reason="NODE_UNKNOWN")
        return ok(wire.NodeData(**card.fields()), peers.profile_of(sender.source))

    @router.get(f"{NODE}/health", summary="Whether this node answers (management, node)")
    async def health(sender: Sender) -> Answer[StateData]:
        return ok(StateData(status="ok"), peers.profile_of(sender.source))

    # An update resolves a host name, which may be slow, so it must not block the threads that check
    # signatures. It gets the threads of requests that wait for other nodes.
    limiter = peers.limiters.peers

    @Paths(router, peers, NODE)(
        "/update", "A partner changes its address or key (management, node)", limiter
    )
    def update(
        body: Annotated[wire.UpdateNode, Body(examples=[{**wire.NODE, **_CONTRACT_EXAMPLE}])],
        caller: Caller,
    ) -> None:
        is_proven = origin().key or origin().certificate
        if not is_proven:
            text = "an update has to be signed, or sent with a client certificate"
            raise NotAllowed(text, reason="SIGNATURE_MISSING")
        values = body.model_dump(mode="json", exclude_unset=True)
        key = wire.key_of(body.auth_credential)
        applications.update(caller.node, body.contract_id, values, key)

    return router


def _add_contract_paths(
    router: APIRouter,
    card: Card,
    applications: Applications,
    peers: Peers,
    verifier: Verifier,
    clock: Clock,
) -> None:
    """Add the paths of contracts, which a node without a route may call."""
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
        # A signature or certificate of the request has to be that of the node in the body.
        check_claim(request.scope, body.node_id)
        new = domain.new_application(
            Kind.CONTRACT,
            id_="",  # chosen when the application is stored
            partner=body.node_id,
            side=Side.THEIRS,
            subject=body.node_id,
            request=body.model_dump(mode="json", exclude_unset=True),
            now=clock(),
            expires_at=body.expired_time,
            url=body.address,
        )
        new = replace(new, tee=policy_of(body.tee))
        ip_address = request.client.host if request.client else ""
        key = wire.key_of(body.auth_credential)

        def receive() -> Application:
            if not signature.present:
                return applications.receive_contract(new, ip_address)
            # The key is stored only after the sender has proved that it has the private key.
            signature.check([key])
            return applications.receive_contract(replace(new, keys=(key,)), ip_address)

        application = await run_blocking(limiter, sender, receive)
        data = wire.ContractData(contract_id=application.id)
        return ok(data, peers.profile_of(body.node_id))

    path = Paths(router, peers, _CONTRACT, allows_unknown=True)

    @path("/confirm", "The owner answers an application for a contract (management, node)")
    def confirm(
        body: Annotated[
            wire.ConfirmContract, Body(examples=[_CONTRACT_EXAMPLE | _APPROVED_EXAMPLE])
        ],
        caller: Caller,
        signature: SenderSignature = signature_of,
    ) -> None:
        decision = _read_confirmation(body)
        applications.confirm(Kind.CONTRACT, body.contract_id, caller.node, decision, signature)

    @path("/terminate", "Either node ends a contract (management, node)")
    def terminate(
        body: Annotated[wire.TerminateContract, Body(examples=[_CONTRACT_EXAMPLE])],
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
        contract_id: ShortId,
        caller: Caller,
        signature: SenderSignature = signature_of,
    ) -> StateData:
        contract = applications.status(Kind.CONTRACT, contract_id, caller.node, signature)
        return _state_data(card, contract)


def audit_router(
    card: Card,
    applications: Applications,
    peers: Peers,
    clock: Clock,
) -> APIRouter:
    """Return the paths of audits: one group for each kind of thing that is applied for."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    for audited in AUDITED.values():
        path = Paths(router, peers, f"{ROOT}/{audited.kind}/audit")
        _add_audit_paths(path, audited, card, applications, clock)
    return router


def _add_audit_paths(
    path: Paths,
    audited: Audited,
    card: Card,
    applications: Applications,
    clock: Clock,
) -> None:
    """Add the paths of the audits of one kind."""
    kind = audited.kind

    def apply(body: Any, caller: Caller) -> None:
        # Only for its error: the partner must have the named contract or, if it names none, any.
        applications.contract_with(caller.node, body.contract_id or None)
        request = body.model_dump(
            mode="json",
            exclude_unset=True,
            exclude={"audit_id"},
        )
        problems = audited.problems_in(request)
        if problems:
            raise Invalid(problems)
        new = domain.new_application(
            kind,
            id_=body.audit_id,
            partner=caller.node,
            side=Side.THEIRS,
            subject=getattr(body, audited.subject),
            request=request,
            now=clock(),
            # Only some kinds of applications have limits.
            expires_at=getattr(body, "time_limit", None),
            most_jobs=getattr(body, "times_limit", None),
        )
        applications.receive(new)

    example = {
        **_AUDIT_EXAMPLE,
        audited.subject: f"{kind}-1",
        **audited.example,
    }
    # FastAPI reads the model of the body here; it differs between the kinds.
    apply.__annotations__["body"] = Annotated[audited.body, Body(examples=[example])]
    path("/apply", f"A partner applies for the use of a {kind} (management, {kind})")(apply)

    @path("/confirm", f"The owner of a {kind} answers (management, {kind})")
    def confirm(
        body: Annotated[wire.Confirm, Body(examples=[_AUDIT_EXAMPLE | _APPROVED_EXAMPLE])],
        caller: Caller,
    ) -> None:
        applications.confirm(kind, body.audit_id, caller.node, _read_confirmation(body))

    @path("/terminate", f"Either node ends the use of a {kind} (management, {kind})")
    def terminate(
        body: Annotated[wire.TerminateApplication, Body(examples=[_AUDIT_EXAMPLE])], caller: Caller
    ) -> None:
        applications.end(kind, body.audit_id, caller.node)

    @path(
        "/query",
        f"State of the sender's application for a {kind} (management, {kind})",
        method="GET",
    )
    def query(audit_id: ShortId, caller: Caller) -> StateData:
        return _state_data(card, applications.status(kind, audit_id, caller.node))


def _read_confirmation(body: wire.Confirm | wire.ConfirmContract) -> Any:
    """Return a partner's decision on an application.

    Raises `Invalid` for a status other than APPROVED and REJECTED.
    """
    if body.status not in (APPROVED, REJECTED):
        raise Invalid([Problem("status", "must be APPROVED or REJECTED", str(body.status))])
    return read_decision(body)


def _state_data(card: Card, application: Application) -> StateData:
    """Return the state of an application; once decided, with the fields of its confirmation."""
    status = str(application.status)
    if application.status is APPLIED:
        return StateData(status=status)
    return StateData(status=status, **confirmation(card, application))


def offers_router(
    offers: Offers,
    institution: str,
    applications: Applications,
    peers: Peers,
) -> APIRouter:
    """Return the lists and queries of this node's offers to a partner with a contract."""
    router = APIRouter(tags=["management layer"], route_class=Route)
    path = partial(Paths(router, peers, f"{ROOT}/"), method="GET")

    def check_contract(caller: Caller, contract_id: str) -> None:
        applications.contract_with(caller.node, contract_id)

    _add_dataset_paths(path, offers, institution, check_contract)
    _add_project_paths(path, offers, check_contract)
    _add_component_paths(path, offers, check_contract)
    return router


def _add_dataset_paths(
    path: AddPath,
    offers: Offers,
    institution: str,
    check_contract: CheckContract,
) -> None:
    """Add the paths of this node's offered datasets."""

    @path("dataset/pub/list", "Datasets that a partner may see (management, dataset)")
    def datasets(
        contract_id: ShortId,
        caller: Caller,
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        check_contract(caller, contract_id)
        records = []
        for dataset in offers.datasets(caller.node):
            join_columns = dataset.meta.get("match_id_name", "")
            records.append({**_dataset_record(dataset, institution), "join_columns": join_columns})
        return _page(records, page_num, page_size)

    @path("dataset/pub/query", "One of them: columns and count (management, dataset)")
    def dataset(
        contract_id: ShortId,
        dataset_id: LongText,
        caller: Caller,
    ) -> wire.Record:
        check_contract(caller, contract_id)
        dataset = offers.dataset(caller.node, dataset_id)
        label_columns = dataset.meta.get("label_name", "")
        return wire.Record(**_dataset_record(dataset, institution), label_columns=label_columns)


def _add_project_paths(path: AddPath, offers: Offers, check_contract: CheckContract) -> None:
    """Add the paths of this node's projects."""

    @path("project/list", "Projects shared with a partner (management, project)")
    def projects(
        contract_id: ShortId,
        caller: Caller,
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        check_contract(caller, contract_id)
        records = [_project_record(project) for project in offers.projects(caller.node)]
        return _page(records, page_num, page_size)

    @path("project/query", "One of them: its nodes and datasets (management, project)")
    def project(
        contract_id: ShortId,
        project_id: ShortId,
        caller: Caller,
    ) -> wire.Record:
        check_contract(caller, contract_id)
        project = offers.project(caller.node, project_id)
        return wire.Record(
            **_project_record(project),
            nodes=list(project.nodes),
            datasets=_project_datasets(project),
        )


def _add_component_paths(path: AddPath, offers: Offers, check_contract: CheckContract) -> None:
    """Add the paths of this node's components."""

    @path("component/list", "Components that a partner may use (management, component)")
    def components(
        caller: Caller,
        contract_id: LongText = "",
        contract_Id: LongText = "",  # as the standard prints it
        category: LongText = "",
        developer: LongText = "",
        page_num: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> wire.Records:
        check_contract(caller, contract_id or contract_Id)
        records = []
        for provider, component in offers.components(caller.node):
            record = _component_record(provider, component)
            is_of_developer = developer in ("", record["developer"])
            is_of_category = category in ("", record["category"])
            if is_of_developer and is_of_category:
                records.append({field: record[field] for field in _COMPONENT_SUMMARY})
        return _page(records, page_num, page_size)

    @path("component/query", "One of them (management, component)")
    def component(
        contract_id: ShortId,
        code: LongText,
        version: ShortId,
        caller: Caller,
    ) -> wire.Record:
        check_contract(caller, contract_id)
        for provider, component in offers.components(caller.node):
            record = _component_record(provider, component)
            if record["code"] == code and record["version"] == version:
                return wire.Record(**record)
        raise NotFound("no component of that code and version is here", reason="COMPONENT_UNKNOWN")


def _page(
    records: Iterable[Mapping[str, Any]],
    number: int,
    size: int,
) -> wire.Records:
    """Return a page of records; pages count from 1."""
    all_records = [dict(record) for record in records]
    page = all_records
    if size != _ALL_RECORDS:
        page = all_records[(number - 1) * size : number * size]
    return wire.Records(records=page, total=len(all_records))


def _dataset_record(dataset: Dataset, institution: str) -> dict[str, Any]:
    """Return the fields of a dataset that its list and its query have in common."""
    types = dataset.types or ("string",) * len(dataset.columns)
    columns = [
        {
            "name": name,
            "data_type": _DATA_TYPES.get(type_, "varchar"),
            "distribution": "CONTINUOUS" if type_ in _CONTINUOUS else "DISCRETE",
        }
        for name, type_ in zip(dataset.columns, types, strict=False)
    ]
    return {
        "dataset_id": dataset.dataset_id,
        "name": dataset.name,
        "owner": institution,
        "category": "table",
        "count": dataset.count,
        "description": dataset.description,
        "column_metas": columns,
    }


def _project_record(project: Project) -> dict[str, Any]:
    """Return the fields of a project that its list and its query have in common."""
    return {
        "project_id": project.id,
        "name": project.request.get("name", ""),
        "type": project.request.get("type", ""),
        "description": project.request.get("description", ""),
    }


def _project_datasets(project: Project) -> dict[str, list[Any]]:
    """Return the ids of a project's datasets, by the node that applied for the project."""
    ids = [
        dataset.get("dataset_id")
        for dataset in project.request.get("datasets") or []
        if isinstance(dataset, Mapping)
    ]
    if not ids:
        return {}
    applicant = project.nodes[0]
    return {applicant: ids}


def _component_record(provider: Provider, component: Component) -> dict[str, Any]:
    """Return a component as the standard describes it."""
    return {
        "code": f"{provider.name}/{component.name}",
        "name": component.title or component.name,
        "version": provider.version,
        "category": "",
        "developer": provider.name,
        "description": component.description,
        "engine": provider.device,
        "inputs": [_port_record(port) for port in component.inputs],
        "outputs": [_port_record(port) for port in component.outputs],
        "status": "DISABLED" if provider.retired else "ENABLED",
    }


def _port_record(port: DataSpec) -> dict[str, Any]:
    """Return an input or output of a component as the standard describes it."""
    return {
        "name": port.name,
        "type": port.category,
        "description": port.description,
    }
