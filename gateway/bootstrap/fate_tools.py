"""What FATE's own tools ask of this node; there only while FATE's protocol is switched on."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Request

from adapter.bfia import data, headers
from adapter.fate import unserved
from adapter.fate.tools import client_api, client_uploads
from adapter.fate.tools.auth import ClientApp, ClientSignatures
from adapter.fate.tools.deps import ClientParts
from gateway.auth import Identity
from gateway.bootstrap.parts import Node
from gateway.data.outputs import OutputFacts
from gateway.domain.dataset_model import Dataset
from gateway.http.app import Mounted
from gateway.jobs.deletion import cancel_waiting
from gateway.ports import Limiters
from gateway.version import VERSION

PROTOCOLS = {"bfia": "bfia", "fate": "fate"}
"""kind of a description of FATE's -> the protocol that runs its jobs"""


def mounted(node: Node, uploads: data.Uploads, facts: OutputFacts, limiters: Limiters) -> list[Mounted]:
    """Return the routers for the operators' listener: none while FATE's protocol is switched off."""
    settings = node.settings
    if not settings.fate.enabled:
        return []
    body = settings.limits.body_bytes
    parts = ClientParts(
        node=settings.node.id,
        coordinator_node=settings.node.coordinator or settings.node.id,
        instance=node.owner,
        version=VERSION,
        jobs=node.coordinator,
        kept=node.store,
        registry=node.registry,
        run_logs=node.run_logs,
        storage=node.storage,
        datasets=node.datasets,
        facts_of=facts.known,
        tidy=node.deleting,
        cancel_waiting=lambda dry: cancel_waiting(node.store, node.coordinator, settings.node.id, dry),
        protocols=PROTOCOLS,
        new_job_id=node.coordinator.new_id,
        drop_table=node.sharing.delete,
        limiters=limiters,
        clock=node.clock,
    )
    return [
        *(Mounted(router, body) for router in client_api.routers(parts)),
        Mounted(client_uploads.router(_Uploads(uploads)), None),
        Mounted(unserved.router({**client_api.NOT_FOR_TOOLS, **unserved.FOR_WORKERS}), body),
    ]


def signed_by(node: Node) -> Callable[[Mapping[str, str], str], Identity | None]:
    """Return what tells by a request's headers, and the question of a look, which application signed it."""
    fate = node.settings.fate
    apps = {name: ClientApp(app.app_token, app.role) for name, app in fate.clients.items()}
    return ClientSignatures(apps if fate.enabled else {}, node.wall, node.fate.heard).identify


class _Uploads:
    """The uploads that this node has anyhow, for FATE's paths."""

    def __init__(self, uploads: data.Uploads) -> None:
        self._uploads = uploads

    async def from_path(self, document: Mapping[str, Any]) -> Dataset:
        return await self._uploads.from_path(_NOBODY, document)

    async def from_form(self, request: Request, change: Callable[[dict[str, str]], dict[str, str]]) -> Dataset:
        return await self._uploads.from_form(headers.incoming(request), request, change)


_NOBODY = headers.Incoming("", "", "")
