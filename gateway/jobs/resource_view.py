"""Views of reservations and of the node's capacity, for the administration interface and events.

The main engine has the name "" in mappings by engine.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.domain import run as domain_run
from gateway.domain.amounts import Amounts
from gateway.domain.resources import Claim, Ledger, NodeCapacity
from gateway.domain.run import LocalJob

_OMITTED_IF_EMPTY = ("engines", "gpu")  # keys that are left out of an event if empty or 0


def node_view(
    node: NodeCapacity,
    ledger: Ledger,
    holders: list[dict[str, Any]],
    waiting: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the node's totals, its engines, the reservations and the queue.

    The totals are those of the main engine, with the disk of all engines. ``holders`` and
    ``waiting`` are views of single reservations and requests (`holder_view`, `waiting_view`).
    """
    return {
        "node": node.node,
        "engine_cores": node.cores,
        "total": ledger.total.as_dict(),
        "held": ledger.held.as_dict(),
        "others": ledger.others[""].as_dict(),  # used by programs that are not part of this node
        "remaining": ledger.remaining.as_dict(),
        "job_share": node.share,
        "engines": engine_views(node, ledger),
        "holders": holders,
        "waiting": waiting,
        "returns_ignored": ledger.ignored,
        "returned_by_reconciler": ledger.repaired,
        "expired": ledger.expired,
    }


def engine_views(
    node: NodeCapacity,
    ledger: Ledger,
) -> list[dict[str, Any]]:
    """Return a view of each engine, the main one first.

    An engine that was removed from the settings is listed as long as jobs hold amounts of it.
    """
    reserved = {name for claim in ledger.holders for name in claim.further}
    removed = sorted(reserved - node.further.keys())
    names = ["", *node.further, *removed]
    return [_engine_view(name, node, ledger, is_removed=name in removed) for name in names]


def _engine_view(
    name: str,
    node: NodeCapacity,
    ledger: Ledger,
    is_removed: bool,
) -> dict[str, Any]:
    """Return an engine's capacity and its use; None for amounts that are not known yet.

    ``name`` is empty for the main engine. ``is_removed``: the settings no longer have the engine.
    """
    totals = {"": ledger.total, **ledger.further}
    total = totals.get(name)
    reserved = ledger.held_by_engine(name)
    used_by_others = ledger.others[name]
    capacity = node.of(name)
    cores = None
    if capacity.total is not None:
        cores = capacity.cores
    view = {
        "engine": name or node.engine,
        "main": not name,
        "cores": cores,
        "total": None,
        "held": engine_amounts(name, reserved),
        "others": engine_amounts(name, used_by_others),
        "remaining": None,
        # text that says that the engine does not respond, and since when; empty if it responds
        "away": ledger.away.get(name, ""),
        "cause": capacity.cause,  # technical detail of its silence, such as an error; else ""
    }
    if total is not None:
        view["total"] = engine_amounts(name, total)
        view["remaining"] = engine_amounts(name, total - reserved - used_by_others)
    if is_removed:
        view["cause"] = "the settings name no such engine any more"
    return view


def holder_view(
    claim: Claim,
    local: LocalJob | None,
) -> dict[str, Any]:
    """Return a reservation, and under ``pool`` the use that its job makes of it.

    ``since`` is the time when it was granted. ``local`` is the record of the job here; without a
    record (None), ``pool`` is None.
    """
    pool = None
    if local is not None:
        pool = pool_view(local)
    return {**_claim_view(claim, since=claim.held_at), "pool": pool}


def waiting_view(claim: Claim) -> dict[str, Any]:
    """Return a request that waits, with its reason.

    ``since`` is the time of the job's first request, ``asked_at`` that of its last one.
    """
    return {
        **_claim_view(claim, since=claim.since),
        "asked_at": claim.asked_at.isoformat(),
        "reason": claim.reason,
    }


def _claim_view(
    claim: Claim,
    since: datetime | None,
) -> dict[str, Any]:
    """Return the part that the views of reservations and of waiting requests have in common.

    ``since`` is None only for a reservation without a recorded time.
    """
    since_text = None
    if since is not None:
        since_text = since.isoformat()
    return {
        "job_id": claim.job_id,
        **claim_amounts(claim),
        "since": since_text,
        "priority": claim.priority,
        "scheduler": claim.scheduler,
    }


def job_view(
    local: LocalJob,
    claim: Claim | None,
) -> dict[str, Any]:
    """Return a job's reservation at this node and the use that its runs make of it.

    ``claim`` is None for a job that has neither a reservation nor a waiting request.
    """
    if claim is None:
        view: dict[str, Any] = {
            "state": "NONE",
            "reason": "",
            "since": None,
        }
    else:
        since = claim.held_at or claim.since
        view = {
            "state": str(claim.state),
            "reason": claim.reason,
            "since": since.isoformat(),
        }
    return view | pool_view(local)


def pool_view(local: LocalJob) -> dict[str, Any]:
    """Return a job's own pool: its total, the part that runs use, and the runs that wait for it.

    The totals are 0 for a job that needs no pool.
    """
    pool = local.pool
    totals: Mapping[str, Amounts] = {"": Amounts()}
    tasks_at_once = None
    if pool is not None:
        totals = {"": pool.amounts, **pool.further}
        tasks_at_once = pool.tasks_at_once
    borrowed = domain_run.borrowed(local)
    remaining = domain_run.remaining(local)
    engines = {}
    for name, total in totals.items():
        engines[name] = {
            "total": engine_amounts(name, total),
            "borrowed": engine_amounts(name, borrowed[name]),
            "remaining": engine_amounts(name, remaining[name]),
        }
    main = engines.pop("")
    return {
        **main,
        "engines": engines,
        "tasks_at_once": tasks_at_once,
        "waiting": _waiting_runs(local),
    }


def _waiting_runs(local: LocalJob) -> list[dict[str, str]]:
    """Return the runs that wait for amounts of the job's pool, each with the shortage."""
    views = []
    for run in local.runs:
        reason = domain_run.waits_for(local, run)
        if reason:
            views.append({"task": run.task_name, "role": run.party.label, "reason": reason})
    return views


def event_detail(claim: Claim) -> dict[str, Any]:
    """Return the amounts of a reservation for the job's timeline."""
    amounts = claim_amounts(claim)
    return {key: value for key, value in amounts.items() if value or key not in _OMITTED_IF_EMPTY}


def claim_amounts(claim: Claim) -> dict[str, Any]:
    """Return the amounts at the main engine, and under ``engines`` those at each further engine.

    Further engines at which the job needs nothing are left out.
    """
    further = {
        name: engine_amounts(name, amounts) for name, amounts in claim.further.items() if amounts
    }
    return {**claim.amounts.as_dict(), "engines": further}


def engine_amounts(
    engine: str,
    amounts: Amounts,
) -> dict[str, float]:
    """Return the amounts of an engine; the disk, which all share, is listed with the main one."""
    values = amounts.as_dict()
    if engine:
        values.pop("disk_gib")
    return values
