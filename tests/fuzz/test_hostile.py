"""Attacks: each request is accepted or refused soon, and the node's health responds all along."""

import copy
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import httpx
import pytest
from structlog.testing import capture_logs

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.fuzz.nodes import PARTNER, check_response, start_node
from tests.inprocess import ME, Node, containers
from tests.plain import NO_TLS
from tools.bench import hostile

# One node and one measurement of its health for all tests, the test of health last.
pytestmark = pytest.mark.xdist_group("hostile")

PLATFORM = "/v1/platform/schedule"
CONTROL = "/v1/interconn/schedule"
CHANNEL = "/v1/interconn/chan"
SUBMIT = f"{PLATFORM}/job/create_all"
REGISTRATION = "/v2/provider/register"

TIMEOUT = 60.0  # seconds; a later response counts as none
MAX_WORK = 0.5  # seconds of this process's CPU time during 99 of 100 responses of health
MAX_WAIT = 10.0  # seconds until 99 of 100 responses of health; more than on a busy machine


class Target:
    """The node under attack."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = httpx.Client(
            timeout=TIMEOUT,
            trust_env=False,
            verify=NO_TLS,
        )
        container = containers(node, "hostile", {"guest": (ME,)})["guest.0"]
        self.container_headers = {**container, "x-ptp-target-node-id": ME}

    def post(
        self,
        listener: str,
        path: str,
        body: Any,
        **headers: str,
    ) -> dict[str, Any]:
        """Post a body, as JSON unless it is text or bytes; return the response's body."""
        content = body
        if not isinstance(body, bytes | str):
            content = json.dumps(body)
        headers = {"content-type": "application/json", "x-source-node-id": PARTNER} | headers
        url = self.node.addresses()[listener] + path
        return check_response(self.client.post(url, content=content, headers=headers))

    def get(
        self,
        path: str,
        **params: str,
    ) -> dict[str, Any]:
        url = self.node.addresses()["operator"] + path
        return check_response(self.client.get(url, params=params))

    def submit(self, body: Any) -> dict[str, Any]:
        return self.post("operator", SUBMIT, body)

    def push(self, body: Any) -> dict[str, Any]:
        """Push a message on the channel as a container."""
        return self.post("container", f"{CHANNEL}/push", body, **self.container_headers)

    def job_ids(self) -> set[str]:
        job_list = self.get(f"{PLATFORM}/job/query_job_list")
        return set(job_list["data"]["job_list"])

    def request_heads(self, *operator_paths: str) -> list[tuple[str, str]]:
        """Return listener and head of a POST for the main paths of each listener.

        The heads have no length of the body and no empty line at the end. ``operator_paths``:
        further paths of the operators' listener.
        """
        headers = {
            **self.container_headers,
            "x-source-node-id": PARTNER,
            "content-type": "application/json",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        paths = {
            "operator": [SUBMIT, REGISTRATION, *operator_paths],
            "peer": [f"{CONTROL}/job/create", f"{CHANNEL}/invoke"],
            "container": [f"{CHANNEL}/push", f"{PLATFORM}/task/callback"],
        }
        heads = []
        for listener, listener_paths in paths.items():
            for path in listener_paths:
                head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}"
                heads.append((listener, head))
        return heads

    def connect(
        self,
        listener: str,
        content: bytes,
    ) -> socket.socket:
        """Open a connection of its own and send bytes on it."""
        host, _, port = self.node.addresses()[listener].removeprefix("http://").rpartition(":")
        connection = socket.create_connection(
            (host, int(port)),
            timeout=TIMEOUT,
        )
        connection.sendall(content)
        return connection


class HealthCheck(NamedTuple):
    """The seconds that one response of health took: by the clock, and of this process's CPU."""

    waited: float
    worked: float


FAILED_CHECK = HealthCheck(TIMEOUT, TIMEOUT)


@pytest.fixture(scope="module")
def health_checks() -> list[HealthCheck]:
    """The checks from the first hostile request to the last."""
    return []


@pytest.fixture(scope="module")
def target(shared_world, health_checks):
    node = start_node(
        shared_world,
        fate={"enabled": True},
    )
    target = Target(node)
    assert target.post("operator", REGISTRATION, A_PROVIDER)["code"] == 0
    with checking_health(node, health_checks):
        yield target
    target.client.close()


@contextmanager
def checking_health(
    node: Node,
    checks: list[HealthCheck],
) -> Iterator[None]:
    """Check a node's health all along, from a thread of its own."""
    is_over = threading.Event()

    def check_until_over() -> None:
        with httpx.Client(
            timeout=TIMEOUT,
            trust_env=False,
            verify=NO_TLS,
        ) as client:
            while not is_over.wait(0.01):
                checks.append(check_health(node, client))

    thread = threading.Thread(target=check_until_over)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def check_health(
    node: Node,
    client: httpx.Client,
) -> HealthCheck:
    """Check a node's health once."""
    start = time.monotonic()
    start_work = time.process_time()
    response = client.get(node.addresses()["operator"] + "/health/live")
    if response.status_code != 200:
        return FAILED_CHECK
    return HealthCheck(
        time.monotonic() - start,
        time.process_time() - start_work,
    )


# ---------------------------------------------------------------- bodies


def a_job(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(A_JOB) | changes


def a_provider(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(A_PROVIDER) | changes


def with_text(
    body: dict[str, Any],
    text: str,
) -> bytes:
    """Return a body with a JSON text in place of the value ``@@``."""
    return json.dumps(body).encode().replace(b'"@@"', text.encode("utf-8", "surrogatepass"))


def with_parameter(text: str) -> bytes:
    """Return a job with a JSON text as a parameter."""
    body = a_job()
    body["config"]["task_params"] = {"common": {"echo_1": {"wild": "@@"}}}
    return with_text(body, text)


def with_roles(**roles: Any) -> dict[str, Any]:
    """Return a job with further roles."""
    body = a_job()
    body["config"]["role"] |= roles
    return body


def with_components(components: Sequence[Any]) -> dict[str, Any]:
    """Return a job of these components."""
    body = a_job()
    body["dag"]["components"] = list(components)
    return body


def component(number: int, **changes: Any) -> dict[str, Any]:
    return {
        **a_job()["dag"]["components"][0],
        "name": f"echo_{number}",
        **changes,
    }


def chain(length: int, **changes: Any) -> list[dict[str, Any]]:
    """Return components that each read the output of the previous one."""
    components = [component(0, **changes)]
    for number in range(1, length):
        previous = {
            "type": "dataset",
            "key": f"echo_{number - 1}.data0",
        }
        components.append(component(number, input=[previous], **changes))
    return components


# ---------------------------------------------------------------- large bodies

LARGE_LISTS = {
    "empty lists": "[]," * (3 << 20) + "1",
    "escapes": '"' + "\\u00e9" * (5 << 20) + '"',
    "few enough lists": "[]," * 33_000 + "1",
}


@pytest.mark.parametrize(
    "content",
    LARGE_LISTS.values(),
    ids=LARGE_LISTS,
)
def test_as_much_as_the_limit_of_bodies_takes(target, content):
    provider = a_provider()
    provider["metadata"]["much"] = "@@"

    registration = target.post(
        "operator",
        REGISTRATION,
        with_text(provider, f"[{content}]"),
    )
    submission = target.submit(with_text(a_job(much="@@"), f"[{content}]"))

    assert registration["code"] in (0, 400)
    assert submission["code"] in (0, 400)


def test_a_thousand_components_in_a_job(target):
    submission = target.submit(with_components(chain(1000)))
    assert submission["code"] == 0

    job_id = submission["data"]["job_id"]
    status = target.get(
        f"{PLATFORM}/job/status_all",
        job_id=job_id,
    )
    assert len(status["data"]["tasks"]) == 1000

    assert target.submit(with_components(chain(1001)))["code"] == 400


INPUT = {
    "type": "dataset",
    "key": "a.b",
}
OVERSIZED_JOBS = {
    "100k parties": with_roles(guest=[ME] * 100_000),
    "1000 parties at one node": with_roles(guest=[ME] * 1000),
    "an id of 10 kB": with_roles(guest=["x" * 10_000]),
    "30k roles": with_roles(**{f"r{number}": [ME] for number in range(30_000)}),
    "30k empty components": with_components([{}] * 30_000),
    "20k inputs of one component": with_components([component(0, input=[INPUT] * 20_000)]),
    "names that repeat": with_components([component(number % 2) for number in range(1000)]),
}


@pytest.mark.parametrize(
    "body",
    OVERSIZED_JOBS.values(),
    ids=OVERSIZED_JOBS,
)
def test_more_of_a_kind_than_any_job_has(target, body):
    job_ids = target.job_ids()

    refusal = target.submit(body)

    assert refusal["code"] == 400
    assert len(refusal["data"]["problems"]) <= 201
    assert target.job_ids() == job_ids


# ---------------------------------------------------------------- JSON that other readers refuse


def nested_lists(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


def nested_objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


BAD_JSON = {
    "100 lists": nested_lists(100),
    "900 lists": nested_lists(900),
    "100000 lists": nested_lists(100_000),
    "100 objects": nested_objects(100),
    "100000 objects": nested_objects(100_000),
    "NaN": "NaN",
    "-Infinity": "-Infinity",
    "1e400": "1e400",
    "5000 digits": "9" * 5000,
}

# JSON texts with half of a surrogate pair.
HALF_SURROGATES = {
    "value": r'"\ud800"',
    "key": r'{"\udfff": 1}',
    "deep": r'["a", {"b": "\udc00\ud800"}]',
    "raw": '"\ud800"',
}

UNREADABLE_JSON = BAD_JSON | HALF_SURROGATES


@pytest.mark.parametrize(
    "text",
    UNREADABLE_JSON.values(),
    ids=UNREADABLE_JSON,
)
def test_json_that_no_other_reader_takes(target, text):
    assert target.submit(with_parameter(text))["code"] == 400

    provider = a_provider(
        name="wild",
        metadata={
            "image": "i",
            "n": "@@",
        },
    )
    assert target.post("operator", REGISTRATION, with_text(provider, text))["code"] == 400

    stop = {
        "job_id": "j",
        "failed_by": {
            "reason": "r",
            "exit_code": "@@",
        },
    }
    stopped = target.post(
        "peer",
        f"{CONTROL}/job/stop",
        with_text(stop, text),
    )
    assert stopped["code"] in (400, 404, 413)

    pushed = target.push(with_text({"payload": "@@"}, text))
    assert pushed["code"] in ("E0000000000", "E0000000400")


@pytest.mark.parametrize(
    "text",
    HALF_SURROGATES.values(),
    ids=HALF_SURROGATES,
)
def test_half_a_surrogate_pair_is_a_problem_of_the_body(target, text):
    refusal = target.submit(with_parameter(text))
    assert refusal["data"]["problems"][0]["path"] == "body"


def test_zero_characters_are_refused(target):
    refusal = target.submit(with_parameter(r'"a\u0000b"'))
    assert refusal["code"] == 400
    assert "zero characters" in refusal["data"]["problems"][0]["rule"]


def test_zero_characters_in_any_text_are_decided_upon(target):
    body = a_job(
        flow_id="\0",
        name="\0",
        file="a\0b",
        namespace="\0",
    )
    for path in (SUBMIT, REGISTRATION, "/v2/component/upload"):
        target.post("operator", path, body)
    assert target.get(f"{PLATFORM}/job/query_job_list", flow_id="\0")["code"] == 0


MOST_WORK = 10.0  # seconds of this process's CPU time for one description; a quick machine needs 1


@pytest.mark.parametrize(
    "description",
    [each for each in hostile.DESCRIPTIONS if each is not hostile.fifty_megabytes],
    ids=attrgetter("__name__"),
)
def test_the_work_for_one_hostile_description_is_bounded(target, description):
    body = description()
    start = time.process_time()

    response = target.post("operator", REGISTRATION, body)

    assert time.process_time() - start < MOST_WORK
    assert response["code"] in (0, 400)


def test_a_description_of_50_mb_is_refused_before_it_arrives(target):
    head = (
        f"POST {REGISTRATION} HTTP/1.1\r\n"
        "host: 127.0.0.1\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(hostile.fifty_megabytes())}\r\n"
        "\r\n"
    )
    with target.connect("operator", head.encode()) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


CATASTROPHIC_PARAMETERS = 50


def catastrophic_parameter(number: int) -> dict[str, Any]:
    """Return a parameter whose expression takes exponential time on a mismatch."""
    return {
        "name": f"p{number}",
        "title": "p",
        "type": "string",
        "optional": "true",
        "validator": "regular:'(a+)+$'",
    }


def test_catastrophic_expressions_in_a_description_and_a_job_that_uses_it(target):
    numbers = range(CATASTROPHIC_PARAMETERS)
    provider = a_provider(name="catastrophe")
    provider["components_description"]["Echo"] |= {
        "inputParam": [catastrophic_parameter(number) for number in numbers],
        "provider": "catastrophe",
    }
    assert target.post("operator", REGISTRATION, provider)["code"] == 0
    components = chain(20, provider="catastrophe")
    mismatches = {f"p{number}": "a" * 60 + "!" for number in numbers}
    body = with_components(components)
    body["config"]["task_params"] = {
        "common": {component["name"]: mismatches for component in components}
    }
    start = time.process_time()

    submission = target.submit(body)

    assert submission["code"] == 0
    assert time.process_time() - start < 3
    local = target.node.store.local_jobs.get(submission["data"]["job_id"])
    assert any("p0" in warning for warning in local.warnings)


NUMBERS = "[" + ",".join(["1"] * 900_000) + "]"
MANY_NUMBERS = {
    "the body": NUMBERS,
    "the job's id": f'{{"job_id": {NUMBERS}}}',
    "the roles": f'{{"config": {{"role": {NUMBERS}}}}}',
}


@pytest.mark.parametrize(
    "body",
    MANY_NUMBERS.values(),
    ids=MANY_NUMBERS,
)
@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", SUBMIT),
        ("peer", f"{CONTROL}/job/create"),
        ("container", f"{PLATFORM}/task/callback"),
    ],
    ids=["operator", "peer", "container"],
)
def test_too_many_numbers_are_refused_before_they_are_read(target, listener, path, body):
    refusal = target.post(listener, path, body)
    assert refusal["data"]["reason"] == "INVALID"
    assert "must not hold more than" in refusal["data"]["problems"][0]["rule"]


# ---------------------------------------------------------------- raw connections

BAD_HEADER_VALUES = [b"\x01", b"a\x00b", b"a\rb", b"\xff\xfe", b"\xc3\xa9", b"\t", b"x" * 300_000]


@pytest.mark.parametrize(
    ("listener", "path", "name"),
    [
        ("peer", f"{CONTROL}/job/start", b"x-source-node-id"),
        ("peer", f"{CHANNEL}/invoke", b"x-ptp-source-node-id"),
        ("container", f"{CHANNEL}/push", b"x-ptp-session-id"),
        ("operator", REGISTRATION, b"content-type"),
    ],
)
def test_headers_with_bytes_that_headers_cannot_hold(target, listener, path, name):
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 14\r\n".encode()
    for value in BAD_HEADER_VALUES:
        request = head + name + b": " + value + b'\r\n\r\n{"job_id":"j"}'
        with target.connect(listener, request) as connection:
            response = connection.recv(65536)
        context = (value[:5], response[:200])
        assert response.startswith(b"HTTP/1.1 "), context
        assert response.split(b" ", 2)[1] in (b"200", b"400", b"431"), context


UNFINISHED_BODIES = [
    'transfer-encoding: chunked\r\n\r\n9\r\n{"topic":\r\n',
    'content-length: 2000000\r\n\r\n{"topic":',
]


def test_bodies_that_never_end_delay_no_other_request(target):
    heads = target.request_heads(*["/v2/component/upload/file"] * 6)
    with ExitStack() as connections:
        for listener, head in heads:
            for body in UNFINISHED_BODIES:
                request = f"{head}{body}".encode()
                connections.enter_context(target.connect(listener, request))

        assert target.submit(a_job())["code"] == 0
        started = target.post(
            "peer",
            f"{CONTROL}/job/start",
            {"job_id": "none"},
        )
        assert started["code"] == 404
        assert target.push({"payload": "aGk="})["code"] == "E0000000000"


def test_bodies_that_break_off_leave_no_trace_in_the_log(target, caplog):
    with capture_logs() as lines:
        for listener, head in target.request_heads("/v2/provider/register", "/api/v1/models"):
            unfinished = f"{head}content-length: 1000\r\n\r\n{{"
            target.connect(listener, unfinished.encode()).close()

            bad_chunk = f"{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\nzz\r\n"
            with target.connect(listener, bad_chunk.encode()) as connection:
                assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")

            # Once this request has a response, the closed connections have been processed.
            request = b"GET /none HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            with target.connect(listener, request) as connection:
                assert connection.recv(4096).startswith(b"HTTP/1.1 ")
        assert target.submit(a_job())["code"] == 0
    assert not [line for line in lines if line["log_level"] == "error"]
    assert not [record for record in caplog.records if record.exc_info]


def test_health_answered_all_the_while(target, health_checks, capsys):
    count = len(health_checks)
    assert count > 20  # a quick machine needs four seconds for all tests
    waited = sorted(check.waited for check in health_checks)
    worked = sorted(check.worked for check in health_checks)
    # One in a hundred, and two at least, may coincide with a collection of garbage.
    nearly_all = min(int(count * 0.99), count - 3)

    with capsys.disabled():
        print(
            f"\nhealth under attack: {count} answers, "
            f"p50 {waited[count // 2] * 1000:.0f} ms, "
            f"nearly all within {waited[nearly_all] * 1000:.0f} ms, "
            f"slowest {waited[-1] * 1000:.0f} ms; "
            f"of work within {worked[nearly_all] * 1000:.0f} ms, "
            f"most {worked[-1] * 1000:.0f} ms"
        )
    assert worked[nearly_all] < MAX_WORK
    assert waited[nearly_all] < MAX_WAIT
