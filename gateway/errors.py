"""The family of errors that the gateway answers with.

They are raised where they are known and turned into an answer in one handler per adapter. Anything
else that is raised is a bug: it is logged with its trace and answered without its text.

    GatewayError
    ├── Invalid            bad input; carries every Problem
    ├── NotFound           nothing by that name here
    │   └── Unreadable     a job's record that cannot be read: it has ended, and nothing else is known of it
    ├── Conflict           the same name with other content
    ├── NotAllowed         the sender may not do that
    ├── Refused            a peer, or this node, said no; carries a stable reason
    │   └── NotServed      a peer has no such path: it was asked for something beyond the standard
    ├── PeerUnreachable    no answer from a peer
    ├── EngineFailed       the container engine could not do it
    ├── TooLarge           the body is over its limit
    └── Busy               a bounded resource is used up just now
        └── DatabaseAway   the database does not answer just now
"""

import traceback
from collections.abc import Iterable
from itertools import islice

from gateway.domain.problems import Problem as Problem

MOST_PROBLEMS = 200


def release(handled: BaseException) -> None:
    """Clear the frames that an error and its causes have passed through, once it is answered.

    Frames of threads and of the framework refer to the error that refers to them: with the body that was refused,
    they would stay in memory until the garbage collector runs, which it rarely does.
    """
    error: BaseException | None = handled
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class GatewayError(Exception):
    """Something the gateway can name. ``reason`` is stable, ``code`` is HTTP-like."""

    reason = "INTERNAL"
    code = 500
    job_id = ""
    """a job that is kept all the same, and tells more"""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """What happened, for people; the reason where nothing was said."""
        return str(self.args[0]) if self.args else self.reason

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the input, one by one; nothing for errors that are not about it."""
        return ()


class Invalid(GatewayError):
    """Bad input. Every problem is told at once, each with its path; of a flood, the first `MOST_PROBLEMS`."""

    reason = "INVALID"
    code = 400

    def __init__(self, problems: Iterable[Problem], *, reason: str | None = None) -> None:
        self._problems = tuple(Problem(*p) for p in islice(problems, MOST_PROBLEMS + 1))
        if len(self._problems) > MOST_PROBLEMS:
            more = Problem("(document)", f"has more than the {MOST_PROBLEMS} problems listed here")
            self._problems = (*self._problems[:MOST_PROBLEMS], more)
        super().__init__("; ".join(map(str, self._problems)), reason=reason)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem, each with its path."""
        return self._problems


class NotFound(GatewayError):
    """Nothing by that name is here."""

    reason = "NOT_FOUND"
    code = 404


class Unreadable(NotFound):
    """The record of a job cannot be read."""

    reason = "ABNORMAL"


class Conflict(GatewayError):
    """It does not go together with how things stand."""

    reason = "CONFLICT"
    code = 409


class NotAllowed(GatewayError):
    """Whoever asks is known, but may not do this."""

    reason = "NOT_AUTHORISED"
    code = 403


class Refused(GatewayError):
    """Somebody, here or at another node, said no."""

    reason = "REFUSED"
    code = 409


class NotServed(Refused):
    """A peer has no such path: it was asked for something beyond the standard that it need not have."""

    reason = "NOT_SERVED_THERE"


class PeerUnreachable(GatewayError):
    """No answer came. ``delivered`` is False when the request certainly never reached the peer."""

    reason = "PEER_UNREACHABLE"
    code = 503

    def __init__(self, message: str, *, delivered: bool = True, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.delivered = delivered


class EngineFailed(GatewayError):
    """The engine could not do it, or does not answer."""

    reason = "ENGINE_FAILED"
    code = 500


class TooLarge(GatewayError):
    """More than is taken at once."""

    reason = "TOO_LARGE"
    code = 413


class Busy(GatewayError):
    """Not now; the same may work in a while."""

    reason = "BUSY"
    code = 503


class DatabaseAway(Busy):
    """Whether the last write arrived is not known; repeating it is safe, as it is everywhere here."""

    reason = "DATABASE_AWAY"


def brief(error: GatewayError) -> GatewayError:
    """Return an error of the same code and reason whose text is short and which holds nothing of what was sent."""
    found = GatewayError(error.message[:500], reason=error.reason)
    found.code = error.code
    return found
