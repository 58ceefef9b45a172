"""``/api/v1/datasets``: this node's tables, who may use them, and what uses them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import Body, Depends, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import AwareDatetime, Field, model_validator

from gateway.admin.deps import (
    OPERATOR,
    AfterText,
    Limit,
    Reply,
    Why,
    api_router,
    author_of,
    record_change,
    service,
)
from gateway.admin.outputs import DOWNLOAD, MOST_ROWS, IfRange, Range, WantDigest, download, preview
from gateway.admin.responses import data as responses
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets, UnregisteredTables
from gateway.data.outputs import Column
from gateway.data.parquet import PARQUET
from gateway.data.registration import Registration, warnings_of
from gateway.data.remote import FILE
from gateway.data.sharing import Sharing
from gateway.data.table_format import UTF8
from gateway.data.upload import NAMED, Edit, free_meta
from gateway.domain.datasets import Dataset, Grant
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, StorageFailed, near
from gateway.http.pagination import page_of
from gateway.jobs.applications import Applications
from gateway.jobs.offers import ALL as ALL_PARTNERS
from gateway.ports import Clock
from route_table.live import LiveRoutes
from route_table.model import NODE_ID, NODE_RULE

# Bounds of an expiry: every time zone and database can represent the times within them.
_FIRST_EXPIRY = datetime(1970, 1, 2, tzinfo=UTC)
_LAST_EXPIRY = datetime(2300, 1, 1, tzinfo=UTC)
# Least similarity, from 0 to 1, at which an unknown node id may be a typo of a known one.
_SIMILARITY = 0.8
_DATASET = "/datasets/{namespace}/{name}"


class Granting(Why):
    """How long a node may use a dataset.

    Until `expires_at`, for `days` from now, or with neither of them until the grant is revoked.
    """

    expires_at: AwareDatetime | None = Field(
        default=None,
        lt=_LAST_EXPIRY,
        ge=_FIRST_EXPIRY,
        description="A time with its zone.",
    )
    days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="So many days from now.",
    )
    force: bool = Field(default=False, description="Grant it even if the node has no route here.")

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.expires_at is not None and self.days is not None:
            raise ValueError("expires_at and days: give one of them")
        return self

    def until(self, now: datetime) -> datetime | None:
        """Return the time at which the grant expires; None if it does not expire."""
        if self.expires_at is not None:
            return self.expires_at.astimezone(UTC)
        if self.days is not None:
            return now + timedelta(days=self.days)
        return None


class Publishing(Why):
    """Which partners see a dataset."""

    nodes: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="Ids of the partners; an empty list means all partners with a contract.",
    )


class Editing(Edit, Why):
    """Changes of a dataset; omitted fields stay unchanged."""


class Registering(Registration, Why):
    """A table in one of the node's storages, and its name as a dataset."""


_REASON_EXAMPLES = {
    "with a reason": Example(value={"reason": "wrong column units"}),
    "without": Example(value={}),
}
_PUBLISHING_EXAMPLES = {
    "one": Example(value={"nodes": ["JG0100002200000020"]}),
    "all": Example(value={}),
}
_EDIT_EXAMPLES = {
    "columns": Example(
        value={
            "label_name": "y",
            "match_id_name": "id",
            "reason": "label was forgotten",
        }
    ),
    "text": Example(
        value={
            "description": "customers of 2026",
            "meta": {"source": "crm", "old": None},
        }
    ),
}
_REGISTERING_EXAMPLE = {
    "place": "s3://joint/warehouse/customers",
    "namespace": "experiment",
    "name": "guest",
}
_REGISTERING_EXAMPLES = {
    "a folder": Example(value=_REGISTERING_EXAMPLE),
    "a folder, reading all rows": Example(value={**_REGISTERING_EXAMPLE, "count": True}),
}
_GRANT_EXAMPLES = {
    "for a quarter": Example(value={"days": 90, "reason": "contract 2026-17"}),
    "until revoked": Example(value={}),
}


def _address(
    namespace: Annotated[str, Path(examples=["experiment"])],
    name: Annotated[str, Path(examples=["breast_hetero_guest"])],
) -> Address:
    return Address(namespace, name)


Table = Annotated[Address, Depends(_address)]
Partner = Annotated[
    str, Path(description="Id of the partner node.", examples=["JG0100002200000020"])
]
Reason = Annotated[Why, Body(openapi_examples=_REASON_EXAMPLES)]


@dataclass(frozen=True)
class DatasetServices:
    """The services that the paths of datasets use."""

    datasets: Datasets
    sharing: Sharing
    storage: Storages
    routes: LiveRoutes
    applications: Applications
    clock: Clock


_Services = Annotated[DatasetServices, Depends(service(DatasetServices))]
router = api_router()


@router.get(
    "/datasets",
    summary="Datasets of this node, by namespace and name",
    response_model=responses.DatasetsPage,
)
def list_datasets(
    services: _Services,
    namespace: Annotated[str | None, Query(description="only of this namespace")] = None,
    unregistered: Annotated[
        bool, Query(description="also tables that other programs left in the storages")
    ] = True,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    """The first page also lists the tables in the storages that are no datasets yet."""
    datasets = services.datasets
    records = [dataset for dataset in datasets.list() if namespace in (None, dataset.namespace)]
    page = page_of("datasets", records, _sort_key, after, limit, _summary)
    unregistered_tables = UnregisteredTables(tables=[], notes=[])
    if unregistered and not after:
        unregistered_tables = datasets.find_unregistered(namespace or "")
    tables = [_unregistered_table(table) for table in unregistered_tables.tables]
    return Reply({**page, "unregistered": tables, "warnings": unregistered_tables.notes})


@router.post(
    "/datasets",
    summary="Register a table in place",
    response_model=responses.RegisteredDataset,
)
def register(
    request: Request,
    services: _Services,
    body: Annotated[Registering, Body(openapi_examples=_REGISTERING_EXAMPLES)],
) -> Response:
    """The table stays where it is: one file or a folder of files, in CSV (UTF-8, commas, a
    header in each file) or Parquet.

    Deleting the dataset deletes only its entry. Jobs are refused once its files have changed
    (DATASET_CHANGED).
    """
    dataset = services.datasets.register(body)
    record_change(
        request, None, {"dataset_id": dataset.dataset_id, "place": dataset.origin}, body.reason
    )
    warnings = [*dataset.warnings, *warnings_of(services.storage, dataset)]
    return Reply({**_in_full(services, dataset), "warnings": warnings})


@router.get(
    _DATASET,
    summary="A dataset: columns, counts, origin, grants, jobs that use it",
    response_model=responses.FullDataset,
)
def show_dataset(services: _Services, address: Table) -> Response:
    return Reply(_in_full(services, services.datasets.get(address)))


@router.patch(
    _DATASET,
    summary="Change the meta of an uploaded dataset",
    response_model=responses.FullDataset,
)
def edit(
    request: Request,
    services: _Services,
    address: Table,
    body: Annotated[Editing, Body(openapi_examples=_EDIT_EXAMPLES)] = Editing(),
) -> Response:
    """The dataset's file `metadata` is rewritten, its data is not.

    A new match id is checked.
    """
    before, after = services.datasets.edit(address, body)
    record_change(request, _editable(before), _editable(after), body.reason)
    return Reply(_in_full(services, after))


@router.get(
    f"{_DATASET}/preview",
    summary="The first rows of a dataset",
    response_model=responses.DatasetPreview,
)
def preview_dataset(
    services: _Services,
    address: Table,
    rows: Annotated[
        int,
        Query(ge=0, le=MOST_ROWS, description="rows to show"),
    ] = 20,
) -> Response:
    dataset = services.datasets.get(address)
    beginning = preview(services.storage, dataset.address, rows, is_declared_table=True)
    return Reply(
        {
            "dataset_id": dataset.dataset_id,
            "count": dataset.count,
            "changed": services.datasets.describe_change(dataset),
            # The preview of a table that cannot be shown has neither columns nor rows.
            "columns": [],
            "rows": [],
            **beginning,
        }
    )


@router.get(
    f"{_DATASET}/download",
    summary="A dataset as it lies in the storage, with its sha256",
    **DOWNLOAD,
)
def download_dataset(
    services: _Services,
    address: Table,
    range_: Range = "",
    if_range: IfRange = "",
    want: WantDigest = "",
) -> Response:
    """One table with one header, or one file of Parquet.

    A complete response (200) has the sha256 in its headers, a range (206) does not. For
    datasets of several partitions, and for registered ones, only if the request asks for it
    (``want-repr-digest``).
    """
    dataset = services.datasets.get(address)
    if dataset.format == PARQUET and dataset.partitions > 1:
        text = (
            f"{dataset.dataset_id} is Parquet in {dataset.partitions} files, which cannot "
            "be merged into one"
        )
        _, _, place = dataset.origin.partition(":")  # the origin is ``place:<address>``
        raise Conflict(f"{text}: fetch them at {place}", reason="NOT_ONE_FILE")
    name = f"{address.namespace}-{address.name}.{dataset.format}"
    return download(
        services.storage,
        dataset.address,
        name,
        range_,
        if_range,
        digest=dataset.stored,  # "": not known
        want=want,
    )


@router.post(
    f"{_DATASET}/disable",
    summary="Disable a dataset: jobs can no longer use it",
    response_model=responses.Dataset,
)
def disable(
    request: Request,
    services: _Services,
    address: Table,
    body: Reason = Why(),
) -> Response:
    """New jobs that name it are refused with DATASET_DISABLED; jobs under way start no further
    run with it.
    """
    return _switch(request, services.datasets, address, body, disabled=True)


@router.post(
    f"{_DATASET}/enable",
    summary="Enable a disabled dataset again",
    response_model=responses.Dataset,
)
def enable(
    request: Request,
    services: _Services,
    address: Table,
    body: Reason = Why(),
) -> Response:
    return _switch(request, services.datasets, address, body, disabled=False)


@router.put(
    f"{_DATASET}/published",
    summary="Offer a dataset to partners: its name, columns and number of rows",
    response_model=responses.FullDataset,
)
def publish(
    request: Request,
    services: _Services,
    address: Table,
    body: Annotated[Publishing, Body(openapi_examples=_PUBLISHING_EXAMPLES)] = Publishing(),
) -> Response:
    """All partners with a contract, or only the named ones, see it and may apply for its use.

    They never see rows.
    """
    _refuse_other_names(body.nodes)
    partners = body.nodes or [ALL_PARTNERS]
    return _set_published(request, services, address, partners, body.reason)


@router.delete(
    f"{_DATASET}/published",
    summary="Withdraw a dataset from the partners' lists",
    response_model=responses.FullDataset,
)
def unpublish(request: Request, services: _Services, address: Table) -> Response:
    return _set_published(request, services, address, [], "")


@router.delete(
    _DATASET,
    summary="Delete a dataset and its grants, unless a job uses it",
    response_model=responses.DeletedDataset,
)
def delete(request: Request, services: _Services, address: Table) -> Response:
    """A registered table keeps its files: only its entry is deleted."""
    # The audit log keeps the grants, which are deleted with the dataset.
    grants = _grants_of(services, address)
    deleted = _summary(services.sharing.delete(address))
    record_change(request, {**deleted, "grants": grants}, None)
    return Reply({"deleted": deleted})


@router.get(
    "/dataset-grants",
    summary="Who was granted which dataset",
    response_model=responses.GrantsPage,
)
def list_grants(
    services: _Services,
    node: Annotated[str | None, Query(description="only to this node")] = None,
    dataset_id: Annotated[
        str | None, Query(description="only of this dataset, namespace#name")
    ] = None,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    """``default``: what holds for a dataset that was never granted, the setting data.grants."""
    grants = [
        grant
        for grant in services.sharing.grants.all(node)
        if dataset_id in (None, grant.dataset.dataset_id)
    ]
    show = partial(_grant_fields, services)
    page = page_of("grants", grants, _grant_sort_key, after, limit, show)
    return Reply({"default": services.sharing.default, **page})


@router.put(
    f"{_DATASET}/grants/{{node}}",
    summary="Let jobs with a partner node use a dataset",
    response_model=responses.NewGrant,
)
def grant(
    request: Request,
    services: _Services,
    address: Table,
    node: Partner,
    body: Annotated[Granting, Body(openapi_examples=_GRANT_EXAMPLES)] = Granting(),
) -> Response:
    """After its first grant, a dataset serves only jobs with nodes to which it is granted.

    A node without a route here is refused, as its id may be a slip; with ``force`` there is only a
    warning.
    """
    warnings = _route_warnings(node, services.routes.table.routes)
    refusal = ""  # with ``force``, the warnings do not keep the node from getting the grant
    if not body.force:
        refusal = "; ".join(warnings)
    before, after = services.sharing.grant(
        address,
        node,
        by=author_of(request, OPERATOR),
        reason=body.reason,
        expires_at=body.until(services.clock()),
        refusal=refusal,
    )
    fields_before = None
    if before is not None:
        fields_before = _grant_fields(services, before)
    fields_after = _grant_fields(services, after)
    record_change(request, fields_before, fields_after, body.reason)
    return Reply({**fields_after, "warnings": warnings})


@router.delete(
    f"{_DATASET}/grants/{{node}}",
    summary="Revoke a grant; no further task starts",
    response_model=responses.Grant,
)
def revoke(
    request: Request,
    services: _Services,
    address: Table,
    node: Partner,
) -> Response:
    """The node's permits for the dataset end, too. The grant stays on record, so that the dataset
    is not open to all after its last grant was revoked.
    """
    author = author_of(request, OPERATOR)
    before, after = services.sharing.revoke(address, node, author)
    services.applications.end_dataset_permits(address.dataset_id, node, author)
    fields_after = _grant_fields(services, after)
    record_change(request, _grant_fields(services, before), fields_after)
    return Reply(fields_after)


def _switch(
    request: Request,
    datasets: Datasets,
    address: Address,
    why: Why,
    *,
    disabled: bool,
) -> Response:
    """Disable or enable a dataset, and record the change for the audit log."""
    before, after = datasets.switch(address, disabled=disabled)
    record_change(request, {"disabled": before.disabled}, {"disabled": after.disabled}, why.reason)
    return Reply(_summary(after))


def _refuse_other_names(nodes: Sequence[str]) -> None:
    """Raise `Invalid` for texts that are no node's id."""
    problems = []
    for number, node in enumerate(nodes):
        if node != ALL_PARTNERS and not NODE_ID.fullmatch(node):
            problems.append(Problem(f"nodes[{number}]", NODE_RULE, node))
    if problems:
        raise Invalid(problems)


def _set_published(
    request: Request,
    services: DatasetServices,
    address: Address,
    partners: list[str],
    reason: str,
) -> Response:
    """Set the partners that see a dataset, and record the change for the audit log."""
    before, after = services.datasets.publish(address, partners)
    record_change(request, {"published": before.published}, {"published": after.published}, reason)
    return Reply(_in_full(services, after))


def _in_full(services: DatasetServices, dataset: Dataset) -> dict[str, Any]:
    """Return a dataset with its columns, its grants, and the jobs that use it.

    If its storage fails, ``away`` says why. ``there`` is then false, and ``changed`` may be empty
    although the files have changed; the other fields do not depend on the storage.
    """
    changed = ""
    exists = False
    failure = ""
    try:
        changed = services.datasets.describe_change(dataset)
        exists = services.storage.exists(dataset.address)
    except StorageFailed as error:
        failure = error.message
    address = _named_address(dataset)
    meta = dataset.meta
    return {
        **_summary(dataset),
        "columns": _columns(dataset),
        "origin": dataset.origin,
        "checksum": dataset.checksum,
        "format": dataset.format,
        "in_place": bool(dataset.in_place),  # on record it is ``file``, ``folder`` or empty
        "delimiter": str(meta.get("delimiter", ",")),
        "encoding": str(meta.get("encoding", UTF8)),
        "label_name": str(meta.get("label_name", "")),
        "match_id_name": str(meta.get("match_id_name", "")),
        "meta": free_meta(dataset),
        "sid": dataset.sid,
        "grants": _grants_of(services, address),
        "published": dataset.published,
        "grants_default": services.sharing.default,
        "used_by": services.sharing.jobs_using(address),
        "warnings": dataset.warnings,
        "changed": changed,
        "there": exists,
        "away": failure,
    }


def _grants_of(services: DatasetServices, address: Address) -> list[dict[str, Any]]:
    """Return the grants of a dataset as responses show them."""
    return [_grant_fields(services, grant) for grant in services.sharing.grants.of(address)]


def _grant_fields(services: DatasetServices, grant: Grant) -> dict[str, Any]:
    """Return a grant as responses show it, with its state now."""
    return {
        "dataset_id": grant.dataset.dataset_id,
        "node": grant.node,
        "state": grant.state(services.clock()),
        "granted_at": grant.granted_at,
        "granted_by": grant.granted_by,
        "reason": grant.reason,
        "expires_at": grant.expires_at,
        "revoked_at": grant.revoked_at,
        "revoked_by": grant.revoked_by,
    }


def _grant_sort_key(grant: Grant) -> tuple[str, str, str]:
    return grant.dataset.namespace, grant.dataset.name, grant.node


def _route_warnings(node: str, nodes_with_route: Collection[str]) -> list[str]:
    """Return a warning for a node without a route here; an empty list for one with a route."""
    if node in nodes_with_route:
        return []
    advice = "bfia-gateway route list shows the known ones. Add its route, or force it"
    similar = near(node, nodes_with_route, _SIMILARITY)
    if similar:
        advice = f"did you mean {similar}? Add its route, or force it"
    return [f"there is no route to {node}: no node of that id is known here; {advice}"]


def _editable(dataset: Dataset) -> dict[str, Any]:
    """Return the editable fields of a dataset, for the audit log."""
    named_columns = {key: dataset.meta.get(key, "") for key in NAMED}
    return {
        "description": dataset.description,
        **named_columns,
        "meta": free_meta(dataset),
    }


def _sort_key(dataset: Dataset) -> tuple[str, str]:
    return dataset.namespace, dataset.name


def _named_address(dataset: Dataset) -> Address:
    """Return the dataset's namespace and name as an address, by which grants and jobs name it.

    `Dataset.address` has the place of its files instead.
    """
    return Address(dataset.namespace, dataset.name)


def _url(table: Dataset | Address) -> str:
    return f"/api/v1/datasets/{quote(table.namespace, safe='')}/{quote(table.name, safe='')}"


def _storage_name(table: Dataset | Address) -> str:
    """Return the name of a table's storage.

    The node's own folder has no name on record ("") and is shown as ``file``.
    """
    return table.storage or FILE


def _columns(dataset: Dataset) -> list[Column]:
    """Return the columns; their types are empty if the dataset has none on record."""
    types = dataset.types or ("",) * len(dataset.columns)
    return [Column(name, type_) for name, type_ in zip(dataset.columns, types, strict=False)]


def _unregistered_table(table: Address) -> dict[str, Any]:
    """Return a table without a record, as responses show it."""
    return {
        "dataset_id": table.dataset_id,
        "namespace": table.namespace,
        "name": table.name,
        "storage": _storage_name(table),
        "url": _url(table),
    }


def _summary(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as lists show it."""
    return {
        "dataset_id": dataset.dataset_id,
        "namespace": dataset.namespace,
        "name": dataset.name,
        "count": dataset.count,
        "columns": len(dataset.columns),
        "partitions": dataset.partitions,
        "size": dataset.size,
        "storage": _storage_name(dataset),
        "disabled": dataset.disabled,
        "description": dataset.description,
        "created_at": dataset.created_at.astimezone(UTC),
        "url": _url(dataset),
    }
