"""Each call of the client exists for both clients, sends a described request and returns its
type.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from bfia_gateway_client import AsyncClient, Client, Invalid
from bfia_gateway_client.bridge import call, stream
from bfia_gateway_client.types import Job
from tests.adapter.bfia.scripted import says, scripted, text
from tests.client.stand_in import serving
from tools.docs import client_types
from tools.docs.endpoints import described

GROUPS = ("jobs", "data", "models", "providers", "routes")

# Arguments by the name of the parameter; "word" for all further parameters.
ARGUMENTS: dict[str, Any] = {
    "components": ["acme/Fit"],
    "parties": {
        "guest": "A",
        "host": "B",
    },
    "data": {
        "guest": "bank#all",
        "host": "shop#all",
    },
    "dataset": "bank#all",
    "job": {"flow_id": "f"},
    "registration": {"name": "acme"},
    "version": "1",
    "number": "1",
}

# Calls with files and frames, which test_client.py makes at a node, and calls that follow a stream.
ONLY_COMPARED = {
    "data.upload",
    "data.table",
    "data.preview",
    "jobs.table",
    "jobs.curve",
    "jobs.draft",
    "models.import_",
    "jobs.watch",
    "jobs.states",
    "jobs.logs",
}


def all_calls() -> list[tuple[str, str]]:
    """Return group and name of every call."""
    client = Client("http://127.0.0.1:9")
    client.close()
    calls = []
    for group in GROUPS:
        for name, member in inspect.getmembers(type(getattr(client, group))):
            if isinstance(member, call | stream):
                calls.append((group, name))
    return calls


REQUESTS = [names for names in all_calls() if ".".join(names) not in ONLY_COMPARED]
COMPARED = [names for names in all_calls() if ".".join(names) in ONLY_COMPARED]


def invoke(
    method: Callable[..., Any],
    folder: Path,
) -> Any:
    """Call a method with arguments for all parameters without a default."""
    arguments = []
    files = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name == "file":
            files["file"] = folder / "file"
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            arguments.append(ARGUMENTS.get(parameter.name, "word"))
    return method(*arguments, **files)


class Node:
    """Responds to every request with the smallest body that the API's description allows."""

    def __init__(self) -> None:
        self.api = described()["operator"]
        # method and path of each request
        self.requests: list[tuple[str, str]] = []
        # the type of each JSON response
        self.types: list[str] = []

    def __call__(
        self,
        request: httpx.Request,
    ) -> httpx.Response:
        path, operation = self._operation(request)
        self.requests.append((request.method, path))
        parameters = operation.get("parameters", ())
        query = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
        undescribed = set(request.url.params) - query
        assert not undescribed, f"{path} has no parameter {undescribed}"
        content = operation["responses"]["200"]["content"]
        if "application/schema+json" in content:
            return httpx.Response(
                200,
                json={"properties": {}},
            )
        if "application/json" not in content:
            return httpx.Response(
                200,
                content=b"bytes",
            )
        schema = content["application/json"]["schema"]
        self.types.append(str(schema.get("$ref", "")).rpartition("/")[2])
        return httpx.Response(
            200,
            json=self.smallest(schema),
        )

    def _operation(
        self,
        request: httpx.Request,
    ) -> tuple[str, Mapping[str, Any]]:
        """Return the path and operation of a request; fail if the API describes none."""
        requested_path, _, _ = request.url.raw_path.decode().partition("?")
        for path, methods in self.api["paths"].items():
            is_method = request.method.lower() in methods
            if is_method and fits(path, requested_path):
                return path, methods[request.method.lower()]
        raise AssertionError(f"the API describes no {request.method} {request.url}")

    def smallest(
        self,
        schema: Mapping[str, Any],
    ) -> Any:
        """Return the smallest value of a schema."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.smallest(self.api["components"]["schemas"][name])
        if "anyOf" in schema:
            if {"type": "null"} in schema["anyOf"]:
                return None
            return self.smallest(schema["anyOf"][0])
        match schema.get("type"):
            case "object":
                fields = schema.get("properties", {})
                return {key: self.smallest(fields[key]) for key in schema.get("required", ())}
            case "array":
                return [self.smallest(schema["items"])]
            case "string" if schema.get("format") == "date-time":
                return "2026-11-25T08:00:00Z"
            case "string":
                return schema.get("enum", ["word"])[-1]
            case "boolean":
                return False
            case "integer" | "number":
                return 0
        return None


def fits(described_path: str, path: str) -> bool:
    """True if a path is the described one with arguments."""
    described_parts = described_path.split("/")
    parts = path.split("/")
    if len(described_parts) != len(parts):
        return False
    for described_part, part in zip(described_parts, parts, strict=True):
        if "{" not in described_part and described_part != part:
            return False
    return True


@pytest.mark.parametrize(("group", "name"), COMPARED)
def test_a_call_has_the_same_signature_and_text_for_both_clients(group, name):
    client = Client("http://127.0.0.1:9")
    client.close()
    async_client = AsyncClient("http://127.0.0.1:9")
    asyncio.run(async_client.close())
    method = getattr(getattr(client, group), name)
    async_method = getattr(getattr(async_client, group), name)
    assert inspect.signature(method) == inspect.signature(async_method)
    assert inspect.getdoc(method)
    assert inspect.getdoc(method) == inspect.getdoc(async_method)


@pytest.mark.parametrize(("group", "name"), REQUESTS)
def test_a_call_of_both_clients_sends_a_described_request(group, name, tmp_path):
    async def invoke_async(url: str) -> Any:
        async with AsyncClient(url) as async_client:
            return await invoke(
                getattr(getattr(async_client, group), name),
                tmp_path,
            )

    node = Node()
    with serving(node) as url:
        with Client(url) as client:
            result = invoke(
                getattr(getattr(client, group), name),
                tmp_path,
            )
        requests = node.requests.copy()
        node.requests.clear()
        async_result = asyncio.run(invoke_async(url))

    assert requests
    assert node.requests == requests
    assert type(async_result) is type(result)
    if not isinstance(result, str | Path | None):
        assert repr(async_result) == repr(result)
    if isinstance(result, BaseModel) and name != "show":
        assert type(result).__name__ == client_types.name_of(node.types[-1])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_dataset_that_is_no_table_is_named_as_the_dataset(library):
    description = {
        "columns": [],
        "match_id_name": "",
        "sid": "",
    }
    with scripted() as (node, url), Client(url) as client:
        node.will(
            says(description),
            text(b""),
        )

        with pytest.raises(Invalid) as refusal:
            client.data.table(
                "bank#all",
                to=library,
                progress=False,
            )

    (problem,) = refusal.value.problems
    assert problem.path == "dataset"
    assert problem.rule.startswith("is not a table")


def test_fields_that_an_older_node_lacks_are_empty():
    body = Node().smallest({"$ref": "/Job"})
    assert Job.model_validate(body).runs[0].files
    del body["refusals"]
    del body["waiting"]
    del body["runs"][0]["files"]
    job = Job.model_validate(body)
    assert job.refusals == []
    assert job.runs[0].files == []
    assert job.waiting is None


def test_both_clients_have_the_same_public_names():
    names = {"close", "request", "session", "url"}
    assert public_names(Client) == names
    assert public_names(AsyncClient) == names


def public_names(client: type) -> set[str]:
    """Return the public names of a client's class and its base."""
    names = vars(client).keys() | vars(client.__mro__[1]).keys()
    return {name for name in names if not name.startswith("_")}
