"""The rules by which a participating node approves or rejects a job, or asks a person to decide.

Rules are matched against every piece of the job at this node. A piece is a task at a party, with
its component and the party's dataset. The first rule that matches a piece decides on the piece;
without a matching rule a person decides. A single rejected piece rejects the job, a single piece
for a person makes the job wait.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.domain.dag import ComponentRef, DagNode, RolesOf
from gateway.domain.spec import JobSpec, NodeId, Party, data_location

# Requested commands: accept the job at this node, or start it or one of its tasks.
CREATE = "create"
START = "start"


class Verdict(StrEnum):
    """The decision on a job, or on a piece of it."""

    APPROVE = "approve"
    REJECT = "reject"
    ASK = "ask"


class Mode(StrEnum):
    """Who decides without a matching rule."""

    OFF = "off"  # every job of a known node is accepted, unless a rule rejects it
    RULES = "rules"  # the rules decide, and a person if they say so or none matches
    PERSON = "person"  # a person decides on every job that no rule rejects


@dataclass(frozen=True)
class Piece:
    """One task at one party of this node."""

    source: NodeId  # the requesting node
    component: str  # ``provider/name``
    dataset: str  # empty if the task has no data of its own
    role: str
    command: str = CREATE  # `CREATE` or `START`


# Fields that a piece has, and a rule as patterns.
_FIELDS = ("source", "component", "dataset", "role", "command")


@dataclass(frozen=True)
class Rule:
    """Patterns for the fields of a piece, with ``*`` as wildcard, and the verdict if all match."""

    decide: Verdict
    source: str = "*"
    component: str = "*"
    dataset: str = "*"
    role: str = "*"
    command: str = "*"

    def matches(self, piece: Piece) -> bool:
        """Return whether all patterns match a piece.

        Upper and lower case differ in patterns.
        """
        return all(fnmatchcase(getattr(piece, name), getattr(self, name)) for name in _FIELDS)

    def covers(self, rule: "Rule") -> bool:
        """Return whether this rule certainly matches every piece that another ``rule`` matches.

        It does if each of its patterns is ``*`` or the same as that of the other rule.
        """
        return all(getattr(self, name) in ("*", getattr(rule, name)) for name in _FIELDS)


@dataclass(frozen=True)
class Policy:
    """The node's settings of approval."""

    mode: Mode = Mode.OFF
    deadline: float = 86_400.0  # seconds in which a person has to decide
    rules: tuple[Rule, ...] = ()


def pieces(
    spec: JobSpec,
    node: NodeId,
    source: NodeId,
    roles_of: RolesOf,
    command: str = CREATE,
) -> Iterator[Piece]:
    """Yield the pieces of the job at this node: each task at each party with a role in the task.

    Pieces of several tasks that are alike are yielded once.

    If the roles of the task's component are not known, every party of this node has one.
    ``source`` is the requesting node, ``command`` is `CREATE` or `START`.
    """
    for use in _uses(spec, node):
        if use.party.takes_part(roles_of(use.task)):
            component = f"{use.task.component.provider}/{use.task.component.name}"
            yield Piece(source, component, use.dataset, use.party.role, command)


@dataclass(frozen=True)
class _Use:
    """A component at a party of a node, with the id of its dataset, which may be empty."""

    task: DagNode  # the first task with these
    party: Party
    dataset: str


def _uses(spec: JobSpec, node: NodeId) -> list[_Use]:
    """Return the uses of components at the parties of a node, each once.

    They are kept with the job, as the policy is asked at each start of a task.
    """
    key = ("uses", node)
    if key not in spec.memo:
        uses: dict[tuple[ComponentRef, Party, str], _Use] = {}
        parties = spec.parties_at(node)
        for task in spec.dag.nodes:
            for party in parties:
                dataset = _dataset_id(spec, party, task.name)
                use = _Use(task, party, dataset)
                uses.setdefault((task.component, party, dataset), use)
        spec.memo[key] = list(uses.values())
    uses_once: list[_Use] = spec.memo[key]
    return uses_once


def _dataset_id(
    spec: JobSpec,
    party: Party,
    task: str,
) -> str:
    """Return the id of a task's dataset at a party; empty if the task names no dataset.

    The id of a dataset that is named by namespace and name is ``namespace#name``.
    """
    location = data_location(spec.task_params, party, task)
    if location is None:
        return ""
    if "dataset_id" in location:
        return location["dataset_id"]
    return f"{location['namespace']}#{location['name']}"


def judge(
    policy: Policy,
    pieces: Iterable[Piece],
    *,
    person_only_by_rule: bool = False,
) -> tuple[Verdict, str]:
    """Return the policy's verdict on a job, and the explanation: the piece and rule that decided.

    The explanation is empty for an approval. ``person_only_by_rule``: a person has to decide only
    if a rule demands it, as for a job of this node's own platform.
    """
    explanations: dict[Verdict, str] = {}  # of the first piece with the verdict
    for piece in pieces:
        verdict, explanation = _judge_piece(policy, piece, person_only_by_rule)
        explanations.setdefault(verdict, explanation)
    if Verdict.REJECT in explanations:
        return Verdict.REJECT, explanations[Verdict.REJECT]
    if policy.mode is Mode.OFF:
        return Verdict.APPROVE, ""
    if policy.mode is Mode.PERSON and not person_only_by_rule:
        return Verdict.ASK, "every job is decided on by a person here"
    if Verdict.ASK in explanations:
        return Verdict.ASK, explanations[Verdict.ASK]
    return Verdict.APPROVE, ""


def _judge_piece(
    policy: Policy,
    piece: Piece,
    person_only_by_rule: bool,
) -> tuple[Verdict, str]:
    """Return the verdict of the first rule that matches a piece, and the explanation.

    Without a matching rule a person has to decide, unless ``person_only_by_rule``.
    """
    data = ""
    if piece.dataset:
        data = f" on {piece.dataset}"
    subject = f"{piece.component} as {piece.role}{data} for {piece.source}"
    for number, rule in enumerate(policy.rules):
        if rule.matches(piece):
            return rule.decide, f"approval.rules[{number}] says {rule.decide} to {subject}"
    text = f"no rule decides on {subject}"
    if person_only_by_rule:
        return Verdict.APPROVE, text
    return Verdict.ASK, text


def ineffective_rules(policy: Policy) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each rule without effect, the cause, and the remedy.

    A rule has no effect if an earlier rule covers it. With the mode `OFF`, and for starts, only
    rejections count: a rule that does not reject then has an effect only if a later rule rejects,
    because it exempts pieces from that rejection.
    """
    for number, rule in enumerate(policy.rules):
        covering = _covering_rule(policy, number)
        if covering is not None:
            cause = f"approval.rules[{covering}] comes first and matches all that it matches"
            yield number, cause, "put it before that rule, or remove it"
        elif any(later.decide is Verdict.REJECT for later in policy.rules[number:]):
            continue  # the rule rejects, or exempts pieces from the rejection by a later rule
        elif policy.mode is Mode.OFF:
            cause = f"{rule.decide} changes nothing while approval.mode is off"
            yield number, cause, "set approval.mode: rules, or remove it"
        elif rule.command == START:
            cause = f"{rule.decide} changes nothing about a start, of which only a reject counts"
            yield number, cause, "write decide: reject or another command, or remove it"


def _covering_rule(policy: Policy, number: int) -> int | None:
    """Return the number of the first earlier rule that covers a rule; None if none covers it."""
    later_rule = policy.rules[number]
    covering = (i for i, rule in enumerate(policy.rules[:number]) if rule.covers(later_rule))
    return next(covering, None)
