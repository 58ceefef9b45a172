"""The step of the look at a node that is about the rules of who has to agree."""

from gateway.domain.approval import Policy
from gateway.domain.idle_rules import idle
from gateway.runtime.checks import Result, Step


def approval_of(policy: Policy) -> Step:
    """Look for rules that can never count."""
    rules = f", {len(policy.rules)} rule{'' if len(policy.rules) == 1 else 's'}" if policy.rules else ""
    found = f"mode {policy.mode}{rules}"
    causes = [f"approval.rules[{number}]: {why}" for number, why in idle(policy)]
    if not causes:
        return Step("approval", Result.OK, found)
    remedy = "put the rule before the one that takes its place, set approval.mode: rules, or take the rule out"
    return Step("approval", Result.WARNING, found, "; ".join(causes), remedy)
