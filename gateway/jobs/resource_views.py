"""What people and scripts are shown of a node's resources: cores, GiB, GiB; by engine where there are several."""

from collections.abc import Mapping
from typing import Any

from gateway.domain import borrowing
from gateway.domain.amounts import Amounts
from gateway.domain.needs import Means
from gateway.domain.resources import Claim, Ledger
from gateway.domain.run import LocalJob


def engines_view(means: Means, ledger: Ledger) -> list[dict[str, Any]]:
    """Return each engine with what it has and what is held of it, the main one first; null: not known yet.

    One that the settings no longer name is there for as long as something is held of it.
    """
    still_held = {name for claim in ledger.holders for name in claim.further}
    totals = {"": ledger.total, **ledger.further}
    found = []
    for name in ("", *means.further, *sorted(still_held - means.further.keys())):
        total, held, room = totals.get(name), ledger.held_at(name), means.further.get(name)
        found.append(
            {
                "engine": name or means.engine,
                "main": not name,
                "cores": means.cores if not name else room.cores if room and room.total is not None else None,
                "total": None if total is None else _of(name, total),
                "held": _of(name, held),
                "remaining": None if total is None else _of(name, total - held),
                "away": ledger.away.get(name, ""),
                "cause": room.cause if room else "the settings name no such engine any more" if name else "",
            }
        )
    return found


def held_by(claim: Claim) -> dict[str, Any]:
    """Return what a job holds or waits for: of the main engine, and under ``engines`` of each further one."""
    return {**claim.amounts.as_dict(), "engines": _plain(claim.further)}


def pool_view(local: LocalJob) -> dict[str, Any]:
    """Return a job's own pool: what it has, what its runs have borrowed, and who of them waits."""
    pool, borrowed, left = local.pool, borrowing.borrowed(local), borrowing.remaining(local)
    further = pool.further if pool else {}
    return {
        "total": (pool.amounts if pool else Amounts()).as_dict(),
        "borrowed": borrowed[""].as_dict(),
        "remaining": left[""].as_dict(),
        "engines": {
            name: {
                "total": _of(name, most),
                "borrowed": _of(name, borrowed[name]),
                "remaining": _of(name, left[name]),
            }
            for name, most in further.items()
        },
        "tasks_at_once": pool.tasks_at_once if pool else None,
        "waiting": [
            {"task": run.task_name, "role": run.party.label, "reason": reason}
            for run in local.runs
            if (reason := borrowing.waits_for(local, run))
        ],
    }


def _plain(further: Mapping[str, Amounts]) -> dict[str, dict[str, float]]:
    return {name: _of(name, amounts) for name, amounts in further.items() if amounts}


def _of(engine: str, amounts: Amounts) -> dict[str, float]:
    """Return the amounts without the disk, where that is not the engine's but the node's."""
    return {kind: amount for kind, amount in amounts.as_dict().items() if not engine or kind != "disk_gib"}
