"""Builds what is there for FATE's sake: a part of the wiring that can be switched off."""

from dataclasses import dataclass

from adapter.fate import unserved
from gateway.app import Mounted
from gateway.settings import Settings


@dataclass(frozen=True)
class FateSide:
    """The routers of FATE's protocol for each listener: none while it is switched off."""

    settings: Settings

    def for_peers(self) -> list[Mounted]:
        return self._if_on(Mounted(unserved.router(unserved.FOR_WORKERS), self._body))

    def for_operators(self) -> list[Mounted]:
        """Return what FATE's own tools ask."""
        return self._if_on(Mounted(unserved.router(unserved.FOR_WORKERS), self._body))

    @property
    def _body(self) -> int:
        return self.settings.limits.body_bytes

    def _if_on(self, *routers: Mounted) -> list[Mounted]:
        return list(routers) if self.settings.fate.enabled else []
