"""The errors that the gateway responds with, and how a response reports them.

One handler per adapter turns them into a response. Any other exception is a bug: it is logged with
its trace, and the response does not contain its text.

    GatewayError
    ├── Invalid            the input is bad; carries its problems
    ├── NotFound           nothing has that name here
    │   └── Unreadable     the record of a job cannot be read; the job counts as ended
    ├── Conflict           the request contradicts the state, such as the same id with other content
    ├── NotAllowed         the sender may not do that
    ├── Refused            a peer, or this node, refused; carries a stable reason
    │   ├── NotServed      a peer does not serve a path that is beyond the standard
    │   └── SigningFailed  this node cannot sign, as its token or signing command fails
    ├── PeerUnreachable    a peer did not respond
    ├── EngineFailed       the container engine failed
    ├── TooLarge           the body is over its limit
    ├── TooManyStreams     the token has as many open streams as it may
    ├── StorageFailed      a remote storage cannot be used
    │   └── StorageAway    a remote storage cannot be used now; also a Busy
    └── Busy               the request is not possible now, and may be later
        └── DatabaseAway   the database does not respond
"""

import math
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

# Imported under their own names, so that other modules may import them from here.
from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import near as near

if TYPE_CHECKING:  # commands need no models, and importing them takes long
    from pydantic import BaseModel

MAX_PROBLEMS = 200  # problems that one error carries
MAX_TEXT = 20_000  # characters of an error's message in a response


def release_frames(handled: BaseException) -> None:
    """Clear the stack frames of a handled error and its causes, to free their memory.

    The error and the frames of threads and of the framework refer to each other. Together with the
    refused body they would stay in memory until the garbage collector runs, which is rare.
    """
    error: BaseException | None = handled
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class GatewayError(Exception):
    """An error with a stable ``reason`` and an HTTP-like ``code``.

    - ``job_id``: a job that exists nevertheless and has more details; empty for none
    - ``node``: the other node involved; empty for none
    - ``inside``: another error, which this node's log and audit log show in place of this one,
      with details that are not for the sender of the request; None for none
    - ``problems``: the problems of the input, each with its path
    """

    reason = "INTERNAL"
    code = 500
    job_id = ""
    node = ""
    inside: "GatewayError | None" = None
    problems: tuple[Problem, ...] = ()

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """What happened, for people; the reason if the error has no text."""
        if not self.args:
            return self.reason
        return str(self.args[0])


class Invalid(GatewayError):
    """Bad input, with every problem and its path; more than `MAX_PROBLEMS` are cut.

    Without a reason, it has that of its problems if they all have the same.
    """

    reason = "INVALID"
    code = 400

    def __init__(
        self,
        problems: Iterable[Problem],
        *,
        reason: str | None = None,
    ) -> None:
        self.problems = tuple(islice(problems, MAX_PROBLEMS + 1))
        reason = reason or _common_reason(self.problems)
        if len(self.problems) > MAX_PROBLEMS:
            overflow = f"has more than the {MAX_PROBLEMS} problems listed here"
            self.problems = (*self.problems[:MAX_PROBLEMS], Problem("(document)", overflow))
        super().__init__("; ".join(map(str, self.problems)), reason=reason)


class NotFound(GatewayError):
    """Nothing has that name here."""

    reason = "NOT_FOUND"
    code = 404


class Unreadable(NotFound):
    """The record of a job cannot be read."""

    reason = "ABNORMAL"


class Conflict(GatewayError):
    """The request contradicts the current state."""

    reason = "CONFLICT"
    code = 409


class NotAllowed(GatewayError):
    """The sender is known, but may not do this."""

    reason = "NOT_AUTHORISED"
    code = 403


class Refused(GatewayError):
    """This node or another one refused; ``problems`` are those that nodes found in a job."""

    reason = "REFUSED"
    code = 409

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        super().__init__(message, reason=reason)
        self.problems = tuple(islice(problems, MAX_PROBLEMS))


class NotServed(Refused):
    """A peer does not serve a path that is beyond the standard, and need not serve it."""

    reason = "NOT_SERVED_THERE"


class SigningFailed(Refused):
    """The token or the command with this node's signing key cannot be used."""

    reason = "SIGNER_FAILED"
    code = 503


class PeerUnreachable(GatewayError):
    """A peer did not respond.

    ``delivered`` is False if the request certainly never reached the peer. ``skew`` is set if the
    peer refused a signature because its clock differs: the seconds that it is ahead of ours.
    """

    reason = "PEER_UNREACHABLE"
    code = 503
    skew: float | None = None

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
    """The engine failed, or does not respond."""

    reason = "ENGINE_FAILED"
    code = 500


class TooLarge(GatewayError):
    """The body is over its limit."""

    reason = "TOO_LARGE"
    code = 413


class Busy(GatewayError):
    """Not possible now; the same request may succeed later."""

    reason = "BUSY"
    code = 503


class TooManyStreams(GatewayError):
    """A token has the maximum of open streams."""

    reason = "TOO_MANY_STREAMS"
    code = 429


class DatabaseAway(Busy):
    """The database does not respond.

    The last write may have succeeded. Like every write of this gateway, it can be repeated safely.
    """

    reason = "DATABASE_AWAY"


class StorageFailed(GatewayError):
    """A remote storage cannot be used until its settings or its policy change.

    ``own_words``: the code and message of the storage itself, only for people of this node; empty
    for none.
    """

    reason = "STORAGE_DENIED"
    own_words = ""


class StorageAway(StorageFailed, Busy):
    """A remote storage cannot be used now."""

    reason = "STORAGE_UNREACHABLE"
    code = 503


def _common_reason(problems: Iterable[Problem]) -> str | None:
    """Return the reason of all problems; None if they differ, or if one has none."""
    reasons = {problem.reason for problem in problems}
    if len(reasons) != 1:
        return None
    return reasons.pop() or None


def reason_of_problem(error: GatewayError, problem: Problem) -> str:
    """Return the reason of one of an error's problems.

    A problem without a reason of its own has that of the error, or INVALID if others of the error's
    problems have reasons: then the error's reason may be theirs.
    """
    if problem.reason:
        return problem.reason
    if any(other.reason for other in error.problems):
        return Invalid.reason
    return error.reason


def envelope(
    error: GatewayError,
    words: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Return the body of an error response, with its texts translated by ``words``."""
    # Cut before the translation, to bound its work; `shorten` cuts to the exact length.
    text = words(error.message[: 2 * MAX_TEXT])
    data: dict[str, Any] = {"reason": error.reason}
    if error.job_id:
        data["job_id"] = error.job_id
    if error.problems:
        data["problems"] = [
            _problem_as_dict(problem, reason_of_problem(error, problem), words)
            for problem in error.problems
        ]
    return {
        "code": error.code,
        "msg": shorten(f"{error.reason}: {text}", MAX_TEXT),
        "data": data,
    }


def _problem_as_dict(
    problem: Problem,
    reason: str,
    words: Callable[[str], str],
) -> dict[str, Any]:
    """Return a problem for a response; ``words`` translates its texts."""
    body = {
        "reason": reason,
        "path": shorten(problem.path),
        "rule": words(shorten(problem.rule)),
        "got": shown(problem.got),
    }
    if problem.suggestion:
        body["suggestion"] = words(shorten(problem.suggestion))
    if problem.node:
        body["node"] = shorten(problem.node)
    return body


def shown(value: Any, limit: int = 500) -> Any:
    """Return a value for a response.

    JSON numbers, booleans and null are unchanged. Anything else becomes text, which is cut to
    ``limit`` characters.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | None):
        return value
    return shorten(value, limit)


def shorten(value: Any, limit: int = 500) -> str:
    """Return a value as encodable text, cut to ``limit`` characters.

    An ellipsis after them shows that it was cut.
    """
    text: str = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    return text[:limit] + "…"


def counted(count: int, thing: str, things: str = "") -> str:
    """Return a count with its noun, such as ``1 job`` or ``2 jobs``.

    ``things`` is the plural, if it is not formed by an s.
    """
    if count == 1:
        return f"{count} {thing}"
    return f"{count} {things or f'{thing}s'}"


def brief(error: GatewayError) -> GatewayError:
    """Return an error for the log and the audit log: short, and without the input's problems."""
    error = error.inside or error
    short = GatewayError(error.message[:500], reason=error.reason)
    short.code = error.code
    return short


# ---------------------------------------------------------------- problems of an input
#
# Pydantic's errors as problems, for requests, files and settings alike. Each has the path, a rule
# that begins with a verb, the value, and a suggestion.

_Suggest = Callable[..., str]  # `near`, or `_no_suggestion`

MISSING = "is missing"
_MAX_LISTED = 12  # known keys listed in a rule
_MAX_COMPARED = 100  # unknown keys of an object that a missing key is compared with
# Only the first problems of an input have suggestions: a comparison takes up to a millisecond.
_MAX_WITH_SUGGESTION = 20
# Least similarity, from 0 to 1, at which an unknown key counts as a misspelled missing one.
_MISSPELLED = 0.8
# Names of types in pydantic's errors that are a list, or an object, in JSON.
_LISTS = ("list", "tuple", "set", "frozen_set", "iterable")
_OBJECTS = ("dict", "mapping", "model", "model_attributes", "dataclass")
# Kind of pydantic's error -> rule.
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
# Kind of pydantic's error -> name of the limit in the error's context, and the rule with {} for it.
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
# Limits whose rule is written in plain words instead of a number or a regular expression.
_PLAIN_RULES = {
    ("min_length", 1): "must not be empty",
    ("pattern", r"^[\x21-\x7e]+$"): "must consist of printable ASCII characters, without spaces",
}


def problems_of(errors: Iterable[Any], model: Any = None) -> list[Problem]:
    """Return pydantic's errors as problems; ``model``: the model of the input, if it is known.

    A leading ``body``, ``query``, ``path`` or ``header`` is not part of a problem's path.
    """
    problems = []
    for position, error in enumerate(errors):
        location = list(error.get("loc", ()))
        if location and location[0] in ("body", "query", "path", "header"):
            location = location[1:]
        suggest = near
        if position >= _MAX_WITH_SUGGESTION:
            suggest = _no_suggestion
        problems.append(_problem(error, location, model, suggest))
    return problems


def _no_suggestion(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "", in place of `near`."""
    return ""


def join(parts: Iterable[Any]) -> str:
    """Join keys and indices into a path such as ``config.role.guest[0]``."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif path:
            path += f".{part}"
        else:
            path = str(part)
    return path


def _problem(
    error: Mapping[str, Any],
    location: Sequence[Any],
    model: Any,
    suggest: _Suggest,
) -> Problem:
    """Return one of pydantic's errors as a problem; ``location`` are its keys and indices."""
    kind = str(error.get("type", ""))
    value = error.get("input")
    # The error's context: the limit that is broken, the choices, or the exception of a validator of
    # this gateway.
    limits = error.get("ctx") or {}
    path = join(location) or "body"
    match kind:
        case "missing":
            suggestion = _suggest_for_missing(location, value, model, suggest)
            return Problem(path, MISSING, None, suggestion)
        case "extra_forbidden":
            return _unknown_key(path, location, value, model, suggest)
        case "literal_error" | "enum":
            return _not_a_choice(path, value, str(limits.get("expected", "")), suggest)
        case _:
            return Problem(path, _rule(error, kind, limits), value)


def _not_a_choice(
    path: str,
    value: Any,
    expected: str,
    suggest: _Suggest,
) -> Problem:
    """Return the problem of a value that is none of the choices.

    Pydantic lists them as ``'a', 'b' or 'c'``.
    """
    choices = [choice.strip("'") for choice in re.split(r", | or ", expected)]
    rule = f"must be one of {', '.join(choices)}"
    return Problem(path, rule, value, suggest(str(value), choices))


def _suggest_for_missing(
    location: Sequence[Any],
    value: Any,
    model: Any,
    suggest: _Suggest,
) -> str:
    """Return the suggestion to rename an unknown key to the missing one; "" if none is similar.

    A key that is another platform's name of the missing one is preferred to a key with a similar
    spelling. ``location`` ends with the missing key, and ``value`` is the object without that key.
    """
    *parent, last = location or ("",)
    name = str(last)
    unknown_keys = _unknown_keys(value, _keys(model, parent))[:_MAX_COMPARED]
    misnomer = _other_name(name, unknown_keys, model, parent)
    misnomer = misnomer or suggest(name, unknown_keys, _MISSPELLED)
    if not misnomer:
        return ""
    return f"{name} instead of {misnomer}"


def _unknown_keys(value: Any, keys: Collection[str]) -> list[str]:
    """Return the keys of an object that are not among ``keys``.

    Empty for any other value than an object. YAML also allows keys of other types than text; they
    are left out.
    """
    if not isinstance(value, Mapping):
        return []
    return [key for key in value if isinstance(key, str) and key not in keys]


def _unknown_key(
    path: str,
    location: Sequence[Any],
    value: Any,
    model: Any,
    suggest: _Suggest,
) -> Problem:
    """Return the problem of a key that a model does not have, with the key probably meant."""
    keys = _keys(model, location[:-1])
    rule = _unknown_key_rule(keys)
    if not location:
        return Problem(path, rule, value)
    other_names = _other_names(model, location[:-1])
    key = str(location[-1])
    if key not in other_names:
        return Problem(path, rule, value, suggest(key, keys))
    if not other_names[key]:
        rule = "is a key of another platform and means nothing here; leave it out"
        return Problem(path, rule, value)
    return Problem(path, rule, value, other_names[key])


def _unknown_key_rule(keys: Sequence[str]) -> str:
    """Return the rule that an unknown key breaks, with the first few of the known ``keys``.

    An ellipsis shows that there are more of them.
    """
    rule = "is not known here"
    if keys:
        rule += f"; known are {', '.join(keys[:_MAX_LISTED])}"
    if len(keys) > _MAX_LISTED:
        rule += ", …"
    return rule


def _other_names(model: Any, location: Sequence[Any]) -> Mapping[str, str]:
    """Return other platforms' names of a model's keys, each with the key of this gateway.

    The key is "" for a name that this gateway has no key for.
    """
    names: dict[str, str] = {}
    for inner in _models_at(model, location):
        names |= getattr(inner, "other_names", {})
    return names


def _other_name(
    key: str,
    unknown_keys: Sequence[str],
    model: Any,
    location: Sequence[Any],
) -> str:
    """Return the unknown key that is another platform's name of ``key``; "" if none is."""
    other_names = _other_names(model, location)
    for unknown in unknown_keys:
        if other_names.get(unknown) == key:
            return unknown
    return ""


def _rule(
    error: Mapping[str, Any],
    kind: str,
    limits: Mapping[str, Any],
) -> str:
    """Return the rule that a value breaks, in pydantic's words if this gateway has none.

    - ``error``: as pydantic lists it
    - ``kind``: the kind of the error, such as ``greater_than``
    - ``limits``: the error's context, which has the limit that the value breaks, or the exception
      of a validator of ours
    """
    if kind in _COMPARED:
        name, template = _COMPARED[kind]
        limit = limits.get(name)
        return _PLAIN_RULES.get((name, limit), template.format(limit))
    message = str(error.get("msg", "is not valid"))
    if kind in ("value_error", "assertion_error"):  # the message has a prefix, our own error none
        return str(limits.get("error", message))
    if kind.startswith(("datetime_", "date_")):
        return _RULES["datetime_type"]
    if kind.startswith("url_"):
        return "must be a URL such as https://host:port"
    return _RULES.get(kind, message)


def _keys(model: Any, location: Sequence[Any]) -> list[str]:
    """Return the valid keys of an object in the input, sorted; empty if its model is not known.

    For an object with several possible models these are the keys of all of them.
    """
    keys = set()
    for inner in _models_at(model, location):
        keys |= {_key_of(name, field) for name, field in inner.model_fields.items()}
    return sorted(keys)


def _models_at(model: Any, location: Sequence[Any]) -> "list[type[BaseModel]]":
    """Return the possible models of an object in the input; empty if they are not known.

    - ``model``: the model of the whole input, or a union of models; None if it is not known
    - ``location``: the keys and indices on the way to the object
    """
    models = list(_models(model))
    for part in location:
        models = [inner for outer in models for inner in _models_below(outer, part)]
    return models


def _models_below(model: "type[BaseModel]", part: Any) -> "Iterator[type[BaseModel]]":
    """Yield the possible models one step further along a path.

    `_models` has looked inside lists and mappings already, so a step to one of their entries stays
    at ``model``.
    """
    if not isinstance(part, str):  # an entry of a list
        yield model
        return
    for name, field in model.model_fields.items():
        if part in (name, _key_of(name, field)):
            yield from _models(field.annotation)
            return
    yield model  # a key of a mapping of models


def _key_of(name: str, field: Any) -> str:
    """Return the key of a field in a document: its alias if it has one."""
    if isinstance(field.validation_alias, str):
        return field.validation_alias
    return field.alias or name


def _models(annotation: Any) -> "Iterator[type[BaseModel]]":
    """Yield the models in an annotation such as ``list[Model] | None``."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
