"""Reads JSON of others, so that everybody else is answered meanwhile: what would take long is refused before it is
parsed, and what is large is read in a thread, step by step.

The parser holds every other thread of the process until it is done, or calls something of ours. Its time goes with
the number of values, not of bytes, so their number is estimated first, by counting the signs that separate them.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute

from gateway.domain.problems import Problem
from gateway.http.duplicate_keys import AT_ONCE
from gateway.ports import as_mapping
from provider_registry.model import counted, encodable, join, pieces

MOST_SIGNS = 100_000
"""commas and opening brackets in one body, those inside of texts included"""
MOST_ESCAPES = 1_000_000
BODY_SECONDS = 60.0
"""for a body of JSON to arrive"""

_BODY = "body"
_IDS = ("job_id", "task_id", "task_name")
"""of what is asked, for the audit"""
HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""what a lone surrogate, which UTF-8 cannot hold, looks like in JSON; whole pairs look alike"""


class NotFit(json.JSONDecodeError):
    """The text is no JSON that may be read here; ``problems`` says why, each with its path."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(map(str, problems)), "", 0)
        self.problems = problems


def read_json(text: bytes) -> Any:
    """Return what a JSON text says. Raises `NotFit`.

    Refused beside what is no JSON: too many values, too deep nesting, numbers that are not finite or have
    thousands of digits, half surrogate pairs.
    """
    signs = counted(text, b",[{", MOST_SIGNS)
    if signs > MOST_SIGNS:
        rule = f"must not hold more than {MOST_SIGNS} commas and opening brackets"
        raise NotFit(Problem(_BODY, rule, f"{signs} and perhaps more"))
    escapes = counted(text, b"\\", MOST_ESCAPES)
    if escapes > MOST_ESCAPES:
        raise NotFit(Problem(_BODY, f"must not hold more than {MOST_ESCAPES} backslashes", escapes))
    strange: list[str] = []

    def number(word: str) -> float:
        found = float(word)
        if not math.isfinite(found):
            strange.append(word)
        return found

    try:
        written = text.decode(json.detect_encoding(text), "surrogatepass")
        said = json.loads(
            written,
            parse_constant=number,
            parse_float=number,
            object_pairs_hook=_made if len(text) > AT_ONCE else None,
        )
    except RecursionError:
        raise NotFit(Problem(_BODY, "must not nest so deeply")) from None
    except json.JSONDecodeError as error:
        raise NotFit(Problem(_BODY, f"must be JSON: {error.msg} at character {error.pos}")) from None
    except UnicodeDecodeError as error:
        raise NotFit(Problem(_BODY, f"must be JSON in UTF-8: {error.reason} at byte {error.start}")) from None
    except ValueError:
        raise NotFit(Problem(_BODY, "must not hold integers of thousands of digits")) from None
    if (strange or _may_have_halves(text, escapes)) and (problems := list(_unfit(said))):
        raise NotFit(*problems)
    return said


def _made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs, as the parser would: here another thread may have its turn."""
    return dict(pairs)


def _may_have_halves(text: bytes, escapes: int) -> bool:
    if not escapes and b"\xed" not in text:
        return False
    return any(HALF_PAIR.search(text, start, end + 3) for start, end in pieces(text))


async def read_aside(text: bytes) -> Any:
    """Return what a JSON text says; a large one is read in a thread. Raises `NotFit`."""
    return read_json(text) if len(text) <= AT_ONCE else await anyio.to_thread.run_sync(read_json, text)


class JsonRequest(Request):
    """A request whose JSON is read by `read_aside`, and whose body has to arrive within `BODY_SECONDS`."""

    async def body(self) -> bytes:
        """Return the body. Raises `NotFit` where it takes too long: its connection would be kept for good."""
        try:
            with anyio.fail_after(BODY_SECONDS):
                return await super().body()
        except TimeoutError:
            raise NotFit(Problem(_BODY, f"must arrive within {BODY_SECONDS:g} s")) from None

    async def json(self) -> Any:
        """Return the body's JSON, read once. Raises what `read_aside` raises."""
        if not hasattr(self, "_json"):
            self._json = await read_aside(await self.body())
            said = as_mapping(self._json)
            self.state.asked = {n: said[n][:200] for n in _IDS if isinstance(said.get(n), str)}
        return self._json


class JsonRoute(APIRoute):
    """A path whose JSON body is read by `read_aside`."""

    request = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the path's handler, which gets a `JsonRequest`."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            return await handle(self.request(request.scope, request.receive))

        return read_and_handle


def _unfit(said: Any) -> Iterator[Problem]:
    """Find each number that is not finite and each text that UTF-8 cannot hold; without recursion."""
    stack = [("", said)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield Problem(path or _BODY, "must be a finite number", repr(value))
        elif isinstance(value, str) and not encodable(value):
            yield Problem(path or _BODY, "must not hold half of a surrogate pair", repr(value[:80]))
        elif isinstance(value, list):
            stack += [(join(path, i), item) for i, item in enumerate(value)]
        elif isinstance(value, dict):
            for key, item in value.items():
                if not encodable(key):
                    yield Problem(join(path, key), "must not hold half of a surrogate pair in its name")
                stack.append((join(path, key), item))
