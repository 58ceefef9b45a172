"""The queue for a node's resources: which jobs get their reservation now, and why others wait.

Jobs are served by priority, higher first, then by age. A job that fits may pass a larger one that
does not, so that a large job does not block the queue. A job that has waited longer than the ageing
bound goes before all younger ones, whatever their priority, and may not be passed by a job that
would delay it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.amounts import Amounts, AmountsByEngine
from gateway.domain.lists import listed
from gateway.domain.resources import Claim, ClaimState, Ledger

_MAX_LISTED = 3  # jobs that a message lists


@dataclass(frozen=True)
class QueueRules:
    """Bounds of waiting, in seconds."""

    ageing: float = 600.0  # after this a job goes before all younger ones, whatever their priority
    # A waiting job whose scheduling node has not repeated the request for this long is passed over.
    # By default a scheduling node repeats it every 30 s.
    fresh: float = 90.0


def apply(
    ledger: Ledger,
    claim: Claim,
    now: datetime,
    rules: QueueRules = QueueRules(),
) -> tuple[Ledger, bool]:
    """Return the ledger after a job's request for resources, and whether it is granted.

    A request that is not granted waits in the ledger with a reason. A repeated request has the age
    of the first one. A job that holds its resources already keeps them.
    """
    earlier = ledger.claims.get(claim.job_id)
    if earlier is not None:
        if earlier.state is ClaimState.HELD:
            return ledger.with_claim(replace(earlier, asked_at=now)), True
        claim = replace(claim, since=earlier.since)
    claim = replace(
        claim,
        state=ClaimState.WAITING,
        asked_at=now,
    )
    ledger = ledger.with_claim(claim)
    if claim.job_id in admissible(ledger, now, rules):
        claim = replace(
            claim,
            state=ClaimState.HELD,
            held_at=now,
            reason="",
        )
        return ledger.with_claim(claim), True
    claim = replace(
        claim,
        reason=waiting_reason(ledger, claim, now, rules),
    )
    return ledger.with_claim(claim), False


def admissible(
    ledger: Ledger,
    now: datetime,
    rules: QueueRules = QueueRules(),
) -> list[str]:
    """Return the ids of waiting jobs that may hold their resources now, in the queue's order.

    A job with an engine that does not respond is passed over: nothing is reserved for it.
    """
    free = ledger.available
    job_ids = []
    for claim in queue(ledger, now, rules):
        if _silent_engines(ledger, claim):
            continue  # the silence may be long, so nothing is reserved for the job
        if claim.by_engine.fits(free):
            job_ids.append(claim.job_id)
            free -= claim.by_engine
        elif is_aged(claim, now, rules):
            # kept for the aged job, so that no later job in the queue delays it
            free = _without_reserved(free, claim.by_engine)
    return job_ids


def queue(
    ledger: Ledger,
    now: datetime,
    rules: QueueRules = QueueRules(),
) -> list[Claim]:
    """Return the waiting jobs in the order of service.

    A job whose last request is older than ``fresh`` seconds is left out.
    """
    oldest_request = now - timedelta(seconds=rules.fresh)
    claims = ledger.claims.values()
    waiting = [claim for claim in claims if claim.state is ClaimState.WAITING]
    repeated = [claim for claim in waiting if claim.asked_at >= oldest_request]

    def rank(claim: Claim) -> tuple[bool, int, datetime, str]:
        # False sorts before True: aged jobs come first, by age alone
        if is_aged(claim, now, rules):
            return (False, 0, claim.since, claim.job_id)
        return (True, -claim.priority, claim.since, claim.job_id)

    return sorted(repeated, key=rank)


def is_aged(
    claim: Claim,
    now: datetime,
    rules: QueueRules = QueueRules(),
) -> bool:
    """Return whether a job has waited so long that it goes before all younger ones.

    That is the case once ``ageing`` seconds have passed since its first request.
    """
    return now - claim.since >= timedelta(seconds=rules.ageing)


def _silent_engines(ledger: Ledger, claim: Claim) -> list[str]:
    """Return the engines of a job's tasks, other than the main engine, that do not respond."""
    return [engine for engine in claim.further if engine in ledger.away]


def _without_reserved(free: AmountsByEngine, reserved: AmountsByEngine) -> AmountsByEngine:
    """Return the free capacity minus the amounts that are kept for an aged job."""
    unreserved = dict(free.at)
    for engine, amounts in reserved:
        unreserved[engine] = _unreserved(free[engine], amounts)
    return AmountsByEngine(unreserved)


def _unreserved(free: Amounts, reserved: Amounts) -> Amounts:
    """Return the rest of one engine's capacity; kinds without a reservation stay as they are.

    Of a kind with a larger reservation than capacity, the rest is 0, not negative.
    """
    amounts = dict(free)
    limited = {kind: max(amounts[kind] - amount, 0) for kind, amount in reserved if amount}
    return Amounts(**{**amounts, **limited})


# ---------------------------------------------------------------- the reason why a job waits


def waiting_reason(
    ledger: Ledger,
    claim: Claim,
    now: datetime,
    rules: QueueRules = QueueRules(),
) -> str:
    """Return the reason why a job waits.

    The reason is the first of: engines that do not respond; too little free capacity, with its
    users; jobs that go first.
    """
    silent = _silent_engines(ledger, claim)
    if silent:
        return "; ".join(f"ENGINE_DOWN: {ledger.away[engine]}" for engine in silent)
    on = ""  # " on node …" for the message, or empty
    if ledger.node:
        on = f" on node {ledger.node}"
    shortages = [
        _shortage(ledger, engine, needed, on)  # empty if the engine has enough
        for engine, needed in claim.by_engine
    ]
    if any(shortages):
        return "; ".join(filter(None, shortages))
    needs = f"needs {claim.by_engine.text()}{on}, which is kept for jobs that go first"
    ahead = _ahead_of(claim, queue(ledger, now, rules))
    if not ahead:
        return needs
    return f"{needs}: {_listed([(first, first.by_engine.text()) for first in ahead])}"


def _ahead_of(
    claim: Claim,
    claims: list[Claim],
) -> list[Claim]:
    """Return the claims before a claim in the queue; all of them if it is not in the queue."""
    job_ids = [other_claim.job_id for other_claim in claims]
    if claim.job_id not in job_ids:
        return claims
    return claims[: job_ids.index(claim.job_id)]


def _shortage(
    ledger: Ledger,
    engine: str,
    needed: Amounts,
    on: str,
) -> str:
    """Return the shortage at an engine, and who uses its capacity; empty if there is enough.

    ``on`` is " on node …" for the message, or empty.
    """
    # The empty name is the main engine's: that engine is not among the further ones, and always
    # exists.
    if engine and engine not in ledger.further:
        return f"there is no engine {engine}{on} any more"
    free = ledger.available[engine]
    kinds = needed.lacking(free)
    if not kinds:
        return ""
    at = on
    if engine:
        at = f" at engine {engine}{on}"
    text = f"needs {needed.text(kinds)}{at}, free {free.text(kinds)}"
    holders = _holders_of(ledger, engine, kinds)
    if holders:
        text = f"{text}, held by {_listed(holders)}"
    used_by_others = ledger.others[engine]
    shared_kinds = _kinds_in(used_by_others, kinds)
    if shared_kinds:
        text = f"{text}, others use {used_by_others.text(shared_kinds)}"
    return text


def _holders_of(
    ledger: Ledger,
    engine: str,
    kinds: Iterable[str],
) -> list[tuple[Claim, str]]:
    """Return the claims that hold any of these kinds at an engine, with their amounts in words."""
    holders = []
    for claim in ledger.holders:
        reserved = claim.by_engine[engine]
        if _kinds_in(reserved, kinds):
            holders.append((claim, reserved.text(kinds)))
    return holders


def _kinds_in(
    amounts: Amounts,
    kinds: Iterable[str],
) -> list[str]:
    """Return those of ``kinds`` whose amount is not 0."""
    by_kind = dict(amounts)
    return [kind for kind in kinds if by_kind[kind]]


def _listed(claims: Iterable[tuple[Claim, str]]) -> str:
    """List jobs with their amounts in words, oldest first, and count any beyond `_MAX_LISTED`."""
    by_age = sorted(claims, key=_age)
    jobs = [f"job {claim.job_id} ({amounts})" for claim, amounts in by_age]
    return listed(jobs, _MAX_LISTED)


def _age(entry: tuple[Claim, str]) -> tuple[datetime, str]:
    """Return the key that sorts claims by their time: of the grant, else of the first request."""
    claim, _ = entry
    return (claim.held_at or claim.since, claim.job_id)
