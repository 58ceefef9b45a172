"""What becomes of a run whose engine stops to answer.

A container outlives a daemon that dies; a daemon that comes back without live-restore ends it, by SIGTERM or
SIGKILL, or does not know how it ended (255). One that is told to end takes no more questions, then ends its
containers, and only then is seen to be gone. Such an end is the engine's failure, not the container's.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from gateway.domain.run import Run
from gateway.domain.spec import Failure

_BY_THE_DAEMON = frozenset({255, 137, 143})
_ENDING = timedelta(seconds=15)
"""so long Docker gives its containers when it ends; a run of which the end was seen before is not in question"""


def unseen(run: Run, at: datetime, again: timedelta) -> Run:
    """Note that nobody could look; the first time counts."""
    if run.over:
        return run
    due = at + again
    if run.probe_at is not None and run.probe_at > at:  # a connection that breaks over and over puts off no look
        due = min(due, run.probe_at)
    return replace(run, probe_at=due, away_at=run.away_at or at)


def too_long(run: Run, now: datetime, patience: timedelta) -> bool:
    """Tell whether a run's engine has been silent for longer than we wait."""
    return run.away_at is not None and now >= run.away_at + patience


def took_it_along(run: Run) -> bool:
    """Whether the container ended because the daemon did."""
    exit_ = run.exit
    if exit_ is None or run.away_at is None or exit_.oom_killed or exit_.code not in _BY_THE_DAEMON:
        return False
    return exit_.finished_at is None or exit_.finished_at >= run.away_at - _ENDING


def silent(run: Run) -> Failure:
    """Return the failure of a run whose engine did not answer for too long."""
    since = run.away_at.isoformat(timespec="seconds") if run.away_at else ""
    return Failure("ENGINE_DOWN", f"the container engine has not answered since {since}")


def killed(run: Run) -> Failure:
    """Return the failure of a run that ended because its engine did."""
    code = run.exit.code if run.exit else None
    text = f"the container engine went away and took the container along (exit code {code})"
    return Failure("ENGINE_DOWN", text, exit_code=code)
