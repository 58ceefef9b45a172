"""JSON bodies of requests: reading them within bounds of time and size, and reporting their problems."""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, from_json
from starlette.exceptions import HTTPException

from gateway.auth import origin
from gateway.domain.problems import Problem
from gateway.domain.spec import Failure
from gateway.errors import Busy, Invalid, problems_of
from provider_registry.model import document_problem

X = TypeVar("X")

BODY_SECONDS = 60.0  # for a JSON body to arrive
# Fields and lists of a body. A job of a thousand tasks with the largest parameters has half of that.
MOST_FIELDS = 250_000
MOST_NUMBERS = 250_000  # entries of lists
LARGE = 1 << 20  # bytes; larger bodies need a place in memory
LARGE_OF_SENDER = 4  # large bodies of one sender in the memory of a listener; others wait
LARGE_OF_ALL = 8  # large bodies of all senders in the memory of a listener

# The beginning of a value, with the value if it is a text, so that no character of a text is counted.
_VALUE = re.compile(rb'[\[{,:]\s*+(?:"(?:[^"\\]++|\\.)*+")?+', re.DOTALL)
_COMMA = ord(",")
_PARSED_IN_THREAD = 64 * 1024  # bytes; larger bodies would block the event loop
_AUDIT_FIELDS = ("job_id", "task_id", "task_name", "flow_id", "namespace", "name", "version")
_LONGEST_AUDIT_VALUE = 200
_LONGEST_MESSAGE = 2000  # of a peer's failure
_LONGEST_NAME = 255  # of a reason, node, role or task in a peer's failure
_FAILURE = TypeAdapter(Failure)
# Places for large bodies of each application and sender; the empty sender means all senders.
_large_places: WeakValueDictionary[tuple[Any, str], anyio.Semaphore] = WeakValueDictionary()

Words = Callable[[str], str]  # rewrites a text for its readers, such as peers


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text.

    Raises `Invalid` for lone surrogates, NaN, deep nesting, huge integers, and more values than `MOST_FIELDS` and
    `MOST_NUMBERS`: each value takes up to some microseconds, during which no other request is served.
    """
    _check_number_of_values(text)
    try:
        return from_json(text.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise Invalid([Problem("body", f"must be JSON: {error}")]) from None


def _check_number_of_values(text: bytes) -> None:
    """Raise `Invalid` for too many values. A cheap count of characters comes first, which includes those inside texts."""
    most_possible_fields = text.count(b":") + text.count(b"[") + text.count(b"{")
    if most_possible_fields <= MOST_FIELDS and text.count(b",") <= MOST_NUMBERS:
        return
    fields = 0
    numbers = 0
    for value in _VALUE.finditer(text):
        if text[value.start()] == _COMMA:
            numbers += 1
        else:
            fields += 1
        if fields > MOST_FIELDS or numbers > MOST_NUMBERS:
            rule = f"must not hold more than {MOST_FIELDS} fields and lists, and {MOST_NUMBERS} numbers in a list"
            raise Invalid([Problem("body", rule)])


class JsonRequest(Request):
    """A request whose body must arrive within `BODY_SECONDS`; a large one waits for places as long again."""

    held: AsyncExitStack  # releases the places of a large body

    async def body(self) -> bytes:
        """Return the body. Raises `HTTPException` (408) if it does not arrive in time, `Busy` without a place."""
        if hasattr(self, "_body"):
            return self._body
        chunks = []
        size = 0
        try:
            with anyio.fail_after(BODY_SECONDS) as arriving:
                async for chunk in self.stream():
                    becomes_large = size <= LARGE < size + len(chunk)
                    if becomes_large:
                        await self._wait_for_places(arriving)
                    size += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            raise HTTPException(408, f"the body must arrive within {BODY_SECONDS:g} s") from None
        self._body = b"".join(chunks)
        return self._body

    async def _wait_for_places(self, arriving: anyio.CancelScope) -> None:
        """Wait for places without counting the time; afterwards the rest has `BODY_SECONDS` again."""
        arriving.deadline += BODY_SECONDS
        await self._take_places()
        arriving.deadline = anyio.current_time() + BODY_SECONDS

    async def _take_places(self) -> None:
        sender = origin().node or self._address()
        with anyio.move_on_after(BODY_SECONDS):
            for owner, limit in ((sender, LARGE_OF_SENDER), ("", LARGE_OF_ALL)):
                place = _large_places.setdefault((self.app, owner), anyio.Semaphore(limit))
                await self.held.enter_async_context(place)
            return
        raise Busy(f"other large bodies have kept all places for {BODY_SECONDS:g} s")

    def _address(self) -> str:
        return str(self.client[0]) if self.client else ""

    async def json(self) -> Any:
        """Return the body's JSON, parsed once. Raises `Invalid`."""
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) < _PARSED_IN_THREAD:
                self._json = read_json(body)
            else:
                self._json = await anyio.to_thread.run_sync(read_json, body)
            self._note_ids()
        return self._json

    def _note_ids(self) -> None:
        """Keep the ids of the body for the audit log."""
        if not isinstance(self._json, dict):
            return
        ids = {}
        for name in _AUDIT_FIELDS:
            value = self._json.get(name)
            if isinstance(value, str):
                ids[name] = value[:_LONGEST_AUDIT_VALUE]
        self.state.asked = ids


class JsonRoute(APIRoute):
    """A path that reads its body as a `JsonRequest`, after the application's ``before_body`` has let it pass."""

    request = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler. It parses the body before the framework does, which would hide `Invalid`."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            request = self.request(request.scope, request.receive)
            async with AsyncExitStack() as request.held:
                before = getattr(request.app.state, "before_body", None)
                if before:
                    await before(request)
                if self.body_field is not None:
                    await _parse(request)
                return await handle(request)

        return read_and_handle


async def _parse(request: Request) -> None:
    """Parse the body, unless it is empty or not JSON."""
    body = await request.body()
    if body.strip() and is_json(request):
        await request.json()


def is_json(request: Request) -> bool:
    """True if the framework would parse the body: its content type is JSON or missing."""
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        return True
    return media_type.startswith("application/") and media_type.endswith("+json")


def without_nulls(value: Any) -> Any:
    """Return an object without its null members; any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {name: member for name, member in value.items() if member is not None}


def texts_of(value: Any) -> tuple[str, ...]:
    """Return the entries of a list as text; empty for any other value."""
    if not isinstance(value, list):
        return ()
    return tuple(map(str, value))


def within_bounds(value: X) -> X:
    """Validate free content: the depth, number of values and amount of text of descriptions."""
    problem = document_problem(value)
    if problem:
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


def failure_of(value: Any) -> Failure | None:
    """Read a failure that a peer reports; None if it gives no reason."""
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
    """Return the problems of a request that does not fit its path's declaration."""
    errors = error.errors()
    reported = [entry for entry in errors if not _is_of_unparsed_body(error, entry)]
    problems = problems_of(reported, model_of(request))
    if len(problems) < len(errors):
        content_type = request.headers.get("content-type", "")[:200]
        problem = Problem(
            "content-type", "must be application/json", content_type, "application/json"
        )
        problems.insert(0, problem)
    return Invalid(problems)


def model_of(request: Request) -> Any:
    """Return the model that the path of a request declares for its body; None without one."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(field, "field_info", None), "annotation", None)


def _is_of_unparsed_body(error: RequestValidationError, entry: Mapping[str, Any]) -> bool:
    """True if a problem only says that the body is bytes: its content type is not JSON."""
    location = tuple(entry.get("loc") or ())
    return isinstance(error.body, bytes) and location[:1] == ("body",)


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return the function that rewrites an application's error texts, after setting it to ``words`` if given."""
    if words is not None:
        app.state.words = words
    current: Words = getattr(app.state, "words", str)
    return current
