"""Where providers and their revisions are kept."""

from collections.abc import Sequence
from datetime import datetime
from threading import Lock
from typing import Protocol

from provider_registry.model import Action, Provider, Revision


class Stale(Exception):
    """Somebody else wrote the revision of that number."""


class Repository(Protocol):
    """Where providers are kept, by `Provider.key`. Safe to use from several threads and processes."""

    def get(self, key: str) -> Provider | None:
        """Return what is registered now, retired or not."""
        ...

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        ...

    def write(self, revision: Revision) -> None:
        """Store a revision, and make what it says the present state. Raises `Stale` if its number is taken."""
        ...

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0 if there was never one."""
        ...

    def history(self, key: str, before: int | None = None, limit: int = 50) -> Sequence[Revision]:
        """Return revisions, newest first; with ``before`` those of lower numbers."""
        ...

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment if another one followed it, else None."""
        ...

    def owner(self, name: str) -> str | None:
        """Return who owns a provider's name; empty: the node's admins; None: nobody yet."""
        ...

    def claim(self, name: str, owner: str) -> str:
        """Make somebody the owner of a name that has none; return who owns it now."""
        ...

    def give(self, name: str, owner: str) -> None:
        """Make somebody the owner of a name, whoever had it."""
        ...


class MemoryRepository:
    """A repository that forgets."""

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}
        self._revisions: dict[str, list[Revision]] = {}
        self._owners: dict[str, str] = {}
        self._lock = Lock()

    def get(self, key: str) -> Provider | None:
        """Return what is registered now; None: nothing."""
        return self._providers.get(key)

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        with self._lock:
            return [self._providers[key] for key in sorted(self._providers)]

    def write(self, revision: Revision) -> None:
        """Append a revision. Raises `Stale` where its number is not the next one."""
        with self._lock:
            known = self._revisions.setdefault(revision.key, [])
            if revision.number != len(known) + 1:
                raise Stale(f"{revision.key} has {len(known)} revisions")
            known.append(revision)
            if revision.action is Action.DELETED:
                self._providers.pop(revision.key, None)
            else:
                self._providers[revision.key] = revision.provider

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0: there was never one."""
        return len(self._revisions.get(key, ()))

    def history(self, key: str, before: int | None = None, limit: int = 50) -> Sequence[Revision]:
        """Return revisions, newest first."""
        known = self._revisions.get(key, [])
        return [r for r in reversed(known) if before is None or r.number < before][:limit]

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment, if another one followed it."""
        known = self._revisions.get(key, [])
        past = [r for r in known if r.at <= moment]
        return past[-1] if past and past[-1] is not known[-1] else None

    def owner(self, name: str) -> str | None:
        """Return who owns a name; None: nobody yet."""
        return self._owners.get(name)

    def claim(self, name: str, owner: str) -> str:
        """Make somebody the owner of a name that has none; return who owns it now."""
        with self._lock:
            return self._owners.setdefault(name, owner)

    def give(self, name: str, owner: str) -> None:
        """Make somebody the owner of a name."""
        with self._lock:
            self._owners[name] = owner
