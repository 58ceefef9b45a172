"""JSON bodies of requests: reading them within bounds of time and size, and reporting problems."""

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from typing import Any, TypeGuard, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import PydanticCustomError, from_json
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from gateway.auth import origin
from gateway.domain.problems import Problem
from gateway.domain.spec import Failure
from gateway.errors import MAX_PROBLEMS, Busy, Invalid, problems_of
from provider_registry.model import document_problem

X = TypeVar("X")

BODY_SECONDS = 60.0  # seconds in which a JSON body must arrive
# The most fields, objects and lists of a body. A job of a thousand tasks with the largest
# parameters has half as many.
MOST_FIELDS = 250_000
# The most commas outside texts. Commas between fields count too, but a body reaches `MOST_FIELDS`
# first by those; so this limits the numbers and texts in lists.
MOST_NUMBERS = 250_000
LARGE = 1 << 20  # bytes; larger bodies need a place in memory
LARGE_OF_SENDER = 4  # large bodies of one sender in a listener's memory; further ones wait
LARGE_OF_ALL = 8  # large bodies of all senders in a listener's memory; further ones wait

# Matches the character before a value and, if the value is a text, all of the text: no character
# inside a text is counted.
_VALUE = re.compile(rb'[\[{,:]\s*+(?:"(?:[^"\\]++|\\.)*+")?+', re.DOTALL)
_COMMA = ord(",")
_JSON_TYPE = re.compile(r"application/(?:.*\+)?json")  # also types such as application/ld+json
_PARSED_IN_THREAD = 64 * 1024  # bytes; larger bodies would block the event loop
_AUDIT_FIELDS = ("job_id", "task_id", "task_name", "flow_id", "namespace", "name", "version")
_LONGEST_AUDIT_VALUE = 200  # the most characters of an id in the audit log
# The most characters of a failure that a peer reports: of its message, and of each other field
_LONGEST_MESSAGE = 2000
_LONGEST_NAME = 255
_MOST_ERRORS = 2000  # of a part of a body, above which they are only counted
_FAILURE = TypeAdapter(Failure)
# Places for large bodies of each application and sender; the empty sender means all senders.
_large_places: WeakValueDictionary[tuple[Any, str], anyio.Semaphore] = WeakValueDictionary()

Words = Callable[[str], str]  # rewrites an error's text for its readers, such as peers


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text.

    Raises `Invalid` for lone surrogates, NaN, deep nesting, huge integers, and more values than
    `MOST_FIELDS` and `MOST_NUMBERS`: each value takes up to some microseconds, during which no
    other request is served.
    """
    _check_number_of_values(text)
    try:
        return from_json(text.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        problem = Problem("body", f"must be JSON: {error}")
        raise Invalid([problem]) from None


def _check_number_of_values(text: bytes) -> None:
    """Raise `Invalid` for more fields, objects and lists than `MOST_FIELDS`, or too many commas.

    The limit of commas outside texts is `MOST_NUMBERS`.
    """
    if _may_have_too_many_values(text) and _has_too_many_values(text):
        rule = (
            f"must not hold more than {MOST_FIELDS} fields and lists, and {MOST_NUMBERS} "
            "numbers in a list"
        )
        raise Invalid([Problem("body", rule)])


def _may_have_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more characters that may begin a value than a limit allows.

    This count is cheap, but includes characters inside texts: only False is certain.
    """
    possible_fields = sum(map(text.count, (b":", b"[", b"{")))
    possible_numbers = text.count(b",")
    return possible_fields > MOST_FIELDS or possible_numbers > MOST_NUMBERS


def _has_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more values than a limit allows.

    What looks like values inside a text counts as that one text.
    """
    most_values = MOST_FIELDS + MOST_NUMBERS
    # One value more than both limits together exceeds one of them, so counting may stop there.
    values = islice(_VALUE.finditer(text), most_values + 1)
    beginnings = Counter(text[value.start()] for value in values)
    numbers = beginnings[_COMMA]
    fields = beginnings.total() - numbers
    return fields > MOST_FIELDS or numbers > MOST_NUMBERS


class JsonRequest(Request):
    """A request whose body must arrive within `BODY_SECONDS`.

    A large body needs places in memory; while it waits for them, the time is not counted.
    """

    places: AsyncExitStack  # releases the places of a large body

    async def body(self) -> bytes:
        """Return the body.

        Raises `HTTPException` (408) if it does not arrive in time, `Busy` without a place.
        """
        if hasattr(self, "_body"):  # read before
            return self._body
        try:
            with anyio.fail_after(BODY_SECONDS) as arriving:
                self._body = await self._read(arriving)
        except TimeoutError:
            raise HTTPException(408, f"the body must arrive within {BODY_SECONDS:g} s") from None
        return self._body

    async def _read(self, arriving: anyio.CancelScope) -> bytes:
        """Read the body; ``arriving`` has the deadline.

        Raises `Busy` if a large body gets no place, and starlette's `ClientDisconnect` if the
        caller hangs up.
        """
        chunks = []
        size = 0
        async for chunk in self.stream():
            becomes_large = size <= LARGE < size + len(chunk)
            if becomes_large:
                await self._wait_for_places(arriving)
            size += len(chunk)
            chunks.append(chunk)
        return b"".join(chunks)

    async def _wait_for_places(self, arriving: anyio.CancelScope) -> None:
        """Wait for places without counting the time.

        Afterwards the rest of the body has `BODY_SECONDS` again. Raises `Busy`.
        """
        # The deadline is postponed beyond the end of the wait, which `_take_places` limits.
        arriving.deadline += BODY_SECONDS
        await self._take_places()
        arriving.deadline = anyio.current_time() + BODY_SECONDS

    async def _take_places(self) -> None:
        """Take a place of the sender's and one of all, until the request is over.

        Raises `Busy` if they are not free within `BODY_SECONDS`.
        """
        sender = origin().node or self._address()
        with anyio.move_on_after(BODY_SECONDS):
            for owner, limit in ((sender, LARGE_OF_SENDER), ("", LARGE_OF_ALL)):
                key = (self.app, owner)
                semaphore = anyio.Semaphore(limit)
                place = _large_places.setdefault(key, semaphore)
                # The dictionary refers to the semaphore weakly; the requests that use the semaphore
                # keep it alive.
                await self.places.enter_async_context(place)
            return
        # The time of `move_on_after` is over.
        raise Busy(f"other large bodies have kept all places for {BODY_SECONDS:g} s")

    def _address(self) -> str:
        """Return the address of the caller; empty if the server does not know it."""
        if self.client is None:
            return ""
        return str(self.client[0])

    def replace_body(self, body: bytes, content_type: str) -> None:
        """Continue with another body, in place of the one that was read: the opened one."""
        self._body = body
        headers = MutableHeaders(scope=self.scope)
        headers["content-type"] = content_type
        self._headers = Headers(scope=self.scope)

    async def json(self) -> Any:
        """Return the body's JSON, parsed once.

        Raises `Invalid` as `read_json` does, and the errors of `body`.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) < _PARSED_IN_THREAD:
                self._json = read_json(body)
            else:
                self._json = await anyio.to_thread.run_sync(read_json, body)
            self._note_ids()
        return self._json

    def _note_ids(self) -> None:
        """Keep the ids of the body for the audit log, cut to `_LONGEST_AUDIT_VALUE`.

        Ids that are not texts, and a body that is not an object, are left out.
        """
        if not isinstance(self._json, dict):
            return
        ids = {}
        for name in _AUDIT_FIELDS:
            value = self._json.get(name)
            if isinstance(value, str):
                ids[name] = value[:_LONGEST_AUDIT_VALUE]
        self.state.asked = ids


class JsonRoute(APIRoute):
    """A path that reads its body as a `JsonRequest`.

    The application's ``before_body``, if it has one, may refuse a request before its body is read.
    """

    request = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler.

        It parses the body before the framework does, which would hide `Invalid`.
        """
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            request = self.request(request.scope, request.receive)
            async with AsyncExitStack() as request.places:
                check_request = getattr(request.app.state, "before_body", None)
                if check_request:
                    await check_request(request)
                if self.body_field is not None:
                    await _parse(request)
                return await handle(request)

        return read_and_handle


async def _parse(request: Request) -> None:
    """Parse the body, unless it is empty or not JSON; the request keeps the value.

    Raises `Invalid` for unusable JSON, and the errors of `JsonRequest.body`.
    """
    body = await request.body()
    if body.strip() and is_json(request):
        await request.json()


def is_json(request: Request) -> bool:
    """True if the framework would parse the body: its content type is JSON or missing."""
    content_type = request.headers.get("content-type", "application/json")
    media_type, _, _ = content_type.partition(";")
    normal_type = media_type.strip().lower()
    return _JSON_TYPE.fullmatch(normal_type) is not None


def without_nulls(value: Any) -> Any:
    """Return an object without its null members; any other value unchanged.

    Objects inside it keep their null members.
    """
    if not isinstance(value, Mapping):
        return value
    return {name: member for name, member in value.items() if member is not None}


def is_integer(value: Any) -> TypeGuard[int]:
    """True for a whole number; False for a boolean, which Python counts among the integers."""
    return isinstance(value, int) and not isinstance(value, bool)


def texts_of(value: Any) -> tuple[str, ...]:
    """Return the entries of a list as texts; empty for any other value.

    Entries that are not texts are written as Python does, such as ``None`` for null.
    """
    if not isinstance(value, list):
        return ()
    return tuple(map(str, value))


def within_bounds(value: X) -> X:
    """Return free content unchanged if its depth, number of values and amount of text are allowed.

    A pydantic validator, which raises PydanticCustomError otherwise.
    """
    problem = document_problem(value)
    if problem:
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


def with_few_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a value; more than `_MOST_ERRORS` errors become one that counts them.

    A pydantic validator, which raises PydanticCustomError then. The framework lists all errors of
    a body: hundreds of thousands would take seconds, during which no other request is served.
    """
    try:
        return validate(value)
    except ValidationError as error:
        count = error.error_count()
        if count <= _MOST_ERRORS:
            raise
    raise PydanticCustomError(
        "errors", "has {count} problems, which are too many to list", {"count": count}
    )


def failure_of(value: Any) -> Failure | None:
    """Read a failure that a peer reports, with shortened texts.

    Returns None for a failure without a reason, and for a value that has another form.
    """
    try:
        failure = _FAILURE.validate_python(without_nulls(value))
    except ValidationError:
        return None
    if not failure.reason:
        return None
    return replace(
        failure,
        reason=failure.reason[:_LONGEST_NAME],
        node=failure.node[:_LONGEST_NAME],
        role=failure.role[:_LONGEST_NAME],
        task=failure.task[:_LONGEST_NAME],
        message=failure.message[:_LONGEST_MESSAGE],
    )


def refusal(request: Request, error: RequestValidationError) -> Invalid:
    """Return the problems of a request that does not fit its path's declaration.

    A body that was not parsed is reported once, as a problem with its content type, in place of the
    framework's problems with its bytes.
    """
    errors = error.errors()
    reported = [entry for entry in errors if not _is_of_unparsed_body(error, entry)]
    # `Invalid` lists no more of them.
    problems = problems_of(reported[: MAX_PROBLEMS + 1], model_of(request))
    has_unparsed_body = len(reported) < len(errors)
    if has_unparsed_body:
        content_type = request.headers.get("content-type", "")[:200]
        problem = Problem(
            "content-type", "must be application/json", content_type, "application/json"
        )
        problems.insert(0, problem)
    return Invalid(problems)


def model_of(request: Request) -> Any:
    """Return the model that the path of a request declares for its body.

    Returns None for a path without a body, and before a path was found for the request.
    """
    field = getattr(request.scope.get("route"), "body_field", None)
    field_info = getattr(field, "field_info", None)
    return getattr(field_info, "annotation", None)


def _is_of_unparsed_body(error: RequestValidationError, entry: Mapping[str, Any]) -> bool:
    """True if a problem only says that the body was left as bytes: its content type is not JSON."""
    location = tuple(entry.get("loc", ()))
    is_of_body = location[:1] == ("body",)
    return is_of_body and isinstance(error.body, bytes)


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return the function that rewrites the error texts of an application.

    If ``words`` is not None, it is stored as that function first. As long as none is stored, the
    function is ``str``, which changes nothing.
    """
    if words is not None:
        app.state.words = words
    current: Words = getattr(app.state, "words", str)
    return current
