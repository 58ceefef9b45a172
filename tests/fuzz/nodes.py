"""A node for the tests of this folder, what its listeners say of themselves, and what every answer must be."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import structlog
import yaml

from adapter.bfia.examples import A_PROVIDER
from gateway.bootstrap.node import Gateway
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, ask, running
from tests.plain import NO_TLS

LISTENERS = ("operator", "peer", "container")
NEIGHBOUR = "JG0100001100000011"
"""the peer that the examples name"""

structlog.configure(
    processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()]
)


@contextmanager
def a_node(
    home: Path,
    *command: str,
    **over: Any,
) -> Iterator[Gateway]:
    """Serve a node that can run the examples' image, read the examples' data and knows the examples' peer."""
    images = {"example:1.0.0": {"command": list(command or ("/bin/true",))}}
    engine = {"kind": "process", "process": {"images": images}}
    with running(home / "neighbour", NEIGHBOUR, engine=engine) as neighbour:
        said = ask(neighbour, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
        assert said.json()["code"] == 0
        (home / "routes.yml").write_text(
            yaml.safe_dump({NEIGHBOUR: {"url": neighbour.addresses()["peer"]}})
        )
        with running(
            home,
            engine=engine,
            data={"roots": [str(ROOT)]},
            **over,
        ) as gateway:
            routes = Path(str(neighbour.settings.route_table.file))
            routes.write_text(yaml.safe_dump({ME: {"url": gateway.addresses()["peer"]}}))
            neighbour.routes.reload()
            yield gateway


def described(gateway: Gateway, listener: str) -> dict[str, Any]:
    """Return the listener's OpenAPI document."""
    answer = httpx.get(
        gateway.addresses()[listener] + "/openapi.json",
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    )
    assert answer.status_code == 200
    return dict(answer.json())


def judged(answer: Any) -> dict[str, Any]:
    """Return an answer's body. Fails unless it is a decided one, in JSON, in one of the three envelopes."""
    text = answer.text
    assert answer.status_code < 500, f"{answer.status_code}: {text[:500]}"
    kind = answer.headers["content-type"]
    assert "application/json" in kind, f"{kind}: {text[:500]}"
    body = json.loads(text, parse_constant=_no_number)
    assert isinstance(body, dict), text[:500]
    text.encode()
    assert not re.search(r'Traceback|File "|\.py\b|site-packages', text), text[:500]
    if "code" in body:
        assert isinstance(body.get("msg", body.get("message")), str), text[:500]
        assert body["code"] not in (500, "500", "E0000000500"), text[:500]
        assert "INTERNAL" not in str(body.get("msg", "")) + str(body.get("message", "")), text[:500]
        data = body.get("data")
        assert not (isinstance(data, dict) and data.get("reason") == "INTERNAL"), text[:500]
        if isinstance(body["code"], int) and body["code"] not in (0, 200):
            assert data["reason"], text[:500]
    return body


def _no_number(word: str) -> Any:
    raise AssertionError(f"an answer holds {word}")


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
"""in which a fresh node takes the examples; a path that is not named comes last"""


def operations(
    gateway: Gateway,
    listener: str,
    *methods: str,
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of a listener's operations, all or those of some methods."""
    for path, declared in described(gateway, listener)["paths"].items():
        for method in declared.keys() & set(methods or ("get", "put", "post", "patch", "delete")):
            yield method, path, declared[method]


def posts(gateway: Gateway) -> list[tuple[str, str, dict[str, Any]]]:
    """Return listener, path and description of every POST, in the order in which a fresh node takes them."""
    found = [
        (listener, p, told)
        for listener in LISTENERS
        for _, p, told in operations(gateway, listener, "post")
    ]
    return sorted(
        found,
        key=lambda one: next((i for i, e in enumerate(ORDER) if one[1].endswith(e)), len(ORDER)),
    )


def examples(operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (content type, example) of everything that a request body is shown with."""
    for kind, content in operation["requestBody"]["content"].items():
        schema = content["schema"]
        found = [e["value"] for e in content.get("examples", {}).values()]
        found += [part["example"] for part in (content, schema) if "example" in part]
        yield from ((kind, value) for value in found + schema.get("examples", []))


def shown(operation: dict[str, Any], place: str) -> dict[str, str]:
    """Return the examples of an operation's parameters in the path, the query or the headers."""
    found = {}
    for one in operation.get("parameters", ()):
        of = [one["example"]] if "example" in one else one["schema"].get("examples")
        if one["in"] == place and of:
            found[one["name"]] = str(of[0])
    return found


def sent(
    gateway: Gateway,
    listener: str,
    method: str,
    path: str,
    operation: dict[str, Any],
    example: tuple[str, Any],
    more: Mapping[str, str] = MappingProxyType({}),
) -> httpx.Response:
    """Send an example with what the description shows beside it, and the headers that only a run has."""
    kind, body = example
    request: dict[str, Any] = {"json": body}
    if kind == "multipart/form-data":
        form = dict(body) | {"name": "another"}  # the same table as in the other way of uploading
        request = {
            "files": {"file": ("table.csv", form.pop("file"))},
            "data": {k: str(v) for k, v in form.items()},
        }
    for name, value in shown(operation, "path").items():
        path = path.replace(f"{{{name}}}", value)
    headers = shown(operation, "header") | more
    url = gateway.addresses()[listener] + path
    return httpx.request(
        method,
        url,
        headers=headers,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
        **request,
    )
