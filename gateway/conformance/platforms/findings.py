"""Verdicts about clauses, and the exchanges with the checked node that show them."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

_HIDDEN = b"(a token, which the report leaves out)"


class Verdict(StrEnum):
    """What a trial says about a clause."""

    HOLDS = "holds"
    DEVIATES = "deviates"  # as a known platform does; a profile of ours can live with it
    FAILS = "fails"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Exchange:
    """One request between the check and the node, with its response."""

    to_node: bool  # False: the node sent it to the check
    method: str
    target: str  # path and query
    sent_headers: Mapping[str, str]
    sent: bytes
    # None without a response; ``failure`` then says why.
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    received: bytes = b""
    seconds: float = 0.0
    failure: str = ""

    @property
    def summary(self) -> str:
        """The request and its outcome, in one line."""
        outcome = self.failure or f"HTTP {self.status}"
        return f"{self.method} {self.target}: {outcome}"


@dataclass(frozen=True)
class Finding:
    """The verdict about one clause, and why."""

    verdict: Verdict
    observation: str  # English, for people
    dialect: str = ""  # of a deviation: the profile that lives with it
    exchanges: tuple[Exchange, ...] = ()


def holds(observation: str) -> Finding:
    """Return that a clause holds."""
    return Finding(Verdict.HOLDS, observation)


def deviates(dialect: str, observation: str) -> Finding:
    """Return that a clause is broken in the way of a known platform, named by its profile."""
    return Finding(Verdict.DEVIATES, observation, dialect)


def fails(observation: str) -> Finding:
    """Return that a clause is broken."""
    return Finding(Verdict.FAILS, observation)


def not_tried(reason: str) -> Finding:
    """Return that a clause was not tried."""
    return Finding(Verdict.NOT_TRIED, reason)


class CannotTry(Exception):
    """A scenario cannot begin: an earlier step does not work, or an option is absent.

    The message says why, for people.
    """


class Broken(Exception):
    """A scenario ends early: the clause does not hold. The message is the observation."""


class Deviation(Exception):
    """A scenario ends early: the node does as a known platform does."""

    def __init__(self, dialect: str, observation: str) -> None:
        """``dialect``: name of the profile for that platform."""
        super().__init__(observation)
        self.dialect = dialect


def assume(condition: bool, reason: str) -> None:
    """Raise `CannotTry` unless a scenario's precondition is met."""
    if not condition:
        raise CannotTry(reason)


def demand(condition: bool, observation: str) -> None:
    """Raise `Broken` unless a condition of the clause is met."""
    if not condition:
        raise Broken(observation)


def demand_except(dialect: str, condition: bool, observation: str) -> None:
    """Raise `Deviation` unless a condition is met that a known platform does not meet."""
    if not condition:
        raise Deviation(dialect, observation)


class Evidence:
    """The exchanges of a check, in the order of their ends; several threads may add some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []

    def add(self, exchange: Exchange) -> None:
        """Add an exchange."""
        with self._lock:
            self._exchanges.append(exchange)

    def hide(self, content: bytes) -> None:
        """Remove the bodies of requests with a content that holds a secret."""
        with self._lock:
            for index, exchange in enumerate(self._exchanges):
                if exchange.sent == content:
                    self._exchanges[index] = replace(exchange, sent=_HIDDEN)

    def since(self, mark: int = 0) -> tuple[Exchange, ...]:
        """Return the exchanges that were added after ``mark`` others."""
        with self._lock:
            return tuple(self._exchanges[mark:])

    def __len__(self) -> int:
        """Return the number of exchanges."""
        with self._lock:
            return len(self._exchanges)
