"""Which job may hold what it needs of a node now, and which has to wait, and why.

Order: priority, higher first, then age. Who fits may go, also past a larger one that does not (no blocked head);
but what an earlier one that fits will come for is kept for it. Once a job has waited for longer than the ageing
bound it goes before all younger ones, whatever their priority, and no job that would delay it passes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.resources import Amounts, Claim, ClaimState, Ledger, Portions


@dataclass(frozen=True)
class Rules:
    """Bounds of waiting, in seconds."""

    ageing: float = 600.0  # after this a job goes before all younger ones, whatever their priority
    fresh: float = 90.0
    """a waiting job that has not asked for this long is passed over; its scheduling node asks every 30 s, or as
    the settings say"""


def apply(
    ledger: Ledger,
    claim: Claim,
    now: datetime,
    rules: Rules = Rules(),
) -> tuple[Ledger, bool]:
    """Let a job hold what it asks for, or let it wait with a reason. Asked again while it holds it: no change.

    A job keeps the age that it had when it first asked.
    """
    earlier = ledger.claims.get(claim.job_id)
    if earlier is not None:
        if earlier.state is ClaimState.HELD:
            return ledger.with_claim(replace(earlier, asked_at=now)), True
        claim = replace(claim, since=earlier.since)
    claim = replace(claim, state=ClaimState.WAITING, asked_at=now)
    ledger = ledger.with_claim(claim)
    if claim.job_id in admissible(ledger, now, rules):
        held = replace(claim, state=ClaimState.HELD, held_at=now, reason="")
        return ledger.with_claim(held), True
    return ledger.with_claim(replace(claim, reason=why(ledger, claim, now, rules))), False


def admissible(
    ledger: Ledger,
    now: datetime,
    rules: Rules = Rules(),
) -> list[str]:
    """Return the waiting jobs that may hold what they need now, in the order of the queue."""
    free = ledger.available
    job_ids = []
    for claim in queue(ledger, now, rules):
        if _silent(ledger, claim):
            continue  # nothing is kept for it: how long the silence lasts is not known
        if claim.portions.fits(free):
            job_ids.append(claim.job_id)
            free -= claim.portions
        elif aged(claim, now, rules):
            unreserved = dict(free.at)
            for engine, amounts in claim.portions:
                unreserved[engine] = _unreserved(free[engine], amounts)
            free = Portions(unreserved)
    return job_ids


def _silent(ledger: Ledger, claim: Claim) -> list[str]:
    """Return the engines that a job's tasks run at and that do not answer."""
    return [engine for engine in claim.further if engine in ledger.away]


def queue(
    ledger: Ledger,
    now: datetime,
    rules: Rules = Rules(),
) -> list[Claim]:
    """Return the jobs that wait and still ask, in the order in which they are served."""
    last = now - timedelta(seconds=rules.fresh)
    waiting = (
        c for c in ledger.claims.values() if c.state is ClaimState.WAITING and c.asked_at >= last
    )

    def place(claim: Claim) -> tuple[bool, int, datetime, str]:
        old = aged(claim, now, rules)
        return (not old, 0 if old else -claim.priority, claim.since, claim.job_id)

    return sorted(waiting, key=place)


def aged(
    claim: Claim,
    now: datetime,
    rules: Rules = Rules(),
) -> bool:
    """Tell whether a claim has waited for so long that it goes before all younger ones."""
    return now - claim.since >= timedelta(seconds=rules.ageing)


def _unreserved(free: Amounts, amounts: Amounts) -> Amounts:
    """Return what others may take without delaying the job that waits for these amounts."""
    needed = dict(amounts)
    unreserved = {}
    for kind, amount in free:
        unreserved[kind] = max(amount - needed[kind], 0) if needed[kind] else amount
    return Amounts(**unreserved)


def why(
    ledger: Ledger,
    claim: Claim,
    now: datetime,
    rules: Rules = Rules(),
) -> str:
    """Say what the job needs, what is free, and who has the rest; first, which engine does not answer."""
    if silent := _silent(ledger, claim):
        return "; ".join(f"ENGINE_DOWN: {ledger.away[engine]}" for engine in silent)
    on = f" on node {ledger.node}" if ledger.node else ""
    lacking = [_lack(ledger, engine, needed, on) for engine, needed in claim.portions]
    if any(lacking):
        return "; ".join(filter(None, lacking))
    ahead = []
    for other in queue(ledger, now, rules):
        if other.job_id == claim.job_id:
            break
        ahead.append(other)
    needs = f"needs {claim.portions.text()}{on}, which is kept for jobs that go first"
    return f"{needs}: {_listed(ahead)}" if ahead else needs


def _lack(
    ledger: Ledger,
    engine: str,
    needed: Amounts,
    on: str,
) -> str:
    """Say of what an engine has too little free, and who has it; empty for nothing."""
    if engine and engine not in ledger.further:
        return f"there is no engine {engine}{on} any more"
    free = ledger.available[engine]
    lacks = needed.lacking(free)
    if not lacks:
        return ""
    holders = [c for c in ledger.holders if any(dict(c.portions[engine])[kind] for kind in lacks)]
    at = f" at engine {engine}{on}" if engine else on
    text = f"needs {needed.text(lacks)}{at}, free {free.text(lacks)}"
    text = f"{text}, held by {_listed(holders, lacks, engine)}" if holders else text
    used = ledger.others[engine]
    by_others = [kind for kind in lacks if dict(used)[kind]]
    return f"{text}, others use {used.text(by_others)}" if by_others else text


def _listed(
    claims: Iterable[Claim],
    kinds: tuple[str, ...] = (),
    engine: str | None = None,
) -> str:
    ordered = sorted(claims, key=lambda c: (c.held_at or c.since, c.job_id))

    def amounts(claim: Claim) -> str:
        return claim.portions.text() if engine is None else claim.portions[engine].text(kinds)

    named = ", ".join(f"job {c.job_id} ({amounts(c)})" for c in ordered[:3])
    return named + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
