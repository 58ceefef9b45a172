"""Rules about who has to agree that can never change what is decided: most likely not what their author meant."""

from collections.abc import Iterator

from gateway.domain.approval import START, Mode, Policy, Rule, Verdict

_PATTERNS = ("source", "component", "dataset", "role", "command")


def idle(policy: Policy) -> Iterator[tuple[int, str]]:
    """Yield the number of each such rule, and why it never counts."""
    for number, rule in enumerate(policy.rules):
        earlier = next((i for i, other in enumerate(policy.rules[:number]) if _covers(other, rule)), None)
        if earlier is not None:
            yield number, f"approval.rules[{earlier}] comes first and matches all that it matches"
        elif rule.decide is Verdict.REJECT or any(r.decide is Verdict.REJECT for r in policy.rules[number + 1 :]):
            continue  # what it matches is kept from a later refusal
        elif policy.mode is Mode.OFF:
            yield number, f"{rule.decide} changes nothing while approval.mode is off"
        elif rule.command == START:
            yield number, f"{rule.decide} changes nothing about a start, of which only a reject counts"


def _covers(one: Rule, other: Rule) -> bool:
    return all(getattr(one, name) in ("*", getattr(other, name)) for name in _PATTERNS)
