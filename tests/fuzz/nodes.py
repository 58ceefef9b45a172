"""The node of the tests in this folder, its OpenAPI documents, and rules for all responses."""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import structlog

from adapter.bfia.examples import A_PROVIDER
from tests.e2e.nodes import ROOT
from tests.inprocess import Node
from tests.plain import NO_TLS
from tests.world import World

LISTENERS = ("operator", "peer", "container")
METHODS = ("get", "put", "post", "patch", "delete")
PARTNER = "JG0100001100000011"  # the partner that the examples name
JSON = "application/json"

# Plain lines: these tests log thousands of refusals.
structlog.configure(
    processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
)


def start_node(
    world: World,
    *command: str,
    **settings: Any,
) -> Node:
    """Start a node that has the examples' provider, data and partner.

    ``command`` runs in place of the examples' image, by default one that ends immediately.
    """
    commands = {"example:1.0.0": command or ("/bin/true",)}
    partner = world.node(
        node_id=PARTNER,
        commands=commands,
        providers=[A_PROVIDER],
    )
    node = world.node(
        # From the start, so that version 1 of the table, to which an example returns, has it.
        routes={PARTNER: {"url": partner.addresses()["peer"]}},
        commands=commands,
        settings={"data": {"roots": [str(ROOT)]}, **settings},
    )
    world.connect(node, partner)
    return node


# ---------------------------------------------------------------- responses


def check_response(response: Any) -> dict[str, Any]:
    """Return a response's body.

    Fails unless it is JSON, in one of the three envelopes, and reveals no internal error.
    """
    text = response.text
    shown_text = text[:500]
    assert response.status_code < 500, f"{response.status_code}: {shown_text}"
    content_type = response.headers["content-type"]
    assert JSON in content_type, f"{content_type}: {shown_text}"
    body = json.loads(
        text,
        parse_constant=_refuse_constant,
    )
    assert isinstance(body, dict), shown_text
    text.encode()  # fails on surrogates
    assert not re.search(r'Traceback|File "|\.py\b|site-packages', text), shown_text
    if "code" in body:
        _check_envelope(body, shown_text)
    return body


def _refuse_constant(word: str) -> Any:
    """Fail for NaN and the infinities, which no other JSON reader accepts."""
    raise AssertionError(f"a response holds {word}")


def _check_envelope(
    body: dict[str, Any],
    text: str,
) -> None:
    """Fail unless an envelope has a message, no code of internal errors and a reason if refused."""
    code = body["code"]
    message = body.get("msg", body.get("message"))
    assert isinstance(message, str), text
    assert code not in (500, "500", "E0000000500"), text
    for key in ("msg", "message"):
        assert "INTERNAL" not in str(body.get(key, "")), text
    data = body.get("data")
    if isinstance(data, dict):
        assert data.get("reason") != "INTERNAL", text
    is_platform_refusal = isinstance(code, int) and code not in (0, 200)
    if is_platform_refusal:
        assert data is not None, text
        assert data["reason"], text


# ---------------------------------------------------------------- OpenAPI documents


def openapi_document(
    node: Node,
    listener: str,
) -> dict[str, Any]:
    """Return a listener's OpenAPI document."""
    response = node.get(
        "/openapi.json",
        listener=listener,
    )
    assert response.status_code == 200
    return dict(response.json())


def operations(
    node: Node,
    listener: str,
    *methods: str,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of a listener's operations.

    ``methods`` limit them; by default all are yielded.
    """
    for path, by_method in openapi_document(node, listener)["paths"].items():
        for method in by_method.keys() & set(methods or METHODS):
            yield method, path, by_method[method]


# Ends of paths in the order in which a new node can process the examples; other paths come last.
ORDER = (
    "/v2/provider/register",
    "/component/register",
    "/v2/component/upload",
    "/platform/schedule/job/create_all",
    "/interconn/schedule/job/create_all",
    "/job/create",
    "/job/start",
    "/task/start",
    "/job/status_all",
    "/task/poll",
    "/platform/schedule/task/callback",
    "/interconn/schedule/task/callback",
    "/chan/push",
    "/chan/invoke",
    "/chan/part",
    "/chan/pop",
    "/chan/peek",
    "/chan/release",
    "/job/parameters",
    "/job/parameters/offer",
    "/job/suspend",
    "/job/resume",
    "/job/audit_confirm",
    "/job/audit/apply",
    "/job/audit/confirm",
    "/job/audit/terminate",
    "/job/stop_task",
    "/task/stop",
    "/job/stop",
    "/job/stop_all",
    "/schedule/job/rerun",
    "/providers/{provider_name}/retire",
    "/providers/{provider_name}/unretire",
    "/providers/{provider_name}/approve",
    "/v2/provider/delete",
)


def post_operations(node: Node) -> list[tuple[str, str, dict[str, Any]]]:
    """Return listener, path and description of every POST, in the order of `ORDER`."""
    posts = []
    for listener in LISTENERS:
        for _, path, operation in operations(node, listener, "post"):
            posts.append((listener, path, operation))
    return sorted(posts, key=_position)


def _position(post: tuple[str, str, dict[str, Any]]) -> int:
    """Return the position of an operation's path in `ORDER`."""
    _, path, _ = post
    for position, end in enumerate(ORDER):
        if path.endswith(end):
            return position
    return len(ORDER)


def body_examples(operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield content type and example of everything that a request body is described by."""
    for content_type, content in operation["requestBody"]["content"].items():
        schema = content["schema"]
        examples = [example["value"] for example in content.get("examples", {}).values()]
        for described in (content, schema):
            if "example" in described:
                examples.append(described["example"])
        examples += schema.get("examples", [])
        for example in examples:
            yield content_type, example


def parameter_examples(
    operation: dict[str, Any],
    place: str,
) -> dict[str, str]:
    """Return the examples of an operation's parameters, by name.

    ``place``: path, query or header.
    """
    examples = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] != place:
            continue
        if "example" in parameter:
            examples[parameter["name"]] = str(parameter["example"])
        elif parameter["schema"].get("examples"):
            examples[parameter["name"]] = str(parameter["schema"]["examples"][0])
    return examples


def send_example(
    node: Node,
    listener: str,
    method: str,
    path: str,
    operation: dict[str, Any],
    example: tuple[str, Any],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> httpx.Response:
    """Send an example of a request body with the examples of the operation's parameters.

    ``headers`` are added to the examples.
    """
    for name, value in parameter_examples(operation, "path").items():
        path = path.replace(f"{{{name}}}", value)
    return httpx.request(
        method,
        node.addresses()[listener] + path,
        headers={**parameter_examples(operation, "header"), **headers},
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
        **_body_arguments(*example),
    )


def _body_arguments(
    content_type: str,
    body: Any,
) -> dict[str, Any]:
    """Return the arguments with which httpx sends a body as a content type."""
    if content_type != "multipart/form-data":
        return {"json": body}
    # A name of its own: the example uploads the same table as the example of the other upload.
    form = {**body, "name": "another"}
    file = form.pop("file")
    return {
        "files": {"file": ("table.csv", file)},
        "data": {name: str(value) for name, value in form.items()},
    }
