"""Runs of which the engine and the store tell different things. They are shown; nothing is ended for it."""

from typing import Any

from engines.base import EngineError
from gateway.admin.parts import AdminParts
from gateway.errors import EngineFailed


def orphans(parts: AdminParts) -> dict[str, list[dict[str, Any]]]:
    """Return ``unknown`` (in the engine, not in the store) and ``lost`` (the other way round).

    Only runs of this node and installation; ``lost`` only those of this gateway. Raises `EngineFailed`.
    """
    believed = parts.store.launched(parts.owner)  # before the engine is asked: what starts meanwhile is not lost
    try:
        there = {found.name: found for found in parts.engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    missing = [run for run in believed if run.name not in there]
    still = {run.name for run in parts.store.launched(parts.owner)} if missing else set()
    return {
        "unknown": [
            {
                "name": name,
                "state": type(found.probe).__name__.lower(),
                **{key: found.labels.get(f"bfia.{key}") for key in ("job", "task", "role", "index", "attempt")},
            }
            for name, found in sorted(there.items())
            if parts.store.job_of_container(name) is None
        ],
        "lost": [
            {
                "name": run.name,
                "state": run.status,
                "job": run.job_id,
                "task": run.task_id,
                "role": run.role,
                "index": str(run.index),
                "attempt": str(run.attempt),
            }
            for run in missing
            if run.name in still  # and not ended while we looked
        ],
    }


def count(parts: AdminParts) -> dict[str, Any]:
    """Return how many there are, as a check of readiness that never fails."""
    try:
        found = orphans(parts)
    except EngineFailed as error:
        return {"ok": True, "cause": f"{error.reason}: {error.message}"}
    return {"ok": True, **{kind: len(runs) for kind, runs in found.items()}}
