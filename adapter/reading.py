"""Reads JSON of others, on the event loop and thus quickly: what would take long is refused before it is parsed.

The parser holds every other thread of the process until it is done. Its time goes with the number of values, not
of bytes, so their number is estimated first, by counting the signs that separate them.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gateway.domain.problems import Problem
from provider_registry.limits import encodable, join

MOST_SIGNS = 100_000
"""commas and opening brackets in one body, those inside of texts included"""
MOST_ESCAPES = 1_000_000

_BODY = "body"
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
    signs = text.count(b",") + text.count(b"[") + text.count(b"{")
    if signs > MOST_SIGNS:
        rule = f"must not hold more than {MOST_SIGNS} commas and opening brackets"
        raise NotFit(Problem(_BODY, rule, signs))
    escapes = text.count(b"\\")
    if escapes > MOST_ESCAPES:
        raise NotFit(Problem(_BODY, f"must not hold more than {MOST_ESCAPES} backslashes", escapes))
    strange: list[str] = []

    def number(word: str) -> float:
        found = float(word)
        if not math.isfinite(found):
            strange.append(word)
        return found

    try:
        said = json.loads(text, parse_constant=number, parse_float=number)
    except RecursionError:
        raise NotFit(Problem(_BODY, "must not nest so deeply")) from None
    except json.JSONDecodeError as error:
        raise NotFit(Problem(_BODY, f"must be JSON: {error.msg} at character {error.pos}")) from None
    except UnicodeDecodeError as error:
        raise NotFit(Problem(_BODY, f"must be JSON in UTF-8: {error.reason} at byte {error.start}")) from None
    except ValueError:
        raise NotFit(Problem(_BODY, "must not hold integers of thousands of digits")) from None
    halves = (escapes or b"\xed" in text) and HALF_PAIR.search(text)
    if (strange or halves) and (problems := list(_unfit(said))):
        raise NotFit(*problems)
    return said


class JsonRequest(Request):
    """A request whose JSON is read by `read_json`."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """A path whose JSON body is read by `read_json`."""

    request = JsonRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
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
