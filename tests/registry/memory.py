"""A repository of providers in memory."""

from collections.abc import Sequence
from datetime import datetime
from threading import Lock

from provider_registry.model import Provider
from provider_registry.registry import Stale
from provider_registry.revisions import Action, Revision


class MemoryRepository:
    """Implements `provider_registry.registry.Repository`; safe to use from several threads."""

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}
        self._revisions: dict[str, list[Revision]] = {}
        self._owners: dict[str, str] = {}
        self._lock = Lock()

    def get(self, key: str) -> Provider | None:
        return self._providers.get(key)

    def list(self) -> list[Provider]:
        with self._lock:
            return [self._providers[key] for key in sorted(self._providers)]

    def write(self, revision: Revision) -> None:
        with self._lock:
            revisions = self._revisions.setdefault(revision.key, [])
            if revision.number != len(revisions) + 1:
                raise Stale(f"{revision.key} has {len(revisions)} revisions")
            revisions.append(revision)
            if revision.action is Action.DELETED:
                self._providers.pop(revision.key, None)
            else:
                self._providers[revision.key] = revision.provider

    def newest_number(self, key: str) -> int:
        return len(self._revisions.get(key, ()))

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        revisions = self._revisions.get(key, [])
        if before is not None:
            revisions = revisions[: before - 1]  # their numbers begin at 1
        return revisions[::-1][:limit]

    def superseded_since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment if a newer one has replaced it since."""
        revisions = self._revisions.get(key, [])
        past = [revision for revision in revisions if revision.at <= moment]
        if not past or past[-1] is revisions[-1]:
            return None
        return past[-1]

    def owner(self, name: str) -> str | None:
        return self._owners.get(name)

    def claim(self, name: str, owner: str) -> str:
        with self._lock:
            return self._owners.setdefault(name, owner)

    def give(self, name: str, owner: str) -> None:
        with self._lock:
            self._owners[name] = owner
