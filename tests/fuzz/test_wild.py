"""Requests with one wrong value in any place: each is accepted or refused, and soon."""

import json
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adapter.bfia.examples import JOB, TASK
from tests.fuzz.nodes import (
    JSON,
    LISTENERS,
    body_examples,
    check_response,
    operations,
    parameter_examples,
    post_operations,
    send_example,
    start_node,
)
from tests.plain import NO_TLS
from tests.registry.builders import json_paths, with_value_at

TIMEOUT = 60.0  # seconds; far more than any response takes, unless the node hangs
MAX_CHANGES = 30  # of one example of a body
TEXTS_PER_PARAMETER = 3

TEXTS = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "#",
    "a#b",
    "a b",
    "\0",
    "\u202e",
    "é",
    "x" * 300,
    "9" * 5000,
    "9" * 19,
    "-1",
    "0",
    "1.5",
    "NaN",
    "null",
    "{}",
    "[]",
    "0|1",
    JOB,
    TASK,
    "guest",
    "guest.0",
    "guest.x",
    "2026-11-01",
]

VALUES = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    "\0",
    "a\nb",
    "\ufeff",
    "\ud800",
    *TEXTS,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"common": None},
    {"0|1|x": {}},
    [{}] * 50,
    {"a": [{}]},
    [[[{"a": 1}]]],
]

# Ends of paths whose examples would remove what the examples before them stored.
REMOVING = ("delete", "stop", "stop_all", "stop_task", "release", "pop")


def check_decided(
    response: httpx.Response,
    operation: dict[str, Any],
) -> None:
    """Fail unless a response is a decided one, or a success in one of the other content types."""
    content_type = response.headers["content-type"].partition(";")[0]
    success = operation["responses"].get("200", {})
    is_success = response.status_code in (200, 206)
    is_json = content_type == JSON
    if not is_success or is_json or content_type not in success.get("content", {}):
        check_response(response)


@pytest.fixture(scope="module")
def node(shared_world):
    """A node that has processed each example once, and so has jobs, tasks and messages."""
    node = start_node(
        shared_world,
        fate={"enabled": True},
    )
    for listener, path, operation in post_operations(node):
        if path.endswith(REMOVING):
            continue
        for example in body_examples(operation):
            response = send_example(
                node,
                listener,
                "POST",
                path,
                operation,
                example,
            )
            check_decided(response, operation)
    yield node
    assert node.get("/health/ready").json()["ready"]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(
        timeout=TIMEOUT,
        trust_env=False,
        verify=NO_TLS,
    ) as client:
        yield client


@pytest.mark.parametrize("listener", LISTENERS)
def test_anything_in_a_parameter_is_decided_upon(node, client, listener):
    texts = cycle(TEXTS)
    address = node.addresses()[listener]
    count = 0
    for method, path, operation in operations(node, listener):
        for parameter in operation.get("parameters", ()):
            for text in islice(texts, TEXTS_PER_PARAMETER):
                arguments = request_arguments(path, operation, parameter, text)
                response = client.request(
                    method.upper(), address + arguments.pop("path"), **arguments
                )
                check_decided(response, operation)
                count += 1
    assert count > 20


def request_arguments(
    path: str,
    operation: dict[str, Any],
    parameter: Mapping[str, Any],
    text: str,
) -> dict[str, Any]:
    """Return the path and httpx's arguments of an example with a text as one parameter."""
    values = {place: parameter_examples(operation, place) for place in ("path", "query", "header")}
    if path.endswith("/chan/pop"):
        values["header"]["x-ptp-timeout"] = "0.01"  # seconds; there is no message to pop
    if path == "/api/v1/events":
        values["query"]["follow"] = "0"  # a followed stream has no end
    if parameter["in"] in values:
        values[parameter["in"]][parameter["name"]] = text
    for name, value in values["path"].items():
        path = path.replace(
            f"{{{name}}}",
            quote(value, safe="/."),
        )
    headers = {}
    for name, value in values["header"].items():
        headers[name] = value.strip("\0 ").encode()
    return {
        "path": path,
        "params": values["query"],
        "headers": headers,
        "json": json_example(operation),
    }


def json_example(operation: dict[str, Any]) -> Any:
    """Return the first example of an operation's body; None if there is none or it is not JSON."""
    if "requestBody" not in operation:
        return None
    content_type, example = next(
        body_examples(operation),
        ("", None),
    )
    return example if content_type == JSON else None


@pytest.mark.parametrize("listener", LISTENERS)
def test_anything_in_a_body_is_decided_upon(node, client, listener):
    values = cycle(VALUES)
    for post_listener, path, operation in post_operations(node):
        if post_listener != listener or path.endswith("/chan/pop"):
            continue
        headers = parameter_examples(operation, "header") | {"content-type": JSON}
        url = node.addresses()[listener] + path
        for content_type, example in body_examples(operation):
            if content_type != JSON:
                continue
            for body in changed_bodies(example, values):
                check_decided(
                    client.post(
                        url,
                        content=body,
                        headers=headers,
                    ),
                    operation,
                )


def changed_bodies(
    example: Any,
    values: Iterator[Any],
) -> Iterator[bytes]:
    """Yield an example with the next values, each in one of its places, in turn."""
    places = list(json_paths(example))
    count = min(3 * len(places), MAX_CHANGES)
    for place in islice(cycle(places), count):
        content = json.dumps(
            with_value_at(example, place, next(values)),
            ensure_ascii=False,
        )
        yield content.encode("utf-8", "surrogatepass")
