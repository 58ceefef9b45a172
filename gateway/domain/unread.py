"""Keys of a job's hand-in that nobody reads: a mistyped one must not pass for one that was not asked for.

They refuse nothing, as others may mean something by them; a job that is `strictness.KEY` is refused for them.
"""

from dataclasses import dataclass

from gateway.domain.problems import Problem

MOST = 50
"""told of one job"""


@dataclass(frozen=True)
class Unread:
    """One such key: where it stands, why it is not read, what was found, and what was probably meant."""

    path: str
    rule: str
    got: str = ""
    near: str = ""

    @property
    def problem(self) -> Problem:
        """The key as what is warned of, or refused."""
        return Problem(self.path, self.rule, self.got, self.near)
