"""What the paths for FATE's own tools share: dependencies, how they are declared, archives as responses."""

import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, getdoc, signature
from typing import Annotated, Any, NamedTuple, Protocol

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from adapter.fate.envelope import Code, Envelope, FateRoute, coded, ok
from gateway.config.schema import Settings
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.logs import RunLogs
from gateway.data.outputs import OutputCatalog
from gateway.data.sharing import Sharing
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.retention import Deleting
from gateway.ports import Clock, Limiters
from gateway.runtime.context import new_trace_id, traced
from gateway.store.store import Store
from provider_registry.registry import Registry

Work = Callable[..., Any]

TAG = "fate client"
JOB_EXAMPLE = {"job_id": "job-0123456789abcdef0123456789abcdef"}
GZIP, TAR = "application/gzip", "application/x-tar"
"""by these content types FATE's client knows how to unpack"""
CHUNK = 256 * 1024
_GZIP_WINDOW = 31
_BLOCK = 512


class ClientParts(Protocol):
    """The parts of a node that the paths for FATE's own tools use."""

    settings: Settings
    clock: Clock
    owner: str
    """this gateway, of several of the node"""
    coordinator: Coordinator
    store: Store
    registry: Registry
    run_logs: RunLogs
    storage: Storages
    datasets: Datasets
    sharing: Sharing
    outputs: OutputCatalog
    deleting: Deleting
    limiters: Limiters


@dataclass(frozen=True)
class Call:
    """One request: who sent it, and what is there to answer it with."""

    parts: ClientParts
    request: Request

    @property
    def by(self) -> str:
        """The caller, as the operators' listener identified it."""
        return getattr(self.request.state, "operator", "") or "operator"

    @property
    def base(self) -> str:
        """This gateway's address as the caller has it, for links."""
        return str(self.request.base_url).rstrip("/")


class Paths:
    """Paths, each a blocking function ``(call, asked)`` by whose annotation FastAPI checks what was asked.

    It runs in a thread under a trace id of its own, and returns the response's data or the whole response.
    """

    def __init__(self) -> None:
        self._declared: list[tuple[Work, bool, dict[str, Any]]] = []

    def __call__(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        peers: bool = False,
        codes: Mapping[str, Code] | None = None,
        archive: str = "",
    ) -> Callable[[Work], Work]:
        """``codes``: its own ones; ``archive``: content type of one; ``peers``: it may wait for other nodes."""
        options: dict[str, Any] = {"path": path, "methods": [method], "summary": summary}
        options["response_model"] = None if archive else Envelope
        if codes:
            options["openapi_extra"] = coded(codes)
        if archive:
            content = {archive: {"schema": {"type": "string", "format": "binary"}}}
            options |= {"response_class": Response, "responses": {200: {"content": content}}}

        def declared(work: Work) -> Work:
            self._declared.append((work, peers, options))
            return work

        return declared

    def router(self, parts: ClientParts) -> APIRouter:
        """Return the paths, which use these parts."""
        router = APIRouter(tags=[TAG], route_class=FateRoute)
        for work, peers, options in self._declared:
            limiter = parts.limiters.peers if peers else parts.limiters.rest
            endpoint = _endpoint(work, parts, limiter, options["methods"] == ["GET"])
            router.add_api_route(endpoint=endpoint, description=getdoc(work), **options)
        return router


def _endpoint(work: Work, parts: ClientParts, limiter: CapacityLimiter, by_query: bool) -> Work:
    async def endpoint(request: Request, **asked: Any) -> Any:
        def run() -> Any:
            with traced(new_trace_id()):
                return work(Call(parts, request), **asked)

        found = await anyio.to_thread.run_sync(run, limiter=limiter)
        return found if isinstance(found, Envelope | Response) else ok(found)

    named = [Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)]
    if (asked := signature(work).parameters.get("asked")) is not None:
        annotation = Annotated[asked.annotation, Query()] if by_query else asked.annotation
        named.append(asked.replace(kind=Parameter.KEYWORD_ONLY, annotation=annotation))
    endpoint.__name__ = work.__name__.lstrip("_")
    endpoint.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return endpoint


class Member(NamedTuple):
    """A file of an archive. ``chunks`` are read before the next member is asked for."""

    name: str
    size: int
    chunks: Iterable[bytes]


def sent(members: Iterable[Member], filename: str, kind: str = GZIP) -> StreamingResponse:
    """Return a response that is an archive, written while it is sent; no thread waits for a slow reader."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in filename)
    headers = {"content-disposition": f'attachment; filename="{plain}"', "x-content-type-options": "nosniff"}
    return StreamingResponse(_tarred(members, kind), media_type=kind, headers=headers)


def _tarred(members: Iterable[Member], kind: str) -> Iterator[bytes]:
    """Yield the bytes of an archive. Raises `ValueError` where a member is not as long as it was said to be."""
    squeeze = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW) if kind == GZIP else None
    for data in _plain_tar(members):
        if out := squeeze.compress(data) if squeeze else data:
            yield out
    if squeeze:
        yield squeeze.flush()


def _plain_tar(members: Iterable[Member]) -> Iterator[bytes]:
    for member in members:
        info = tarfile.TarInfo(member.name)
        info.size, info.mtime = member.size, time.time()
        yield info.tobuf(tarfile.PAX_FORMAT)
        length = 0
        for chunk in member.chunks:
            length += len(chunk)
            yield chunk
        if length != member.size:
            text = f"{member.name} has {length} bytes and not {member.size}: it changed while it was read"
            raise ValueError(text)
        yield b"\0" * (-length % _BLOCK)
    yield b"\0" * (2 * _BLOCK)
