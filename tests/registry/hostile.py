"""Registrations that want to take long, or much; run as a program, this reads each with little memory and time."""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

from provider_registry.forms import form
from provider_registry.model import MAX_VALUES, InvalidDescription
from provider_registry.registration import MAX_BYTES, read
from tests.registry.builders import a_component, a_description, a_parameter, a_request

MEMORY = 200 * 1024**2
"""bytes beyond what the program has before it begins"""
SECONDS = 2
"""of the processor, for one text; the system counts whole ones, so it may be one more"""

Make = Callable[[int], dict[str, Any]]
_EACH = 400
"""parameters of a component"""


def _parameters(make: Callable[[int], Any]) -> Make:
    """Spread parameters over as many components as they need, to be read as far as possible."""
    return lambda n: a_request(
        *(
            a_description(f"C{first}", inputParam=[make(i) for i in range(first, min(first + _EACH, n))])
            for first in range(0, n, _EACH)
        )
    )


def _one(name: str, make: Callable[[int], Any]) -> Make:
    return lambda n: a_request(a_description("C", **{name: make(n)}))


def _regular(pattern: str, default: str) -> Make:
    return _parameters(lambda i: a_parameter(f"p{i}", validator=f"regular:'{pattern}{i}'", defaultValue=default))


BODIES: dict[str, Make] = {
    "parameters that are nothing but names": _parameters(lambda i: {"name": f"p{i}"}),
    "near misses": _parameters(
        lambda i: {"name": f"a{i}", "type": "strnig", "optional": "fasle", "UIType": "inputt", "titel": "x"}
    ),
    "a chain of conditions": _parameters(lambda i: a_parameter(f"p{i}", dependsOn=[f"p{i + 1}.1"])),
    "conditions on everything": lambda n: a_request(
        a_description(
            "C",
            inputParam=[
                a_parameter(f"p{i}", dependsOn=[f"p{k}.1" for k in range(min(n, 200))])
                for i in range(max(1, n // 200))
            ],
        )
    ),
    "plain expressions": _regular("[a-z]*x[a-z]*y", "a" * 512),
    "expressions that count": _regular("((((a{9}){9}){9}){9}){9}", "a" * 60),
    "catastrophic expressions": _regular("(a|a)*b", "a" * 60),
    "components without anything": lambda n: (
        a_request() | {"components_description": {f"C{i}": {} for i in range(n)}}
    ),
    "wrong shapes": _one("inputParam", lambda n: [1] * n),
    "metadata": lambda n: a_request(metadata={"image": "a", "x": [0] * n}),
}


def filled(make: Make, size: int) -> bytes:
    """Return a body that is nearly as large as may be: in bytes, or in values."""
    counts = [
        _reached(*(measure(make(n)) for n in (1000, 2000)), most)
        for measure, most in ((_bytes, size), (_values, MAX_VALUES))
    ]
    return json.dumps(make(min(counts))).encode()


def _reached(low: int, high: int, most: int) -> int:
    """Return for how many parts nine tenths of a bound are reached, as 1,000 and 2,000 parts tell."""
    return 1000 if high <= low else max(1, int((0.9 * most - 2 * low + high) / (high - low) * 1000))


def _bytes(value: Any) -> int:
    return len(json.dumps(value).encode())


def _values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1


def texts() -> Iterator[tuple[str, bytes]]:
    for name, make in BODIES.items():
        yield name, filled(make, MAX_BYTES)
    yield "a text that nothing closes", b'{"name": "' + b'\\"' * (MAX_BYTES // 2 - 20) + b",}"
    yield "lists of lists", b"[" + b"[]," * 330_000 + b"0]"
    yield "nothing but braces", b"[" * MAX_BYTES


def largest_form() -> int:
    """Return how many demands the form of a component makes whose conditions all name one long list."""
    choices = json.dumps([f"v{i}" for i in range(1000)])
    named = [f"p0.V{k}" for k in range(100)]
    waiting = [a_parameter(f"p{i}", optional="false", dependsOn=named) for i in range(1, _EACH)]
    parameters = [a_parameter("p0", bindingData=choices), *waiting]
    return len(form(a_component(*parameters))["allOf"])


def may_take(seconds: int) -> None:
    """Let this process end with SIGXCPU if what follows takes the processor for longer."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, -1))


def main() -> None:
    said = {}
    made = list(texts())
    with open("/proc/self/statm", encoding="ascii") as sizes:
        has = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, -1))
    for name, text in made:
        may_take(SECONDS)
        print(name, file=sys.stderr, flush=True)
        try:
            read(text)
            said[name] = "read"
        except InvalidDescription as error:
            said[name] = str(error.problems)[:300]
    may_take(2 * SECONDS)
    print("a form", file=sys.stderr, flush=True)
    said["a form"] = str(largest_form())
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
