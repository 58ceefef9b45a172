"""The errors that the gateway responds with, and how a response reports them.

They are raised where they are known and turned into a response by one handler per adapter. Anything
else that is raised is a bug: it is logged with its trace, and the response does not contain its text.

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

import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import near as near

if TYPE_CHECKING:  # commands need no models, and importing them takes long
    from pydantic import BaseModel

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
    node = ""
    """the other node that it is about, where there is one"""
    inside: "GatewayError | None" = None
    """what this node's own log and audit have in its place"""
    problems: tuple[Problem, ...] = ()
    """what is wrong with the input, each with its path"""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """What happened, for people; the reason where nothing was said."""
        return str(self.args[0]) if self.args else self.reason


class Invalid(GatewayError):
    """Bad input: every problem with its path, of a flood the first `MOST_PROBLEMS`."""

    reason = "INVALID"
    code = 400

    def __init__(self, problems: Iterable[Problem], *, reason: str | None = None) -> None:
        self.problems = tuple(islice(problems, MOST_PROBLEMS + 1))
        if len(self.problems) > MOST_PROBLEMS:
            more = Problem("(document)", f"has more than the {MOST_PROBLEMS} problems listed here")
            self.problems = (*self.problems[:MOST_PROBLEMS], more)
        super().__init__("; ".join(map(str, self.problems)), reason=reason)


class NotFound(GatewayError):
    """Nothing by that name is here."""

    reason = "NOT_FOUND"
    code = 404


class Unreadable(NotFound):
    """The record of a job cannot be read."""

    reason = "ABNORMAL"


class Conflict(GatewayError):
    """It conflicts with the current state."""

    reason = "CONFLICT"
    code = 409


class NotAllowed(GatewayError):
    """The sender is known, but may not do this."""

    reason = "NOT_AUTHORISED"
    code = 403


class Refused(GatewayError):
    """This node or another one refused."""

    reason = "REFUSED"
    code = 409

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        """``problems``: those of a job that each node found, where they are known."""
        super().__init__(message, reason=reason)
        self.problems = tuple(islice(problems, MOST_PROBLEMS))


class NotServed(Refused):
    """A peer has no such path: it was asked for something beyond the standard that it need not have."""

    reason = "NOT_SERVED_THERE"


class PeerUnreachable(GatewayError):
    """No answer came. ``delivered`` is False when the request certainly never reached the peer."""

    reason = "PEER_UNREACHABLE"
    code = 503
    skew: float | None = None
    """seconds that the peer's clock is ahead, as its answer dates it, where that refuses a signature"""

    def __init__(
        self,
        message: str,
        *,
        delivered: bool = True,
        reason: str | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.delivered = delivered


class EngineFailed(GatewayError):
    """The engine could not do it, or does not answer."""

    reason = "ENGINE_FAILED"
    code = 500


class TooLarge(GatewayError):
    """The body is over its limit."""

    reason = "TOO_LARGE"
    code = 413


class Busy(GatewayError):
    """Not now; the same may work in a while."""

    reason = "BUSY"
    code = 503


class TooManyStreams(GatewayError):
    """A token has as many streams open as one may."""

    reason = "TOO_MANY_STREAMS"
    code = 429


class DatabaseAway(Busy):
    """Whether the last write arrived is not known; repeating it is safe, as it is everywhere here."""

    reason = "DATABASE_AWAY"


class StorageFailed(GatewayError):
    """A storage elsewhere cannot be used until somebody changes its settings or its policy."""

    reason = "STORAGE_DENIED"
    own_words = ""
    """code and sentence of the storage itself, for this node's own people"""


class StorageAway(StorageFailed, Busy):
    """A storage elsewhere cannot be used now."""

    reason = "STORAGE_UNREACHABLE"
    code = 503


MOST_TEXT = 20_000
"""characters of an error's message in a response"""


def envelope(error: GatewayError, words: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the body that reports an error, its texts rewritten by ``words``."""
    text = words(error.message[: 2 * MOST_TEXT])
    data: dict[str, Any] = {"reason": error.reason}
    if error.job_id:
        data["job_id"] = error.job_id
    if error.problems:
        data["problems"] = [
            {
                "path": shorten(p.path),
                "rule": words(shorten(p.rule)),
                "got": shown(p.got),
            }
            | ({"suggestion": words(shorten(p.suggestion))} if p.suggestion else {})
            for p in error.problems
        ]
    return {
        "code": error.code,
        "msg": shorten(f"{error.reason}: {text}", MOST_TEXT),
        "data": data,
    }


def shown(value: Any, limit: int = 500) -> Any:
    """Return a value as a response shows it: JSON numbers as they are, all else as text cut to ``limit``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bool | int | None):
        return value
    return shorten(value, limit)


def shorten(value: Any, limit: int = 500) -> str:
    """Return a value as encodable text of at most ``limit`` characters, and an ellipsis where some are missing."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "…"


def counted(
    count: int,
    thing: str,
    things: str = "",
) -> str:
    """Return ``1 job``, ``2 jobs``. ``things`` is the plural where it is more than an s."""
    return f"{count} {thing if count == 1 else things or f'{thing}s'}"


def brief(error: GatewayError) -> GatewayError:
    """Return what log and audit have of an error: its text is short, and nothing of what was sent is in it."""
    error = error.inside or error
    found = GatewayError(error.message[:500], reason=error.reason)
    found.code = error.code
    return found


# Problems of an input, from the validation library's words into ours: one place for requests, files and settings.
#
# Each has the path, a rule that begins with a verb, what was found, and what was probably meant.

MISSING = "is missing"
_SHOWN = 12
"""how many known keys a rule lists"""
_CERTAIN = 0.8
"""how alike a key must be to one that is missing"""
_LISTS = ("list", "tuple", "set", "frozen_set", "iterable")
_OBJECTS = ("dict", "mapping", "model", "model_attributes", "dataclass")
_RULES = {
    "missing": MISSING,
    "string_type": "must be text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    "int_parsing_size": "must be a whole number of fewer digits",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys((f"{kind}_type" for kind in _LISTS), "must be a list"),
    **dict.fromkeys((f"{kind}_type" for kind in _OBJECTS), "must be an object (name: value)"),
    **dict.fromkeys(("json_type", "json_invalid"), "must be JSON"),
    "none_required": "must be left out, or null",
    "path_type": "must be a path",
    "url_type": "must be a URL as text",
    "string_unicode": "must be text in UTF-8",
    "datetime_type": "must be a time such as 2026-01-31T12:00:00Z",
    "recursion_loop": "must not contain itself",
}
_COMPARED = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "multiple_of": ("multiple_of", "must be a multiple of {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must not have more than {} characters"),
    "string_pattern_mismatch": ("pattern", "must have the form {}"),
    "too_short": ("min_length", "must have at least {} entries"),
    "too_long": ("max_length", "must not have more than {} entries"),
}
_PLAINER = {
    ("min_length", 1): "must not be empty",
    ("pattern", r"^[\x21-\x7e]+$"): "must consist of printable ASCII characters, without spaces",
}
"""what is said better than by the number or the expression"""


def problems_of(errors: Iterable[Any], model: Any = None) -> list[Problem]:
    """Turn the library's list of errors into problems; ``model``: what was read, where it is known.

    A path that begins with ``body``, ``query``, ``path`` or ``header`` begins after that.
    """
    found = []
    for error in errors:
        where = list(error.get("loc", ()))
        if where and where[0] in ("body", "query", "path", "header"):
            where = where[1:]
        found.append(_problem(error, where, model))
    return found


def join(parts: Iterable[Any]) -> str:
    """Join keys and indices into a path such as ``config.role.guest[0]``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _problem(
    error: Mapping[str, Any],
    where: Sequence[Any],
    model: Any,
) -> Problem:
    kind, got, limits = str(error.get("type", "")), error.get("input"), error.get("ctx") or {}
    at = join(where) or "body"
    if kind == "missing":
        name, known = str(where[-1]) if where else "", _keys(model, where[:-1])
        others = (
            [key for key in got if isinstance(key, str) and key not in known]
            if isinstance(got, Mapping)
            else []
        )
        meant = _other_name(name, others, model, where[:-1]) or near(name, others, _CERTAIN)
        return Problem(at, MISSING, None, f"{name} instead of {meant}" if meant else "")
    if kind == "extra_forbidden":
        return _unknown_key(at, where, got, model)
    if kind in ("literal_error", "enum"):
        allowed = [a.strip("'") for a in re.split(r", | or ", str(limits.get("expected", "")))]
        return Problem(at, f"must be one of {', '.join(allowed)}", got, near(str(got), allowed))
    return Problem(at, _rule(error, kind, limits), got)


def _unknown_key(
    at: str,
    where: Sequence[Any],
    got: Any,
    model: Any,
) -> Problem:
    """Return the problem of a key that a model does not have, with the key that is meant where that is clear."""
    keys = _keys(model, where[:-1])
    shown = ", ".join(keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")
    rule = "is not known here" + (f"; known are {shown}" if keys else "")
    if not where:
        return Problem(at, rule, got)
    other_names = _other_names(model, where[:-1])
    key = str(where[-1])
    if key not in other_names:
        return Problem(at, rule, got, near(key, keys))
    if not other_names[key]:
        return Problem(at, "is a key of another platform and means nothing here; leave it out", got)
    return Problem(at, rule, got, other_names[key])


def _other_names(model: Any, where: Sequence[Any]) -> Mapping[str, str]:
    """Return other platforms' names of a model's keys, each with the key here; empty: there is none."""
    names: dict[str, str] = {}
    for one in _models_at(model, where):
        names |= getattr(one, "other_names", {})
    return names


def _other_name(
    key: str,
    others: Sequence[str],
    model: Any,
    where: Sequence[Any],
) -> str:
    """Return which of some unknown keys is another platform's name of a missing one; empty: none is."""
    other_names = _other_names(model, where)
    return next((other for other in others if other_names.get(other) == key), "")


def _rule(
    error: Mapping[str, Any],
    kind: str,
    limits: Mapping[str, Any],
) -> str:
    if kind in _COMPARED:
        name, words = _COMPARED[kind]
        return _PLAINER.get((name, limits.get(name))) or words.format(limits.get(name))
    if kind in ("value_error", "assertion_error"):  # our own words, after the library's prefix
        return str(limits.get("error") or error.get("msg", "is not valid"))
    if kind.startswith(("datetime_", "date_")):
        return _RULES["datetime_type"]
    if kind.startswith("url_"):
        return "must be a URL such as https://host:port"
    return _RULES.get(kind) or str(error.get("msg") or "is not valid")


def _keys(model: Any, where: Sequence[Any]) -> list[str]:
    """Return the keys that an object at this place of what was read may have; none where that is not known."""
    inner = _models_at(model, where)
    return sorted(
        {_written(name, field) for one in inner for name, field in one.model_fields.items()}
    )


def _models_at(model: Any, where: Sequence[Any]) -> "list[type[BaseModel]]":
    """Return the models of an object at a place of what was read."""
    inner = list(_models(model))
    for part in where:
        inner = [one for outer in inner for one in _below(outer, part)]
    return inner


def _below(model: "type[BaseModel]", part: Any) -> "Iterator[type[BaseModel]]":
    if not isinstance(part, str):  # an entry of a list, whose models stand for its entries already
        yield model
        return
    for name, field in model.model_fields.items():
        if part in (name, _written(name, field)):
            yield from _models(field.annotation)
            return
    yield model  # a key of a mapping of models


def _written(name: str, field: Any) -> str:
    return (
        field.validation_alias if isinstance(field.validation_alias, str) else field.alias or name
    )


def _models(annotation: Any) -> "Iterator[type[BaseModel]]":
    """Return the models in an annotation such as ``list[Model] | None``."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
