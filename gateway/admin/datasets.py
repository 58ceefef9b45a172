"""``/api/v1/datasets``: this node's tables, who may use them, and what uses them. Real HTTP statuses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from gateway.admin.deps import AfterText, Answer, Limit, answering, named, noted
from gateway.admin.outputs import MOST_ROWS, Asked, IfRange, Range, prepared, preview, sent
from gateway.data.datasets import Datasets
from gateway.data.sharing import Sharing
from gateway.data.storage import FileStorage
from gateway.domain.datasets import Dataset, Grant
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Invalid, near
from gateway.http.pagination import page_of
from gateway.ports import Clock, Limiters

_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
_ALIKE = 0.8
ONE = "/api/v1/datasets/{namespace}/{name}"


@dataclass(frozen=True)
class DatasetParts:
    """What the paths are built of."""

    datasets: Datasets
    sharing: Sharing
    storage: FileStorage
    clock: Clock
    limiters: Limiters
    nodes: Callable[[], Iterable[str]] = tuple
    """ids of the nodes that have a route"""


class Why(BaseModel):
    """Why it is done; for the audit. No body at all will do."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=1000, description="Why; kept in the audit.")


class Granting(Why):
    """Until when a node may use a dataset: `expires_at`, or `days` from now, or neither: until revoked."""

    expires_at: AwareDatetime | None = Field(
        default=None, lt=datetime(2300, 1, 1, tzinfo=UTC), ge=_LONG_AGO, description="A time with its zone."
    )
    days: float | None = Field(default=None, gt=0, le=36_500, description="So many days from now.")
    force: bool = Field(default=False, description="Also a node that has no route here.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.expires_at is not None and self.days is not None:
            raise ValueError("expires_at and days: give one of them")
        return self


_WHY = {"with a reason": Example(value={"reason": "wrong column units"}), "nothing to say": Example(value={})}
_GRANT = {
    "for a quarter": Example(value={"days": 90, "reason": "contract 2026-17"}),
    "until revoked": Example(value={}),
}
Namespace = Annotated[str, Path(examples=["experiment"])]
Name = Annotated[str, Path(examples=["breast_hetero_guest"])]
Partner = Annotated[str, Path(description="Id of the partner node.", examples=["JG0100002200000020"])]


def router(parts: DatasetParts) -> APIRouter:
    """Return the paths."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)

    @router.get("/api/v1/datasets", summary="Datasets of this node, by namespace and name", response_model=None)
    async def listed(
        namespace: Annotated[str | None, Query(description="only of this namespace")] = None,
        contains: Annotated[str | None, Query(description="only whose id holds this text")] = None,
        disabled: Annotated[bool | None, Query(description="only disabled ones, or only enabled ones")] = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``next``: what to send as ``after`` for the next page; null on the last one."""

        def fits(one: Dataset) -> bool:
            return (
                (namespace is None or one.namespace == namespace)
                and (contains is None or contains in one.dataset_id)
                and (disabled is None or one.disabled is disabled)
            )

        return await run(lambda: _page([d for d in parts.datasets.list() if fits(d)], after, limit))

    @router.get(ONE, summary="A dataset: columns, counts, origin, grants, jobs that use it", response_model=None)
    async def show(namespace: Namespace, name: Name) -> Any:
        return await run(lambda: _full(parts, Address(namespace, name)))

    @router.get(f"{ONE}/preview", summary="The first rows of a dataset", response_model=None)
    async def look(
        namespace: Namespace,
        name: Name,
        rows: Annotated[int, Query(ge=0, le=MOST_ROWS, description="rows to show")] = 20,
    ) -> Any:
        """``left_out`` says in words what is not shown, empty when everything is."""
        return await run(lambda: _look(parts, Address(namespace, name), rows))

    @router.get(
        f"{ONE}/download",
        summary="A dataset as it lies in the storage, with its sha256",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    async def download(namespace: Namespace, name: Name, range_: Range = "", if_range: IfRange = "") -> Any:
        """The bytes of all partitions, one after the other; each begins with its header line.

        The whole comes with its sha256, a range (206) without.
        """
        address, asked = Address(namespace, name), Asked(range_, if_range)

        def work() -> Any:
            parts.datasets.get(namespace=namespace, name=name)
            return prepared(parts.storage, address, f"{namespace}-{name}.csv", asked)

        found = await run(work)
        return found if isinstance(found, Response) else sent(found, parts.storage, parts.limiters)

    _add_changes(router, parts, run)
    _add_grants(router, parts, run)
    return router


def _add_changes(router: APIRouter, parts: DatasetParts, run: Answer) -> None:
    async def switched(request: Request, address: Address, body: Why, disabled: bool) -> Any:
        def work() -> Any:
            before, after = parts.sharing.switch(address, disabled=disabled)
            noted(request, {"disabled": before.disabled}, {"disabled": after.disabled}, body.reason)
            return brief(after)

        return await run(work)

    @router.post(f"{ONE}/disable", summary="Take a dataset out of use for jobs", response_model=None)
    async def disable(
        request: Request,
        namespace: Namespace,
        name: Name,
        body: Annotated[Why, Body(openapi_examples=_WHY)] = Why(),
    ) -> Any:
        """New jobs that name it are refused with DATASET_DISABLED, and nothing further of those here starts."""
        return await switched(request, Address(namespace, name), body, True)

    @router.post(f"{ONE}/enable", summary="Take a disabled dataset into use again", response_model=None)
    async def enable(
        request: Request,
        namespace: Namespace,
        name: Name,
        body: Annotated[Why, Body(openapi_examples=_WHY)] = Why(),
    ) -> Any:
        return await switched(request, Address(namespace, name), body, False)

    @router.delete(ONE, summary="Delete a dataset and its grants, unless a job uses it", response_model=None)
    async def delete(request: Request, namespace: Namespace, name: Name) -> Any:
        def work() -> Any:
            address = Address(namespace, name)
            grants = [_grant(g, parts.clock()) for g in parts.sharing.grants(address)]
            gone = brief(parts.sharing.delete(address))
            noted(request, {**gone, "grants": grants}, None)
            return {"deleted": gone}

        return await run(work)


def _add_grants(router: APIRouter, parts: DatasetParts, run: Answer) -> None:
    sharing = parts.sharing

    @router.get("/api/v1/dataset-grants", summary="Who was granted which dataset", response_model=None)
    async def grants(
        node: Annotated[str | None, Query(description="only to this node")] = None,
        dataset_id: Annotated[str | None, Query(description="only of this dataset, namespace#name")] = None,
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``default``: what holds for a dataset that was never granted, the setting data.grants.

        ``next``: what to send as ``after`` for the next page; null on the last one.
        """

        def work() -> Any:
            found = (g for g in sharing.all_grants(node) if dataset_id in (None, _id_of(g)))
            page = page_of(found, lambda g: (g.dataset.namespace, g.dataset.name, g.node), after, limit)
            shown = [_grant(g, parts.clock()) for g in page.entries]
            return {"default": str(sharing.default), "grants": shown, "total": page.total, "next": page.next}

        return await run(work)

    @router.put(
        f"{ONE}/grants/{{node}}", summary="Let jobs with a partner node use a dataset", response_model=None
    )
    async def grant(
        request: Request,
        namespace: Namespace,
        name: Name,
        node: Partner,
        body: Annotated[Granting, Body(openapi_examples=_GRANT)] = Granting(),
    ) -> Any:
        """From its first grant on, a dataset serves only jobs with the nodes that it is granted.

        A node without a route here is refused, as its id may be a slip; with ``force``, ``warnings`` tell of it.
        """
        by = named(request, "operator")

        def work() -> Any:
            until = _until(body, parts.clock)
            told = _unknown(node, parts.nodes())
            doubt = "" if body.force else "; ".join(told)
            address = Address(namespace, name)
            before, after = sharing.grant(address, node, by, body.reason, until, lambda _: doubt)
            old, new = before and _grant(before, parts.clock()), _grant(after, parts.clock())
            noted(request, old, new, body.reason)
            return {**new, "warnings": told}

        return await run(work)

    @router.delete(f"{ONE}/grants/{{node}}", summary="Revoke a grant; nothing further starts", response_model=None)
    async def revoke(
        request: Request,
        namespace: Namespace,
        name: Name,
        node: Partner,
        forget: Annotated[bool, Query(description="take it off the record too")] = False,
    ) -> Any:
        """It stays on record: a dataset does not become open to all by its last revocation.

        With ``forget``, for a grant that was a slip: the dataset stands as if it had never been, and
        serves everybody where that was its last one and data.grants is open.
        """
        by = named(request, "operator")

        def work() -> Any:
            if forget:
                gone = _grant(sharing.forget(Address(namespace, name), node), parts.clock())
                noted(request, gone, None)
                return {**gone, "state": "forgotten"}
            before, after = sharing.revoke(Address(namespace, name), node, by)
            now = parts.clock()
            noted(request, _grant(before, now), _grant(after, now))
            return _grant(after, now)

        return await run(work)


def brief(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as lists show it."""
    return {
        "dataset_id": dataset.dataset_id,
        "namespace": dataset.namespace,
        "name": dataset.name,
        "count": dataset.count,
        "columns": len(dataset.columns),
        "partitions": dataset.partitions,
        "size": dataset.size,
        "disabled": dataset.disabled,
        "description": dataset.description,
        "created_at": dataset.created_at.astimezone(UTC).isoformat(),
        "url": f"/api/v1/datasets/{quote(dataset.namespace, safe='')}/{quote(dataset.name, safe='')}",
    }


def _page(found: list[Dataset], after: str, limit: int) -> dict[str, Any]:
    namespace, mark, name = after.partition("#")
    if after and not (namespace and mark and name):
        raise Invalid([Problem("after", "must be what an answer said in next, namespace#name", after[:200])])
    rest = [d for d in found if (d.namespace, d.name) > (namespace, name)] if after else found
    shown = rest[:limit]
    return {
        "datasets": [brief(d) for d in shown],
        "total": len(found),
        "next": shown[-1].dataset_id if len(rest) > limit else None,
    }


def _full(parts: DatasetParts, address: Address) -> dict[str, Any]:
    dataset = parts.datasets.get(namespace=address.namespace, name=address.name)
    meta = dict(dataset.meta)
    now = parts.clock()
    types = dataset.types or ("",) * len(dataset.columns)
    return {
        **brief(dataset),
        "columns": [{"name": n, "type": t} for n, t in zip(dataset.columns, types, strict=False)],
        "origin": dataset.origin,
        "checksum": dataset.checksum,
        "delimiter": meta.pop("delimiter", ","),
        "match_id_name": meta.pop("match_id_name", ""),
        "label_name": meta.pop("label_name", ""),
        "sid": dataset.sid,
        "meta": meta,
        "there": parts.storage.exists(address),
        "grants": [_grant(g, now) for g in parts.sharing.grants(address)],
        "grants_default": str(parts.sharing.default),
        "used_by": parts.sharing.users(address),
    }


def _look(parts: DatasetParts, address: Address, rows: int) -> dict[str, Any]:
    dataset = parts.datasets.get(namespace=address.namespace, name=address.name)
    seen = preview(parts.storage, address, rows, table=True)
    return {
        "dataset_id": dataset.dataset_id,
        "count": dataset.count,
        "kind": seen.kind,
        "bytes": seen.size,
        "partitions": seen.partitions,
        "columns": seen.columns,
        "rows": seen.rows,
        "left_out": seen.left_out,
    }


def _id_of(grant: Grant) -> str:
    return f"{grant.dataset.namespace}#{grant.dataset.name}"


def _grant(grant: Grant, now: datetime) -> dict[str, Any]:
    return {
        "dataset_id": _id_of(grant),
        "node": grant.node,
        "state": grant.state(now),
        "granted_at": grant.granted_at.isoformat(),
        "granted_by": grant.granted_by,
        "reason": grant.reason,
        "expires_at": grant.expires_at.isoformat() if grant.expires_at else None,
        "revoked_at": grant.revoked_at.isoformat() if grant.revoked_at else None,
        "revoked_by": grant.revoked_by,
    }


def _unknown(node: str, known: Iterable[str]) -> list[str]:
    nodes = list(known)
    if node in nodes:
        return []
    meant = near(node, nodes, _ALIKE)
    hint = f"did you mean {meant}?" if meant else "bfia-gateway route list shows the known ones;"
    return [f"there is no route to {node}: no node of that id is known here; {hint} Add its route, or force it"]


def _until(body: Granting, clock: Callable[[], datetime]) -> datetime | None:
    if body.expires_at is not None:
        return body.expires_at.astimezone(UTC)
    return clock() + timedelta(days=body.days) if body.days is not None else None
