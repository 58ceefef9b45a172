"""Requests meant to hurt: each is refused or taken in a moment, and meanwhile the node answers everybody else."""

import copy
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from structlog.testing import capture_logs

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import NEIGHBOUR, a_node, judged
from tests.inprocess import ME, containers
from tests.plain import NO_TLS

pytestmark = pytest.mark.xdist_group(
    "hostile"
)  # one node and one pulse for all of them, the last test last

PLATFORM = "/v1/platform/schedule"
CONTROL = "/v1/interconn/schedule"
CHANNEL = "/v1/interconn/chan"
SUBMIT = f"{PLATFORM}/job/create_all"
REGISTRATION = "/v2/provider/register"
SOON = 60.0
"""seconds; an answer that takes longer counts as none"""
LONGEST_WORK = 0.5
"""seconds of this process's own work in which health answers 99 times of 100: what others take does not count"""
LONGEST_WAIT = 10.0
"""seconds in which it answers 99 times of 100 by the clock: more than a busy machine takes, less than a hang"""


class Target:
    """The node under attack."""

    def __init__(self, node: Gateway) -> None:
        self.node = node
        self.client = httpx.Client(
            timeout=SOON,
            trust_env=False,
            verify=NO_TLS,
        )
        own = containers(node, "hostile", {"guest": (ME,)})["guest.0"]
        self.as_container = own | {"x-ptp-target-node-id": ME}

    def post(
        self,
        listener: str,
        path: str,
        body: Any,
        **headers: str,
    ) -> dict[str, Any]:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        headers = {"content-type": "application/json", "x-source-node-id": NEIGHBOUR} | headers
        url = self.node.addresses()[listener] + path
        return judged(self.client.post(url, content=content, headers=headers))

    def get(self, path: str, **params: str) -> dict[str, Any]:
        return judged(self.client.get(self.node.addresses()["operator"] + path, params=params))

    def submit(self, body: Any) -> dict[str, Any]:
        return self.post("operator", SUBMIT, body)

    def heads(self, *more: str) -> list[tuple[str, str]]:
        """Return listener and begin of a request with a body, of its main paths and of ``more`` for operators."""
        said = self.as_container | {
            "x-source-node-id": NEIGHBOUR,
            "content-type": "application/json",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        paths = {
            "operator": [SUBMIT, REGISTRATION, *more],
            "peer": [f"{CONTROL}/job/create", f"{CHANNEL}/invoke"],
            "container": [f"{CHANNEL}/push", f"{PLATFORM}/task/callback"],
        }
        every = ((listener, path) for listener, found in paths.items() for path in found)
        return [(on, f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}") for on, path in every]

    def raw(self, listener: str, data: bytes) -> socket.socket:
        """Send bytes on a connection of its own."""
        host, _, port = self.node.addresses()[listener].removeprefix("http://").rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=SOON)
        sock.sendall(data)
        return sock


class Beat(NamedTuple):
    """What one answer of health took, in seconds: by the clock, and of this process's work."""

    waited: float
    worked: float


@pytest.fixture(scope="module")
def pulse() -> list[Beat]:
    """The answers of health, from the first hostile request to the last."""
    return []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, pulse: list[Beat]) -> Iterator[Target]:
    with a_node(tmp_path_factory.mktemp("node"), fate={"enabled": True}) as node:
        found = Target(node)
        assert found.post("operator", REGISTRATION, A_PROVIDER)["code"] == 0
        with beating(node, pulse):
            yield found
        found.client.close()


@contextmanager
def beating(node: Gateway, beats: list[Beat]) -> Iterator[None]:
    """Ask for the node's health all the while."""
    over = threading.Event()

    def beat() -> None:
        with httpx.Client(
            timeout=SOON,
            trust_env=False,
            verify=NO_TLS,
        ) as client:
            while not over.wait(0.01):
                begun, before = time.monotonic(), time.process_time()
                alive = client.get(node.addresses()["operator"] + "/health/live").status_code == 200
                waited, worked = time.monotonic() - begun, time.process_time() - before
                beats.append(Beat(waited, worked) if alive else Beat(SOON, SOON))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def a_job(**more: Any) -> dict[str, Any]:
    return copy.deepcopy(A_JOB) | more


def a_provider(**more: Any) -> dict[str, Any]:
    return copy.deepcopy(A_PROVIDER) | more


def with_text(body: dict[str, Any], text: str) -> bytes:
    """Return a body with this JSON text in the place of the value ``@@``."""
    return json.dumps(body).encode().replace(b'"@@"', text.encode("utf-8", "surrogatepass"))


def with_parameter(text: str) -> bytes:
    body = a_job()
    body["config"]["task_params"] = {"common": {"echo_1": {"wild": "@@"}}}
    return with_text(body, text)


def with_roles(**roles: Any) -> dict[str, Any]:
    body = a_job()
    body["config"]["role"] |= roles
    return body


def with_components(components: list[Any]) -> dict[str, Any]:
    body = a_job()
    body["dag"]["components"] = components
    return body


def component(number: int, **more: Any) -> dict[str, Any]:
    return {
        **a_job()["dag"]["components"][0],
        "name": f"echo_{number}",
        **more,
    }


def chain(length: int, **more: Any) -> list[dict[str, Any]]:
    """Return components of which each waits for the one before."""
    first = component(0, **more)
    wants = ([{"type": "dataset", "key": f"echo_{i}.data0"}] for i in range(length - 1))
    return [first, *(component(i, input=want, **more) for i, want in enumerate(wants, 1))]


MUCH = {"empty lists": "[]," * (3 << 20) + "1", "escapes": '"' + "\\u00e9" * (5 << 20) + '"'}
MUCH["few enough lists"] = "[]," * 33_000 + "1"


@pytest.mark.parametrize("content", MUCH.values(), ids=MUCH)
def test_as_much_as_the_limit_of_bodies_takes(target, content):
    body = a_provider()
    body["metadata"]["much"] = "@@"
    assert target.post("operator", REGISTRATION, with_text(body, f"[{content}]"))["code"] in (
        0,
        400,
    )
    assert target.submit(with_text(a_job(much="@@"), f"[{content}]"))["code"] in (0, 400)


def test_a_thousand_components_in_a_job(target):
    found = target.submit(with_components(chain(1000)))
    assert found["code"] == 0
    assert (
        len(
            target.get(f"{PLATFORM}/job/status_all", job_id=found["data"]["job_id"])["data"][
                "tasks"
            ]
        )
        == 1000
    )
    assert target.submit(with_components(chain(1001)))["code"] == 400


MANY = {
    "100k parties": with_roles(guest=[ME] * 100_000),
    "1000 parties at one node": with_roles(guest=[ME] * 1000),
    "an id of 10 kB": with_roles(guest=["x" * 10_000]),
    "30k roles": with_roles(**{f"r{i}": [ME] for i in range(30_000)}),
    "30k empty components": with_components([{}] * 30_000),
    "20k inputs of one component": with_components(
        [component(0, input=[{"type": "dataset", "key": "a.b"}] * 20_000)]
    ),
    "names that repeat": with_components([component(i % 2) for i in range(1000)]),
}


@pytest.mark.parametrize("body", MANY.values(), ids=MANY)
def test_more_of_a_kind_than_any_job_has(target, body):
    before = target.get(f"{PLATFORM}/job/query_job_list")["data"]["job_list"].keys()
    found = target.submit(body)
    assert found["code"] == 400
    assert len(found["data"]["problems"]) <= 201
    assert target.get(f"{PLATFORM}/job/query_job_list")["data"]["job_list"].keys() == before


DEEP = {f"{depth} lists": "[" * depth + "1" + "]" * depth for depth in (100, 900, 100_000)}
DEEP |= {f"{depth} objects": '{"a":' * depth + "1" + "}" * depth for depth in (100, 100_000)}
NUMBERS = {text[:9]: text for text in ("NaN", "-Infinity", "1e400", "9" * 5000)}
HALVES = {text: text for text in (r'"\ud800"', r'{"\udfff": 1}', r'["a", {"b": "\udc00\ud800"}]')}
HALVES["raw"] = '"\ud800"'


@pytest.mark.parametrize(
    "text", [*DEEP.values(), *NUMBERS.values(), *HALVES.values()], ids=[*DEEP, *NUMBERS, *HALVES]
)
def test_json_that_no_other_reader_takes(target, text):
    found = target.submit(with_parameter(text))
    assert found["code"] == 400
    if text in HALVES.values():
        assert found["data"]["problems"][0]["path"] == "body"
    registration = a_provider(name="wild", metadata={"image": "i", "n": "@@"})
    assert target.post("operator", REGISTRATION, with_text(registration, text))["code"] == 400
    stop = with_text({"job_id": "j", "failed_by": {"reason": "r", "exit_code": "@@"}}, text)
    assert target.post("peer", f"{CONTROL}/job/stop", stop)["code"] in (400, 404, 413)
    push = with_text({"payload": "@@"}, text)
    said = target.post("container", f"{CHANNEL}/push", push, **target.as_container)
    assert said["code"] in ("E0000000000", "E0000000400")


def test_zero_characters_are_refused(target):
    found = target.submit(with_parameter(r'"a\u0000b"'))
    assert found["code"] == 400
    assert "zero characters" in found["data"]["problems"][0]["rule"]
    for path in (SUBMIT, REGISTRATION, "/v2/component/upload"):
        target.post(
            "operator",
            path,
            a_job(
                flow_id="\0",
                name="\0",
                file="a\0b",
                namespace="\0",
            ),
        )
    assert target.get(f"{PLATFORM}/job/query_job_list", flow_id="\0")["code"] == 0


def test_catastrophic_expressions_in_a_description_and_a_job_that_uses_it(target):
    parameters = [
        {
            "name": f"p{i}",
            "title": "p",
            "type": "string",
            "optional": "true",
            "validator": "regular:'(a+)+$'",
        }
        for i in range(50)
    ]
    provider = a_provider(name="catastrophe")
    provider["components_description"]["Echo"] |= {
        "inputParam": parameters,
        "provider": "catastrophe",
    }
    assert target.post("operator", REGISTRATION, provider)["code"] == 0
    body = with_components(chain(20, provider="catastrophe"))
    values = {f"p{i}": "a" * 60 + "!" for i in range(50)}
    body["config"]["task_params"] = {"common": {f"echo_{i}": values for i in range(20)}}
    began = time.process_time()
    found = target.submit(body)
    assert found["code"] == 0
    assert time.process_time() - began < 3
    local = target.node.store.local_jobs.get(found["data"]["job_id"])
    assert any("p0" in warning for warning in local.warnings)


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", SUBMIT),
        ("peer", f"{CONTROL}/job/create"),
        ("container", f"{PLATFORM}/task/callback"),
    ],
)
def test_numbers_where_an_object_belongs_are_counted_before_they_are_read(target, listener, path):
    numbers = "[" + ",".join(["1"] * 900_000) + "]"
    for body in (numbers, f'{{"job_id": {numbers}}}', f'{{"config": {{"role": {numbers}}}}}'):
        refusal = target.post(listener, path, body)
        assert refusal["data"]["reason"] == "INVALID"
        assert "must not hold more than" in refusal["data"]["problems"][0]["rule"]


CONTROL_CHARACTERS = [b"\x01", b"a\x00b", b"a\rb", b"\xff\xfe", b"\xc3\xa9", b"\t", b"x" * 300_000]


@pytest.mark.parametrize(
    ("listener", "path", "name"),
    [
        ("peer", f"{CONTROL}/job/start", b"x-source-node-id"),
        ("peer", f"{CHANNEL}/invoke", b"x-ptp-source-node-id"),
        ("container", f"{CHANNEL}/push", b"x-ptp-session-id"),
        ("operator", REGISTRATION, b"content-type"),
    ],
)
def test_headers_with_what_headers_cannot_hold(target, listener, path, name):
    request = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 14\r\n".encode()
    for value in CONTROL_CHARACTERS:
        with target.raw(
            listener, request + name + b": " + value + b'\r\n\r\n{"job_id":"j"}'
        ) as sock:
            answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 "), (value[:5], answer[:200])
        assert answer.split(b" ", 2)[1] in (b"200", b"400", b"431"), (value[:5], answer[:200])


def test_bodies_that_never_end_delay_no_other_request(target):
    with ExitStack() as held:
        for listener, head in target.heads("/v2/component/upload/file") * 6:
            for begun in (
                'transfer-encoding: chunked\r\n\r\n9\r\n{"topic":\r\n',
                'content-length: 2000000\r\n\r\n{"topic":',
            ):
                held.enter_context(target.raw(listener, f"{head}{begun}".encode()))
        assert target.submit(a_job())["code"] == 0
        assert target.post("peer", f"{CONTROL}/job/start", {"job_id": "none"})["code"] == 404
        said = target.post(
            "container", f"{CHANNEL}/push", {"payload": "aGk="}, **target.as_container
        )
        assert said["code"] == "E0000000000"


def test_bodies_that_break_off_leave_no_trace_in_the_log(target, caplog):
    with capture_logs() as lines:
        for listener, head in target.heads("/v2/provider/register", "/api/v1/models"):
            target.raw(listener, f"{head}content-length: 1000\r\n\r\n{{".encode()).close()
            with target.raw(
                listener, f"{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\nzz\r\n".encode()
            ) as sock:
                assert sock.recv(4096).startswith(b"HTTP/1.1 400 ")
            with target.raw(listener, b"GET /none HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") as sock:
                assert sock.recv(4096).startswith(
                    b"HTTP/1.1 "
                )  # so the closed ones have been dealt with
        assert target.submit(a_job())["code"] == 0
    assert not [line for line in lines if line["log_level"] == "error"]
    assert not [record for record in caplog.records if record.exc_info]


def test_health_answered_all_the_while(target, pulse, capsys):
    assert len(pulse) > 20  # all of this takes a quick machine four seconds
    waited, worked = sorted(beat.waited for beat in pulse), sorted(beat.worked for beat in pulse)
    at = min(
        int(len(pulse) * 0.99), len(pulse) - 3
    )  # one in a hundred, and two, may meet a collection of garbage
    with capsys.disabled():
        print(
            f"\nhealth under attack: {len(pulse)} answers, p50 {waited[len(pulse) // 2] * 1000:.0f} ms, "
            f"nearly all within {waited[at] * 1000:.0f} ms, slowest {waited[-1] * 1000:.0f} ms; "
            f"of work within {worked[at] * 1000:.0f} ms, most {worked[-1] * 1000:.0f} ms"
        )
    assert worked[at] < LONGEST_WORK
    assert waited[at] < LONGEST_WAIT
