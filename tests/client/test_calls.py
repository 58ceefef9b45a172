"""Every call of the client: it exists for both clients, and asks for what the API describes and gives its type."""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from bfia_gateway_client import AsyncClient, Client
from bfia_gateway_client.bridge import call, stream
from bfia_gateway_client.types import Job
from tools.docs import client_types
from tools.docs.endpoints import described

GROUPS = ("jobs", "data", "models", "providers", "routes")
GIVEN: dict[str, Any] = {
    "components": ["acme/Fit"],
    "parties": {"guest": "A", "host": "B"},
    "data": {"guest": "bank#all", "host": "shop#all"},
    "dataset": "bank#all",
    "job": {"flow_id": "f"},
    "registration": {"name": "acme"},
    "version": "1",
    "number": "1",
}
"""what is given for a parameter of that name; else a word"""
ELSEWHERE = {
    "data.upload",
    "data.table",
    "data.preview",
    "jobs.table",
    "jobs.curve",
    "jobs.draft",
    "models.import_",
}
"""calls with files and frames: test_client.py makes them at a node"""
FOLLOWED = {"jobs.watch", "jobs.states", "jobs.logs"}


def calls() -> Iterator[tuple[str, str]]:
    """Yield group and name of every call."""
    client = Client("http://127.0.0.1:9")
    client.close()
    for group in GROUPS:
        for name, found in inspect.getmembers(type(getattr(client, group))):
            if isinstance(found, call | stream):
                yield group, name


def called(method: Callable[..., Any], folder: Path) -> Any:
    """Call it with arguments for all parameters without a default."""
    own = inspect.signature(method).parameters.values()
    given = [
        GIVEN.get(p.name, "word")
        for p in own
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    file = {"file": folder / "file"} if any(p.name == "file" for p in own) else {}
    return method(*given, **file)


class Node:
    """Answers every request with the least that the API's description allows; keeps what it was asked for."""

    def __init__(self) -> None:
        self.api = described()["operator"]
        self.asked: list[tuple[str, str]] = []
        self.answers: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, operation = self._operation(request)
        self.asked.append((request.method, path))
        known = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
        assert set(request.url.params) <= known, (
            f"{path} knows no {set(request.url.params) - known}"
        )
        kinds = operation["responses"]["200"]["content"]
        if "application/schema+json" in kinds:
            return httpx.Response(200, json={"properties": {}})
        if "application/json" not in kinds:
            return httpx.Response(200, content=b"bytes")
        schema = kinds["application/json"]["schema"]
        self.answers.append(str(schema.get("$ref", "")).rpartition("/")[2])
        return httpx.Response(200, json=self._least(schema))

    def _operation(self, request: httpx.Request) -> tuple[str, Mapping[str, Any]]:
        asked = request.url.raw_path.decode().partition("?")[0].split("/")
        for path, methods in self.api["paths"].items():
            parts = path.split("/")
            same = len(parts) == len(asked) and all(
                a == b or "{" in a for a, b in zip(parts, asked, strict=True)
            )
            if same and request.method.lower() in methods:
                return path, methods[request.method.lower()]
        raise AssertionError(f"the API describes no {request.method} {request.url}")

    def _least(self, schema: Mapping[str, Any]) -> Any:
        if "$ref" in schema:
            return self._least(self.api["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return None if {"type": "null"} in schema["anyOf"] else self._least(schema["anyOf"][0])
        match schema.get("type"):
            case "object":
                fields = schema.get("properties", {})
                return {key: self._least(fields[key]) for key in schema.get("required", ())}
            case "array":
                return [self._least(schema["items"])]
            case "string" if schema.get("format") == "date-time":
                return "2026-11-25T08:00:00Z"
            case "string":
                return schema.get("enum", ["word"])[-1]
            case "boolean":
                return False
            case "integer" | "number":
                return 0
        return None


@pytest.fixture
def node() -> Node:
    return Node()


def over(client: Any, node: Node) -> None:
    """Let a client's requests end at a node in this process."""
    kind = type(client._wire._http)
    client._wire._http = kind(**{**client._wire.options, "transport": httpx.MockTransport(node)})


@pytest.mark.parametrize(("group", "name"), sorted(set(calls())))
def test_a_call_is_one_of_both_clients_and_of_the_api(group, name, node, tmp_path):
    if f"{group}.{name}" in ELSEWHERE | FOLLOWED:
        signatures = []
        for kind in (Client, AsyncClient):
            client: Any = kind("http://127.0.0.1:9")
            method = getattr(getattr(client, group), name)
            signatures.append((inspect.signature(method), inspect.getdoc(method)))
            client.close() if kind is Client else asyncio.run(client.close())
        assert signatures[0] == signatures[1]
        assert signatures[0][1]
        return
    with Client("http://127.0.0.1:9") as client:
        over(client, node)
        method = getattr(getattr(client, group), name)
        found = called(method, tmp_path)

    async def later() -> Any:
        async with AsyncClient("http://127.0.0.1:9") as client:
            over(client, node)
            method = getattr(getattr(client, group), name)
            return await called(method, tmp_path)

    half = len(node.asked)
    again = asyncio.run(later())
    assert half
    assert node.asked[:half] == node.asked[half:]
    assert type(again) is type(found)
    assert isinstance(found, str | Path | type(None)) or repr(found) == repr(again)
    if isinstance(found, BaseModel) and name != "show":
        assert type(found).__name__ == client_types.name_of(node.answers[-1])


def test_what_an_older_node_does_not_say_of_a_job_is_empty():
    job = Node()._least({"$ref": "/Job"})
    assert Job.model_validate(job).runs[0].files
    del job["refusals"], job["waiting"], job["runs"][0]["files"]
    found = Job.model_validate(job)
    assert found.refusals == found.runs[0].files == []
    assert found.waiting is None


def test_the_clients_differ_in_nothing_but_waiting():
    blocking, waiting = (
        {
            name
            for name in vars(kind).keys() | vars(kind.__mro__[1]).keys()
            if not name.startswith("_")
        }
        for kind in (Client, AsyncClient)
    )
    assert blocking == waiting == {"close", "request", "session", "url"}
