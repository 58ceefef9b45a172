"""Policies of attestation reports that hold for one run: its provider's, and those of contracts.

The strictest requirement of each kind holds. Policies that no report can meet together contradict
each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.domain.attestation import AttestationPolicy
from gateway.domain.problems import Problem


@dataclass(frozen=True)
class Demand:
    """A policy, and the provider or contract that it comes from."""

    source: str  # for people, such as "provider acme"
    policy: AttestationPolicy


@dataclass(frozen=True)
class Contradiction:
    """Requirements of several policies that no report can meet."""

    problems: tuple[Problem, ...]


def combined(demands: Sequence[Demand]) -> AttestationPolicy | Contradiction:
    """Return the policy that is as strict as each of at least one demand.

    Return all contradictions instead, if there are any.
    """
    policies = [demand.policy for demand in demands]
    platforms = _distinct(policy.platform for policy in policies)
    measurements = _common([policy.measurements for policy in policies])
    signer_lists = [policy.signers for policy in policies if policy.signers]
    signers = _common(signer_lists)
    tcb = _common([policy.tcb for policy in policies])
    is_met = {
        "platform": len(platforms) == 1,
        "measurements": bool(measurements),
        "signers": bool(signers) or not signer_lists,
        "tcb": bool(tcb),
    }
    sources = " and ".join(demand.source for demand in demands)
    problems = [
        Problem(f"tee.{field}", f"must suit all of {sources}", _values(policies, field))
        for field, is_possible in is_met.items()
        if not is_possible
    ]
    if problems:
        return Contradiction(tuple(problems))
    return AttestationPolicy(
        platform=platforms[0],
        measurements=measurements,
        signers=signers,
        max_age=min(policy.max_age for policy in policies),
        tcb=tcb,
    )


def _distinct(values: Iterable[str]) -> list[str]:
    """Return the values without repetitions, in their order."""
    return list(dict.fromkeys(values))


def _common(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the values that all lists have, in the order of the first; empty without a list."""
    if not lists:
        return ()
    shared = set(lists[0]).intersection(*lists[1:])
    return tuple(value for value in lists[0] if value in shared)


def _values(policies: Iterable[AttestationPolicy], field: str) -> str:
    """Return the values of a field in several policies, for people."""
    texts = []
    for policy in policies:
        value = getattr(policy, field)
        text = value if isinstance(value, str) else ", ".join(value)
        texts.append(text)
    return "; ".join(texts)
