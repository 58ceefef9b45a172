"""Health of a node that reads hostile descriptions of providers."""

import argparse
import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from provider_registry.registration import MAX_BYTES, MAX_EXPRESSIONS
from tests.e2e.nodes import Node
from tools.bench.load import quantile
from tools.bench.nodes import PROCESS_ENGINE, provider, two_nodes
from tools.bench.parts import Rows, milliseconds, part

REGISTER = "/v2/provider/register"
HEALTH = "/health"
_SECONDS = 8.0  # of the measurement of one kind
_PAUSE = 0.01  # seconds between two requests of health
_TIMEOUT = 60.0  # seconds of a request
_PARAMETERS = 5000  # with expressions, in all components of a description
_PARAMETERS_PER_COMPONENT = 500  # as many as a component may have

# ---------------------------------------------------------------- descriptions


def nested_lists() -> bytes:
    """Return a registration with a hundred thousand lists in each other."""
    return _with_metadata("[" * 100_000 + "]" * 100_000)


def fifty_megabytes() -> bytes:
    """Return a registration that is larger than any body may be."""
    return _of_size(50_000_000)


def most_numbers() -> bytes:
    """Return a registration of the largest size, which is all numbers."""
    return _of_size(MAX_BYTES)


def most_numbers_broken_off() -> bytes:
    """Return a registration of the largest size without its end, for which it is read twice."""
    return _of_size(MAX_BYTES)[:-2]


def exponential_expressions() -> bytes:
    """Return a registration with expressions that a backtracking engine would never end."""
    return _with_expressions([f"(a+)+{number}$" for number in range(_PARAMETERS)])


def costly_expressions() -> bytes:
    """Return a valid registration of another provider with the most costly expressions.

    It has as many different ones as a registration may have, and 5,000 parameters.
    """
    body = provider() | {"name": "expressions"}
    components = {}
    for first in range(0, _PARAMETERS, _PARAMETERS_PER_COMPONENT):
        parameters = []
        for number in range(first, first + _PARAMETERS_PER_COMPONENT):
            expression = f"({number % MAX_EXPRESSIONS})?" + r"(\pL|\pN){2}" * 6
            parameters.append(_parameter(number, expression, "a" * 12))
        name = f"C{first}"
        components[name] = body["components_description"]["Echo"] | {
            "componentName": name,
            "inputParam": parameters,
        }
    body["components_description"] = components
    return json.dumps(body).encode()


def huge_expressions() -> bytes:
    """Return a registration with short expressions that mean large programs."""
    return _with_expressions([f"((a{{100}}){{100}}){{{number}}}" for number in range(1, 1000)])


def most_problems() -> bytes:
    """Return a registration with fifty thousand wrong parameters."""
    body = provider()
    component = {"inputParam": [{}] * 100}
    body["components_description"] = {f"C{number}": component for number in range(500)}
    return json.dumps(body).encode()


DESCRIPTIONS = (
    nested_lists,
    fifty_megabytes,
    most_numbers,
    most_numbers_broken_off,
    exponential_expressions,
    costly_expressions,
    huge_expressions,
    most_problems,
)


def _with_metadata(text: str) -> bytes:
    """Return a registration with a JSON text in its metadata."""
    body = provider()
    body["metadata"] = body["metadata"] | {"much": "@@"}
    return json.dumps(body).replace('"@@"', text).encode()


def _of_size(size: int) -> bytes:
    """Return a registration of a size in bytes, or one less, with as many numbers as fit."""
    count = (size - len(_with_metadata("[1]"))) // 2
    return _with_metadata("[" + "1," * count + "1]")


def _with_expressions(expressions: Sequence[str]) -> bytes:
    """Return a registration with parameters that are checked by these expressions, in turn."""
    body = provider()
    parameters = []
    for number in range(_PARAMETERS):
        expression = expressions[number % len(expressions)]
        parameters.append(_parameter(number, expression, "a" * 60 + "!"))
    component = body["components_description"]["Echo"] | {"inputParam": parameters}
    body["components_description"] = {"Echo": component}
    return json.dumps(body).encode()


def _parameter(
    number: int,
    expression: str,
    default: str,
) -> dict[str, str]:
    """Return a parameter whose values, such as its default, have to match an expression."""
    return {
        "name": f"p{number}",
        "title": "p",
        "type": "string",
        "optional": "true",
        "validator": f"regular:'{expression}'",
        "defaultValue": default,
    }


# ---------------------------------------------------------------- measurement


@part(
    "hostile",
    "Health of a node that reads hostile descriptions, one after the other",
    ("description", "its slowest response", "health p50", "health p99", "slowest"),
)
def hostile(options: argparse.Namespace) -> Rows:
    """Measure the health of a node without and with hostile registrations."""
    with two_nodes(PROCESS_ENGINE) as (node, _):
        times = health_times(node)
        yield ["none", "", *_figures(times)]
        for description in DESCRIPTIONS:
            with registering(node, description()) as durations:
                times = health_times(node)
            name = description.__name__.replace("_", " ")
            yield [name, milliseconds(max(durations)), *_figures(times)]


def _figures(times: list[float]) -> list[str]:
    """Return median, p99 and maximum of sorted times."""
    quantiles = [quantile(times, share) for share in (0.5, 0.99)]
    return [milliseconds(seconds, 1) for seconds in (*quantiles, times[-1])]


def health_times(node: Node) -> list[float]:
    """Return the sorted seconds of the responses of health for a while."""
    times = []
    connection = _connection(node)
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        connection.request("GET", HEALTH)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
        times.append(time.perf_counter() - start)
        time.sleep(_PAUSE)
    connection.close()
    return sorted(times)


@contextmanager
def registering(node: Node, body: bytes) -> Iterator[list[float]]:
    """Register a description again and again; yield the list that gets the seconds of each."""
    durations: list[float] = []
    is_over = threading.Event()

    def register() -> None:
        while not is_over.is_set():
            start = time.perf_counter()
            _register(node, body)
            durations.append(time.perf_counter() - start)

    thread = threading.Thread(target=register)
    thread.start()
    try:
        yield durations
    finally:
        is_over.set()
        thread.join()


def _register(node: Node, body: bytes) -> None:
    """Send a registration, whose response does not matter; it may come before all is sent."""
    connection = _connection(node)
    try:
        connection.request("POST", REGISTER, body, {"content-type": "application/json"})
        connection.getresponse().read()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        connection.close()


def _connection(node: Node) -> http.client.HTTPConnection:
    """Return a new connection to a node's listener for operators."""
    return http.client.HTTPConnection(
        urlsplit(node.operator).netloc,
        timeout=_TIMEOUT,
    )
