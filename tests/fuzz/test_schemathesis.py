"""Fuzzes all listeners along their own descriptions: any answer is a decided one, and comes soon."""

import json
import time
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from adapter.bfia.examples import JOB, TASK
from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import LISTENERS, a_node, described, judged
from tests.fuzz.test_openapi import examples, headers_of, place, posts, sent
from tests.inprocess import ask
from tests.plain import NO_TLS
from tests.registry.builders import places, replaced

SOON = 60.0
"""seconds; far more than any answer takes, and far less than one takes that hangs"""
POP = "/v1/interconn/chan/pop"
REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer("application/zip")
def _as_it_is(_context: Any, value: Any) -> bytes:
    """Send a body that is no JSON as the bytes that it is."""
    return value if isinstance(value, bytes) else str(value).encode()


PARTS = {"operator": 6}
"""listener -> into how many tests its many paths are divided"""
MODES = {"fitting": GenerationMode.POSITIVE, "unfit": GenerationMode.NEGATIVE}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node that has taken each example once, so that what follows finds jobs, tasks and messages."""
    with a_node(tmp_path_factory.mktemp("node"), fate={"enabled": True}) as gateway:
        for listener, path, operation in sorted(posts(gateway), key=lambda found: place(found[1])):
            if not path.endswith(("delete", "stop", "stop_all", "stop_task", "release", "pop")):
                for kind, example in examples(operation):
                    answer = sent(gateway, listener, path, operation, kind, example)
                    if answer.headers["content-type"].partition(";")[0] not in _good(operation):
                        judged(answer)
        yield gateway
        assert ask(gateway, "operator", "GET", "/health/ready").json()["ready"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("listener", "part"), [(name, n) for name in LISTENERS for n in range(PARTS.get(name, 1))]
)
def test_whatever_is_sent_is_decided_upon(node: Gateway, listener: str, part: int, mode: str):
    tried = 0
    with requests.Session() as session:
        session.trust_env = False
        operations = schemathesis.openapi.from_dict(described(node, listener)).get_all_operations()
        for found in islice(operations, part, None, PARTS.get(listener, 1)):
            operation = found.ok()
            if mode == "unfit" and _takes_any_text(operation.definition.raw):
                continue

            @settings(REPEATABLE, max_examples=8)
            @given(case=operation.as_strategy(generation_mode=MODES[mode]))
            def send(case: Any) -> None:
                nonlocal tried
                tried += 1
                if case.path == POP:
                    case.headers = {**(case.headers or {}), "x-ptp-timeout": "0.01"}
                if case.path == "/api/v1/events" and (case.query or {}).get("follow") != "0":
                    case.query = {**(case.query or {}), "follow": "0"}  # what is followed has no end
                answer = case.call(base_url=node.addresses()[listener], session=session, timeout=SOON)
                assert answer.elapsed < SOON
                kind = _plain(answer.headers)["content-type"].partition(";")[0]
                if answer.status_code == 200 and kind in _good(case.operation.definition.raw):
                    return
                judged(httpx.Response(answer.status_code, headers=_plain(answer.headers), content=answer.content))

            try:
                send()
            except Unsatisfiable:  # where all that is asked for is text, anything fits
                body = operation.definition.raw.get("requestBody", {"content": {}})
                assert mode == "unfit" and "application/json" not in body["content"]
    assert tried > 20


def _takes_any_text(operation: dict[str, Any]) -> bool:
    """Tell whether nothing can be unfit: looking for it would take seconds."""
    said = {"type", "title", "description", "examples"}
    free = [p["schema"].keys() <= said for p in operation.get("parameters", ())]
    texts = [
        p["schema"].get("type") == "string"
        and (p["in"] == "path" or (p["in"] == "header" and not p.get("required")))
        for p in operation.get("parameters", ())
    ]
    return "requestBody" not in operation and all(free) and all(texts)


def _good(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the content types other than JSON that an operation says it answers with where all is well."""
    told = operation["responses"].get("200", {}).get("content", {})
    return {kind: content for kind, content in told.items() if kind != "application/json"}


def _plain(headers: Any) -> dict[str, str]:
    return {"content-type": headers.get("content-type", [""])[0]}


WILD = st.one_of(
    st.sampled_from(
        [None, True, 0, -1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, "", " ", ".", "..", "/", "#", "a#b"]
    ),
    st.sampled_from(
        ["\0", "a\nb", "\u202e", "\ufeff", "é", "x" * 300, "9" * 5000, "-1", "NaN", JOB, TASK, "guest"]
    ),
    st.sampled_from([[], {}, [[]], [None], {"": None}, {"common": None}, {"0|1|x": {}}, [{}] * 50, {"a": [{}]}]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=8,
    ),
)


@pytest.mark.parametrize("listener", LISTENERS)
def test_an_example_with_anything_anywhere_in_it_is_decided_upon(node: Gateway, listener: str):
    """The same as above, but nearer to what is right: most of the body fits, so that it gets further."""
    with httpx.Client(timeout=SOON, trust_env=False, verify=NO_TLS) as client:
        for where, path, operation in list(posts(node)):
            if where != listener or path == POP:
                continue
            headers = headers_of(operation)
            for kind, example in examples(operation):
                if kind == "application/json":
                    _change(client, node.addresses()[listener] + path, headers, example, _good(operation))


def _change(client: httpx.Client, url: str, headers: dict[str, str], example: Any, good: Container[str]) -> None:
    every = list(places(example))

    @settings(REPEATABLE, max_examples=min(4 * len(every), 60))
    @given(st.lists(st.tuples(st.sampled_from(every), WILD), min_size=1, max_size=2))
    def send(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        body = example
        for path, new in changes:
            try:
                body = replaced(body, path, new)
            except (KeyError, IndexError, TypeError):
                continue  # the first change has taken this place away
        begun = time.monotonic()
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        answer = client.post(url, content=content, headers={**headers, "content-type": "application/json"})
        assert time.monotonic() - begun < SOON
        if answer.status_code != 200 or answer.headers["content-type"].partition(";")[0] not in good:
            judged(answer)

    send()
