"""Requests that are nearly right, with anything in one place: each is decided upon, and soon."""

import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adapter.bfia.examples import JOB, TASK
from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import LISTENERS, a_node, examples, judged, operations, posts, sent, shown
from tests.inprocess import ask
from tests.plain import NO_TLS
from tests.registry.builders import json_paths, with_value_at

SOON = 60.0
"""seconds; far more than any answer takes, and far less than one takes that hangs"""
MOST = 30
"""changes of one example"""
TEXTS = [
    *(
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
    ),
    *(
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
    ),
]
VALUES = [
    *(
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
    ),
    *(
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
    ),
]


def plain(operation: dict[str, Any]) -> set[str]:
    """Return the content types other than JSON that an operation answers with where all is well."""
    return set(operation["responses"].get("200", {}).get("content", {})) - {"application/json"}


def decided(answer: httpx.Response, operation: dict[str, Any]) -> None:
    kind = answer.headers["content-type"].partition(";")[0]
    if answer.status_code not in (200, 206) or kind not in plain(operation):
        judged(answer)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node that has taken each example once, so that what follows finds jobs, tasks and messages."""
    with a_node(tmp_path_factory.mktemp("node"), fate={"enabled": True}) as gateway:
        for listener, path, operation in posts(gateway):
            if not path.endswith(("delete", "stop", "stop_all", "stop_task", "release", "pop")):
                for example in examples(operation):
                    decided(sent(gateway, listener, "POST", path, operation, example), operation)
        yield gateway
        assert ask(gateway, "operator", "GET", "/health/ready").json()["ready"]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(
        timeout=SOON,
        trust_env=False,
        verify=NO_TLS,
    ) as found:
        yield found


@pytest.mark.parametrize("listener", LISTENERS)
def test_anything_in_a_parameter_is_decided_upon(node, client, listener):
    texts, tried = cycle(TEXTS), 0
    for method, path, operation in operations(node, listener):
        body = next(examples(operation), ("", None)) if "requestBody" in operation else ("", None)
        for one in operation.get("parameters", ()):
            for text in islice(texts, 3):
                given = {place: shown(operation, place) for place in ("path", "query", "header")}
                if path.endswith("/chan/pop"):
                    given["header"]["x-ptp-timeout"] = "0.01"
                if path == "/api/v1/events":
                    given["query"]["follow"] = "0"  # what is followed has no end
                given.get(one["in"], {})[one["name"]] = text
                at = path
                for name, value in given["path"].items():
                    at = at.replace(f"{{{name}}}", quote(value, safe="/."))
                headers = {k: v.strip("\0 ").encode() for k, v in given["header"].items()}
                json_body = body[1] if body[0] == "application/json" else None
                url = node.addresses()[listener] + at
                request = client.build_request(
                    method.upper(),
                    url,
                    params=given["query"],
                    headers=headers,
                    json=json_body,
                )
                decided(client.send(request), operation)
                tried += 1
    assert tried > 20


@pytest.mark.parametrize("listener", LISTENERS)
def test_anything_in_a_body_is_decided_upon(node, client, listener):
    values = cycle(VALUES)
    for where, path, operation in posts(node):
        if where != listener or path.endswith("/chan/pop"):
            continue
        headers = shown(operation, "header") | {"content-type": "application/json"}
        for kind, example in examples(operation):
            every = list(json_paths(example)) if kind == "application/json" else []
            for at, value in islice(
                zip(cycle(every), values, strict=False), min(3 * len(every), MOST)
            ):
                content = json.dumps(with_value_at(example, at, value), ensure_ascii=False)
                body = content.encode("utf-8", "surrogatepass")
                decided(
                    client.post(node.addresses()[listener] + path, content=body, headers=headers),
                    operation,
                )
