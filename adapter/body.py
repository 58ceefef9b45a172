"""JSON bodies of requests: what is read as JSON, how long it may take to arrive, and what is wrong with it."""

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
from provider_registry.model import unfit

X = TypeVar("X")

BODY_SECONDS = 60.0
"""for a body of JSON to arrive"""
MOST_FIELDS = 250_000
"""fields and lists of a body; a job of a thousand tasks with the largest parameters has half of that"""
MOST_NUMBERS = 250_000
_VALUE = re.compile(rb'[\[{,:]\s*+(?:"(?:[^"\\]++|\\.)*+")?+', re.DOTALL)
"""where a value begins, and its text, so that nothing in a text counts"""
_LONG = 64 * 1024
"""bytes of a body that a thread reads"""
LARGE = 1 << 20
OF_ONE, OF_ALL = 4, 8
"""bodies of more than `LARGE` bytes in the memory of a listener, of one sender and of all; others wait"""
_AUDITED = ("job_id", "task_id", "task_name", "flow_id", "namespace", "name", "version")
"""fields that the audit log records"""
_FAILURE = TypeAdapter(Failure)
_places: WeakValueDictionary[tuple[Any, str], anyio.Semaphore] = WeakValueDictionary()


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text; lone surrogates, NaN, deep nesting and huge integers are `Invalid`.

    So are more values than `MOST_FIELDS` and `MOST_NUMBERS`: each costs up to some microseconds, in which nothing
    else goes on.
    """
    if sum(map(text.count, (b":", b"[", b"{"))) > MOST_FIELDS or text.count(b",") > MOST_NUMBERS:
        left = [MOST_FIELDS, MOST_NUMBERS]
        for found in _VALUE.finditer(text):
            left[text[found.start()] == ord(",")] -= 1
            if -1 in left:
                rule = f"must not hold more than {MOST_FIELDS} fields and lists, and {MOST_NUMBERS} numbers in a list"
                raise Invalid([Problem("body", rule)])
    try:
        return from_json(text.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise Invalid([Problem("body", f"must be JSON: {error}")]) from None


def names_of(value: Any) -> tuple[str, ...]:
    """Return the entries of a list, as text; nothing for what is not one."""
    return tuple(map(str, value)) if isinstance(value, list) else ()


class JsonRequest(Request):
    """A request whose body must arrive within `BODY_SECONDS`; a large one gets places as soon, in ``held``."""

    held: AsyncExitStack

    async def body(self) -> bytes:
        """Return the body. Raises `HTTPException` (408) if it does not arrive in time, `Busy` without a place."""
        if hasattr(self, "_body"):
            return self._body
        chunks, size = [], 0
        try:
            with anyio.fail_after(BODY_SECONDS) as arriving:
                async for chunk in self.stream():
                    if size <= LARGE < size + len(chunk):
                        arriving.deadline += BODY_SECONDS
                        await self._take_places()
                        arriving.deadline = anyio.current_time() + BODY_SECONDS
                    size += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            raise HTTPException(408, f"the body must arrive within {BODY_SECONDS:g} s") from None
        self._body = b"".join(chunks)
        return self._body

    async def _take_places(self) -> None:
        sender = origin().node or str((self.client or ("",))[0])
        with anyio.move_on_after(BODY_SECONDS):
            for whose, many in ((sender, OF_ONE), ("", OF_ALL)):
                place = _places.setdefault((self.app, whose), anyio.Semaphore(many))
                await self.held.enter_async_context(place)
            return
        raise Busy(f"other large bodies have kept all places for {BODY_SECONDS:g} s")

    async def json(self) -> Any:
        """Return the body's JSON, parsed once. Raises `Invalid`."""
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = (
                read_json(body)
                if len(body) < _LONG
                else await anyio.to_thread.run_sync(read_json, body)
            )
            if isinstance(self._json, dict):
                ids = {name: self._json.get(name) for name in _AUDITED}
                self.state.asked = {
                    name: value[:200] for name, value in ids.items() if isinstance(value, str)
                }
        return self._json


class JsonRoute(APIRoute):
    """A path whose body is read as a `JsonRequest` reads it, once the application's ``before_body`` lets it."""

    request = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler; the body is parsed before it, so that `Invalid` gets out as it is."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            request = self.request(request.scope, request.receive)
            async with AsyncExitStack() as request.held:
                if before := getattr(request.app.state, "before_body", None):
                    await before(request)
                if (
                    self.body_field is not None
                    and (await request.body()).strip()
                    and is_json(request)
                ):
                    await request.json()
                return await handle(request)

        return read_and_handle


def without_nulls(value: Any) -> Any:
    """Return an object without its members that are null; any other value unchanged."""
    return (
        {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value
    )


def fit(value: X) -> X:
    """Return free content that is within the bounds of descriptions: depth, number of values, amount of text."""
    if problem := unfit(value):
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


def failure_of(value: Any) -> Failure | None:
    """Read why something failed, by a peer's word; None where it gives no reason."""
    try:
        found = _FAILURE.validate_python(without_nulls(value))
    except ValidationError:
        return None
    short: dict[str, Any] = {
        name: str(getattr(found, name))[:255] for name in ("reason", "node", "role", "task")
    }
    return replace(found, **short, message=found.message[:2000]) if found.reason else None


def is_json(request: Request) -> bool:
    """Say whether the framework would parse the body: its content type is JSON or missing."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


Words = Callable[[str], str]
"""Rewrites a text for its readers, such as peers."""


def refusal(request: Request, error: RequestValidationError) -> Invalid:
    """Return what is wrong with a request that does not fit what its path declares."""
    problems = problems_of(
        [e for e in error.errors() if not _of_bytes(error, e)], model_of(request)
    )
    if len(problems) < len(error.errors()):
        sent = request.headers.get("content-type", "")[:200]
        problems.insert(
            0, Problem("content-type", "must be application/json", sent, "application/json")
        )
    return Invalid(problems)


def model_of(request: Request) -> Any:
    """Return what the path of a request declares as its body; None where it declares none."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(field, "field_info", None), "annotation", None)


def _of_bytes(error: RequestValidationError, one: Mapping[str, Any]) -> bool:
    """Whether a problem is that of a body that was not parsed, as its content type is not JSON."""
    return isinstance(error.body, bytes) and tuple(one.get("loc") or ())[:1] == ("body",)


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return the words in which an application reports errors; set to ``words`` where they are given."""
    if words is not None:
        app.state.words = words
    found: Words = getattr(app.state, "words", str)
    return found
