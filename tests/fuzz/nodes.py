"""A node for the tests of this folder, what its listeners say of themselves, and what every answer must be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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

structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])


@contextmanager
def a_node(home: Path, *command: str, **over: Any) -> Iterator[Gateway]:
    """Serve a node that can run the examples' image, read the examples' data and knows the examples' peer."""
    images = {"example:1.0.0": {"command": list(command or ("/bin/true",))}}
    engine = {"kind": "process", "process": {"images": images}}
    with running(home / "neighbour", NEIGHBOUR, engine=engine) as neighbour:
        said = ask(neighbour, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
        assert said.json()["code"] == 0
        (home / "routes.yml").write_text(yaml.safe_dump({NEIGHBOUR: {"url": neighbour.addresses()["peer"]}}))
        with running(home, engine=engine, data={"roots": [str(ROOT)]}, **over) as gateway:
            routes = Path(str(neighbour.settings.route_table.file))
            routes.write_text(yaml.safe_dump({ME: {"url": gateway.addresses()["peer"]}}))
            neighbour.routes.reload()
            yield gateway


def described(gateway: Gateway, listener: str) -> dict[str, Any]:
    """Return the listener's OpenAPI document."""
    answer = httpx.get(
        gateway.addresses()[listener] + "/openapi.json", timeout=120, trust_env=False, verify=NO_TLS
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
