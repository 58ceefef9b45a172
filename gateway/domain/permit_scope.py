"""The scope of a permit: the jobs and components to which it is limited.

It is ``auth_scope`` of the standard's management layer (``dataset/audit/apply``), which maps NODE,
PROJECT and COMPONENT to lists of ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NODE = "NODE"
PROJECT = "PROJECT"
COMPONENT = "COMPONENT"
KEYS = (NODE, PROJECT, COMPONENT)

_NO_ID = "(none)"  # shown for a job without the id in question


@dataclass(frozen=True)
class Use:
    """A use of a resource by a job, with the ids that a scope is compared with."""

    node: str  # the partner whose permit is used
    project: str  # empty: the job belongs to no project
    component: str = ""  # code of the component that reads the resource: ``provider/name``


@dataclass(frozen=True)
class Scope:
    """The limits of a permit.

    An empty field sets no limit. A use has to satisfy every other field with one of its ids.
    """

    nodes: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    components: tuple[str, ...] = ()

    @property
    def ids_by_key(self) -> dict[str, tuple[str, ...]]:
        """The limits in the form of the standard; a key without ids is left out."""
        limits = {
            NODE: self.nodes,
            PROJECT: self.projects,
            COMPONENT: self.components,
        }
        return {key: ids for key, ids in limits.items() if ids}

    def __str__(self) -> str:
        """Return the limits as messages show them, such as ``PROJECT p1, COMPONENT bank/psi``.

        The text of an unlimited scope is empty.
        """
        return ", ".join(_limit_in_words(key, ids) for key, ids in self.ids_by_key.items())


UNLIMITED = Scope()


def _limit_in_words(key: str, ids: Sequence[str]) -> str:
    """Return the limit of one key, such as ``PROJECT p1 p2``."""
    return " ".join([key, *(id_ or _NO_ID for id_ in ids)])


def read_scope(auth_scope: Mapping[str, Any]) -> Scope:
    """Return the scope in a valid ``auth_scope``."""
    return Scope(
        nodes=_ids(auth_scope, NODE),
        projects=_ids(auth_scope, PROJECT),
        components=_ids(auth_scope, COMPONENT),
    )


def _ids(auth_scope: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the ids of one key; empty if the key is absent or null."""
    return tuple(auth_scope.get(key) or ())


def narrow(requested: Scope, limits: Scope) -> Scope:
    """Return a requested scope with narrower limits; an empty field of ``limits`` changes none.

    The limits must be within the request: see `beyond`.
    """
    return Scope(
        nodes=limits.nodes or requested.nodes,
        projects=limits.projects or requested.projects,
        components=limits.components or requested.components,
    )


def beyond(requested: Scope, limits: Scope) -> Scope:
    """Return the ids of ``limits`` outside a requested scope; `UNLIMITED` without such ids."""
    return Scope(
        nodes=_excluded(requested.nodes, limits.nodes),
        projects=_excluded(requested.projects, limits.projects),
        components=_excluded(requested.components, limits.components),
    )


def _excluded(requested: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """Return the ids that are not among the requested ones; empty if the request sets no limit."""
    if not requested:
        return ()
    return tuple(id_ for id_ in ids if id_ not in requested)


def missing_scope(scope: Scope, use: Use) -> Scope:
    """Return the scope that a permit would need in addition, for a use that its scope excludes.

    `UNLIMITED` if the scope covers the use.
    """
    return Scope(
        nodes=_missing_ids(scope.nodes, use.node),
        projects=_missing_ids(scope.projects, use.project),
        components=_missing_ids(scope.components, use.component),
    )


def _missing_ids(ids: Sequence[str], used_id: str) -> tuple[str, ...]:
    """Return the id of a use if a scope has ids, but not this one; empty otherwise."""
    if not ids or used_id in ids:
        return ()
    return (used_id,)
