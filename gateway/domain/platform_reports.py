"""Reports of checks of other platforms, as they are kept with partners."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId

BREACHES = ("fails", "deviates")  # verdicts about clauses that do not hold
# The clock of the machine that made a check may be so far ahead of this node's.
_CLOCK_TOLERANCE = timedelta(days=1)


@dataclass(frozen=True)
class PlatformReport:
    """What the report of a check says about a node, without its clauses."""

    node_id: NodeId  # the checked node
    url: str  # its address at the check
    standard: str  # version of the standard
    checker: NodeId  # id that the check had
    checker_version: str
    checked_at: datetime
    key: str  # the public key that has signed the report
    counts: Mapping[str, int]  # clauses by verdict
    good: bool  # no clause of level must fails

    @property
    def deviations(self) -> int:
        """The number of clauses that do not hold."""
        return sum(self.counts.get(verdict, 0) for verdict in BREACHES)


@dataclass(frozen=True)
class ReadReport:
    """A report that was read from its envelope."""

    content: dict[str, Any]
    key: str  # the public key that has signed it


def report_of_content(content: Mapping[str, Any], key: str) -> PlatformReport:
    """Return what a report says; its form and its date must be right.

    The counts are those of its clauses, whatever the report itself says. ``key`` has signed it.
    """
    clauses: Sequence[Mapping[str, Any]] = content["clauses"]
    counts = Counter(str(clause["verdict"]) for clause in clauses)
    broken = [
        clause for clause in clauses if clause["level"] == "must" and clause["verdict"] == "fails"
    ]
    return PlatformReport(
        node_id=content["node_id"],
        url=content["url"],
        standard=content["standard"],
        checker=content["checker"],
        checker_version=content["checker_version"],
        checked_at=datetime.fromisoformat(content["at"]),
        key=key,
        counts=dict(counts),
        good=not broken,
    )


def breaches_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the clauses of a report that do not hold, without the exchanges that show it.

    Empty if all clauses hold that were tried.
    """
    breaches = []
    for clause in content["clauses"]:
        if clause["verdict"] not in BREACHES:
            continue
        breaches.append(
            {
                "id": clause["id"],
                "section": clause["section"],
                "level": clause["level"],
                "verdict": clause["verdict"],
                "observation": clause["observation"],
                "dialect": clause["dialect"],
                "says": clause["says"],
                "remedy": clause["remedy"],
            }
        )
    return breaches


def date_problems(content: Mapping[str, Any], now: datetime) -> list[Problem]:
    """Return the problem of a report's date; empty if it is a date before now."""
    text = content["at"]
    try:
        checked_at = datetime.fromisoformat(text)
    except ValueError:
        return [Problem("at", "must be a date and a time, such as 2026-01-31T08:00:00+00:00", text)]
    if checked_at.tzinfo is None:
        return [Problem("at", "must have a time zone, such as +00:00", text)]
    if checked_at > now + _CLOCK_TOLERANCE:
        rule = f"is later than now, {now.isoformat(timespec='seconds')}: set the checker's clock"
        return [Problem("at", rule, text)]
    return []
