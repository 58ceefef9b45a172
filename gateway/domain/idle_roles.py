"""Roles of a job that none of its components has: a mistyped one leaves its parties without any task."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from gateway.domain.dag import DagNode, once_per_component
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec

_LONGEST = 40
"""characters; a longer name is no mistyped role"""


def check(
    spec: JobSpec, roles_of: Callable[[DagNode], Sequence[str] | None], path: str = "config.role"
) -> tuple[list[Problem], list[Problem]]:
    """Find such roles: (those that refuse the job, those that are warned of).

    ``roles_of`` tells the roles of a task's component; None where it is not known here, and then nothing is told.
    Refused is what can only be a slip: it looks like a role that components have and that nobody plays.
    """
    ask = once_per_component(roles_of)
    known: dict[str, None] = {}
    for node in spec.dag.nodes:
        roles = ask(node)
        if roles is None:
            return [], []
        known |= dict.fromkeys(roles)
    played = dict.fromkeys(party.role for party in spec.parties)
    missing = [role for role in known if role not in played]
    problems, warnings = [], []
    for role in played:
        if role in known:
            continue
        rule = f"is a role that no component of the flow has; they have {', '.join(known)}"
        near = get_close_matches(role.lower(), missing, n=1, cutoff=0.7) if len(role) <= _LONGEST else []
        at = f"{path}.{role}"
        if near:
            problems.append(Problem(at, rule, role, near[0]))
        else:
            warnings.append(Problem(at, f"{rule}, so its parties have nothing to do", role))
    return problems, warnings
