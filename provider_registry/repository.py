"""Where providers and their revisions are kept."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from provider_registry.model import Provider, Revision


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
        """Store a revision and its provider as the present state. Raises `Stale` if its number is taken."""
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
        """Set the owner of a name that has none; return who owns it now."""
        ...

    def give(self, name: str, owner: str) -> None:
        """Set the owner of a name."""
        ...
