"""Builds what is there for FATE's sake: a part of the wiring that can be switched off."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse

from adapter.fate import partner, scheduler, unserved
from adapter.fate.dag.components import Catalogue
from adapter.fate.dag.description import PROTOCOL, Descriptions
from adapter.fate.heard import Heard
from adapter.fate.outside import in_fates_words
from adapter.fate.ports import Standard
from adapter.fate.protocol import FateProtocol
from adapter.fate.requests import FateParts, signed
from adapter.fate.signing import App, Signatures, Site
from gateway.config.fate_settings import FateApp
from gateway.config.schema import Settings
from gateway.domain import progress
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Refused
from gateway.http.app import Mounted
from gateway.ports import Limiters, ParticipantApi, SchedulerApi
from gateway.runtime.clock import wall_of
from gateway.store.heard_signatures import SqlHeardSignatures
from gateway.store.store import Store
from provider_registry.registry import Registry

PROFILE = "fate-partner"
"""the profile of routes to nodes that speak FATE's protocol"""


_MOST_NUMBERS = 100_000
"""FATE stores 25 characters of a job's id"""


class Transport(Standard, Protocol):
    """The standard's protocol, whose connections FATE's requests take too."""

    def send(
        self, node: NodeId, path: str, body: Mapping[str, Any], headers: Mapping[str, str], patience: float
    ) -> tuple[int, Any]:
        """Post to a path of FATE's; return HTTP status and JSON."""


class FateSide:
    """FATE's protocol as a client and as routers for each listener: none while it is switched off."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        standard: Transport,
        profile_of: Callable[[NodeId], str],
        clock: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._store = store
        self._profile_of = profile_of
        self._clock = clock
        self._numbers = count()
        node = settings.node.id
        sites = settings.fate.sites
        devices = {site: found.device for site, found in sites.items()}
        self.heard = Heard(SqlHeardSignatures(store, wall_of(clock)).first)
        applications = {n: Site(_app(s.sends), _app(s.expects)) for n, s in sites.items()}
        self._signatures = Signatures(applications, self.heard)
        self._descriptions = Descriptions(node, standard, Catalogue(registry), devices)
        self.protocol = FateProtocol(
            node, self._descriptions, standard, standard.send, self._signatures, self._job, self._protocol_of
        )

    def speaks(self, node: NodeId) -> bool:
        """Say whether a node's route says that it speaks FATE's protocol."""
        return self._profile_of(node) == PROFILE

    def spoken(self, node: NodeId, protocol: str) -> str:
        """Return the protocol in which a node is called. Raises `Refused` for FATE's while it is switched off."""
        if not self.speaks(node):
            return "bfia"
        if not self._settings.fate.enabled:
            text = f"node {node} speaks FATE's protocol, which is switched off here: set fate.enabled"
            raise Refused(text, reason="PROTOCOL_OFF")
        return PROTOCOL

    def sign(self, node: NodeId) -> Mapping[str, str]:
        """Return the headers that sign a request of the standard's to a node; none where it asks for none."""
        return self._signatures.sign(node, "")

    def may_bring(self, node: NodeId, takes_part: bool | None) -> bool:
        """Say whether a node may bring a channel message: only to its own jobs.

        A job may not have been created here yet (None), which a node that has to sign control requests waits for.
        """
        return takes_part or (takes_part is None and not self._signatures.asks(node))

    def signed(
        self, source_of: Callable[[Request], NodeId], limiters: Limiters
    ) -> Callable[[Request], Awaitable[None]]:
        """Return what refuses a request of the standard's without the signature that its node has to give.

        FATE's paths check that themselves; channel messages come from a node's transport, which signs nothing.
        """

        async def check(request: Request) -> None:
            if not request.url.path.startswith(("/v2/", "/v1/interconn/chan/")):
                await signed(self._signatures, limiters, source_of(request), request)

        return check

    def elsewhere(self, path: str, error: GatewayError, status: int) -> JSONResponse | None:
        """Return FATE's answer to what none of its paths has taken; None for paths that are not FATE's."""
        return in_fates_words(path, error, status) if self._settings.fate.enabled else None

    def for_peers(
        self,
        coordinator: SchedulerApi,
        participant: ParticipantApi,
        limiters: Limiters,
        knows: Callable[[NodeId], bool],
        agree: Callable[[str, str, str], object],
    ) -> list[Mounted]:
        """Return what other nodes ask. ``agree`` takes a consent to a job: its id, who gave it, in which words."""
        parts = FateParts(
            self._settings.node.id,
            coordinator,
            participant,
            self._descriptions,
            self._signatures,
            limiters,
            knows,
            self.speaks,
            self._job,
            self._local,
            self._new_id,
            agree,
            self._is_at,
        )
        routers = (partner.router(parts), scheduler.router(parts), unserved.router(unserved.FOR_WORKERS))
        return self._if_on(*(Mounted(router, self._body) for router in routers))

    def _is_at(self, job_id: str, percent: float) -> None:
        self._store.local_jobs.update(job_id, lambda local: progress.told(local, percent))

    @property
    def _body(self) -> int:
        return self._settings.limits.body_bytes

    def _if_on(self, *routers: Mounted) -> list[Mounted]:
        return list(routers) if self._settings.fate.enabled else []

    def _job(self, job_id: str) -> Job | None:
        return self._store.jobs.find(job_id)

    def _local(self, job_id: str) -> LocalJob | None:
        return self._store.local_jobs.find(job_id)

    def _protocol_of(self, job_id: str) -> str:
        local = self._local(job_id)
        return local.spec.protocol if local is not None else "bfia"

    def _new_id(self) -> str:
        """Return an id such as FATE gives: the local time to the microsecond, and a number."""
        return f"{self._clock():%Y%m%d%H%M%S%f}{next(self._numbers) % _MOST_NUMBERS}"


def _app(found: FateApp | None) -> App | None:
    return App(found.app_id, found.app_token) if found is not None else None
