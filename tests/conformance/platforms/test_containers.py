"""Faults of a transport towards containers are found by the clauses that name them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from adapter.bfia.channel.codec import CHANNEL, SUCCESS
from gateway.conformance.platforms.check import judge
from gateway.conformance.platforms.clauses import clause_of
from gateway.conformance.platforms.findings import Finding, Verdict
from gateway.conformance.platforms.trial import Trial, TrialOptions
from tests.conformance.platforms.checked import PROBE, Site
from tests.conformance.platforms.proxy import (
    Forward,
    Mutant,
    Proxy,
    Request,
    Response,
    answering,
)
from tests.conformance.platforms.sides import (
    CONTAINER_CLAUSES,
    node_with_sides,
    trial_of,
)

WRONG_TOKEN = "conformance-wrong-token"  # as the clause about tokens sends it
# Seconds for a step that a mutant prevents; enough for the steps of a node on a busy machine.
OPTIONS = TrialOptions(PROBE, timeout=6.0)


def at(operation: str, mutant: Mutant) -> Mutant:
    """Return a mutant of one operation only."""

    def limited(request: Request, forward: Forward) -> Response:
        if request.path == f"{CHANNEL}{operation}":
            return mutant(request, forward)
        return forward(request)

    return limited


def answered(code: str, content: bytes = b"") -> Mutant:
    """Return a mutant that answers by itself."""
    encoded = b64encode(content)
    body = {
        "code": code,
        "message": "",
        "content": encoded.decode(),
    }

    def mutant(_: Request, __: Forward) -> Response:
        return answering(body)

    return mutant


def with_body(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Mutant:
    """Return a mutant that changes the body of requests in JSON."""

    def mutant(request: Request, forward: Forward) -> Response:
        return forward(request.with_body(change(request.body)))

    return mutant


def topic_of_no_one(body: dict[str, Any]) -> dict[str, Any]:
    """Release another topic than the one that is named."""
    return {
        **body,
        "topic": "another",
    }


def target_of_the_node(request: Request, forward: Forward) -> Response:
    """Store every message at the node itself."""
    return forward(request.with_headers(x_ptp_target_node_id="JG0100001100000010"))


def in_json(request: Request, forward: Forward) -> Response:
    """Refuse protobuf."""
    if "protobuf" in request.headers["content-type"]:
        body = {
            "code": "E0000000616",
            "message": "codec",
        }
        return answering(body)
    return forward(request)


class AnyTopic:
    """Hands out the last message for every topic."""

    def __init__(self) -> None:
        self.last: Response | None = None

    def __call__(self, request: Request, forward: Forward) -> Response:
        if self.last is not None:
            return self.last
        body = {
            "topic": "another",
            "timeout": 1,
        }
        response = forward(request.with_body(body))
        content = answered_message(b"\x00conformance\xff")
        self.last = replace(response, content=content)
        return self.last


def answered_message(content: bytes) -> bytes:
    """Return a response that hands out a message."""
    encoded = b64encode(content)
    body = {
        "code": SUCCESS,
        "content": encoded.decode(),
    }
    text = json.dumps(body)
    return text.encode()


class RememberedToken:
    """Accepts any token: it takes the last right one."""

    def __init__(self) -> None:
        self.token = ""

    def __call__(self, request: Request, forward: Forward) -> Response:
        token = request.headers["x-ptp-token"]
        if token != WRONG_TOKEN:
            self.token = token
        return forward(request.with_headers(x_ptp_token=self.token))


def shortened(request: Request, forward: Forward) -> Response:
    """Cut the zero byte off the content, as a text does."""
    response = forward(request)
    encoded = response.body.get("content", "")
    content = b64decode(encoded)
    cut = content.lstrip(b"\x00")
    return replace(
        response,
        content=answered_message(cut),
    )


MUTANTS = {
    "T-2.2-push": at("push", answered("E0000000500")),
    "T-2.2-pop": at("pop", answered(SUCCESS, b"first")),
    "T-2.2-pop-empty": at("pop", answered("E0000000601")),
    "T-2.2-peek": at("peek", answered("E0000000404")),
    "T-2.2-topics": at("pop", AnyTopic()),
    "T-2.2-release": at("release", with_body(topic_of_no_one)),
    "T-2.2-container-protobuf": in_json,
    "T-2.2-inward": at("pop", shortened),
    "T-2.2-outward": at("push", target_of_the_node),
    "T-2.2-refused": at("push", answered(SUCCESS)),
    "T-2.2-unknown": at("push", answered(SUCCESS)),
    "T-2.2-token": RememberedToken(),
    "T-2.2-foreign": at("pop", answered(SUCCESS)),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with node_with_sides(tmp_path_factory.mktemp("checked")) as checked:
        yield checked


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[Proxy]:
    """A proxy before the listener for containers."""
    proxy = Proxy(site.node.addresses()["container"])
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def trial(site: Site) -> Iterator[Trial]:
    """One trial of the node, for all clauses that hold."""
    with trial_of(site) as trial:
        yield trial


@pytest.mark.parametrize("clause_id", CONTAINER_CLAUSES)
def test_our_transport_keeps_the_clauses_about_containers(trial: Trial, clause_id: str):
    finding = judge(trial, clause_of(clause_id))
    assert finding.verdict is Verdict.HOLDS, finding.observation


@pytest.mark.parametrize("clause_id", MUTANTS)
def test_a_fault_towards_containers_is_caught(site: Site, proxy: Proxy, clause_id: str):
    with proxy.mutated(MUTANTS[clause_id]):
        finding = judged(site, proxy, clause_id)
    assert finding.verdict is Verdict.FAILS, finding.observation


def judged(
    site: Site,
    proxy: Proxy,
    clause_id: str,
) -> Finding:
    """Return the finding about a clause of the node behind the proxy."""
    with trial_of(site, containers=proxy.url, options=OPTIONS) as trial:
        return judge(trial, clause_of(clause_id))


def test_every_clause_about_containers_has_a_fault():
    assert set(MUTANTS) == set(CONTAINER_CLAUSES)


@pytest.mark.parametrize(
    ("clause_id", "option"),
    [
        ("T-2.2-pop", "--container-url"),
        ("C-5.2-stop", "--operator-url"),
    ],
)
def test_a_clause_without_its_address_is_not_tried(
    site: Site,
    clause_id: str,
    option: str,
):
    finding = judge(site.trial, clause_of(clause_id))
    assert finding.verdict is Verdict.NOT_TRIED
    assert option in finding.observation


def test_the_token_of_a_container_is_in_no_report(site: Site, proxy: Proxy):
    finding = judged(site, proxy, "T-2.2-token")
    bodies = []
    tokens = set()
    for exchange in finding.exchanges:
        token = exchange.sent_headers.get("x-ptp-token", "")
        if exchange.to_node:
            tokens.add(b64encode(token.encode()))
        else:
            bodies.append(exchange.sent)
    tokens.discard(b"")
    assert len(tokens) == 2  # the right one and the wrong one
    assert any(b"leaves out" in body for body in bodies)
    for token in tokens:
        assert all(token not in body for body in bodies)
