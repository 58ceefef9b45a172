"""Faults of a transport towards containers are found by the clauses that name them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from adapter.bfia.channel.codec import CHANNEL, SUCCESS
from gateway.conformance.platforms.check import judge
from gateway.conformance.platforms.clauses import clause_of, selected
from gateway.conformance.platforms.findings import Finding, Verdict
from gateway.conformance.platforms.node import CheckedNode, Identity
from gateway.conformance.platforms.trial import Trial, TrialOptions
from tests.conformance.platforms.checked import CHECK, PROBE, Site, checked_node
from tests.conformance.platforms.proxy import (
    Forward,
    Mutant,
    Proxy,
    Request,
    Response,
    answering,
)

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
    body = {"code": code, "message": "", "content": b64encode(content).decode()}

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
    return {**body, "topic": "another"}


def target_of_the_node(request: Request, forward: Forward) -> Response:
    """Store every message at the node itself."""
    return forward(request.with_headers(x_ptp_target_node_id="JG0100001100000010"))


def in_json(request: Request, forward: Forward) -> Response:
    """Refuse protobuf."""
    if "protobuf" in request.headers["content-type"]:
        return answering({"code": "E0000000616", "message": "codec"})
    return forward(request)


class AnyTopic:
    """Hands out the last message for every topic."""

    def __init__(self) -> None:
        self.last: Response | None = None

    def __call__(self, request: Request, forward: Forward) -> Response:
        if self.last is not None:
            return self.last
        request = request.with_body({**request.body, "topic": "another", "timeout": 1})
        self.last = replace(forward(request), content=answered_message(b"\x00conformance\xff"))
        return self.last


def answered_message(content: bytes) -> bytes:
    """Return a response that hands out a message."""
    return json.dumps({"code": SUCCESS, "content": b64encode(content).decode()}).encode()


class RememberedToken:
    """Accepts any token: it takes the last right one."""

    def __init__(self) -> None:
        self.token = ""

    def __call__(self, request: Request, forward: Forward) -> Response:
        if request.headers["x-ptp-token"] != "conformance-wrong-token":
            self.token = request.headers["x-ptp-token"]
        return forward(request.with_headers(x_ptp_token=self.token))


def shortened(request: Request, forward: Forward) -> Response:
    """Cut the zero byte off the content, as a text does."""
    response = forward(request)
    content = b64decode(response.body.get("content") or "")
    return replace(response, content=answered_message(content.lstrip(b"\x00")))


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
    with checked_node(tmp_path_factory.mktemp("checked"), signing="off") as checked:
        yield checked


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[Proxy]:
    """A proxy before the listener for containers."""
    proxy = Proxy(site.node.addresses()["container"])
    yield proxy
    proxy.close()


def judged(site: Site, proxy: Proxy, clause_id: str) -> Finding:
    """Return the finding about a clause of the node behind the proxy."""
    trial = site.trial
    transport = CheckedNode(
        proxy.url,
        trial.node.node_id,
        Identity(CHECK),
        trial.evidence,
        per_second=1000,
    )
    fresh_trial = Trial(
        trial.node,
        trial.partner,
        trial.evidence,
        OPTIONS,
        transport,
    )
    try:
        finding = judge(fresh_trial, clause_of(clause_id))
        fresh_trial.clean_up()
        return finding
    finally:
        transport.close()


@pytest.mark.parametrize("clause_id", MUTANTS)
def test_a_fault_towards_containers_is_caught(site: Site, proxy: Proxy, clause_id: str):
    with proxy.mutated(MUTANTS[clause_id]):
        finding = judged(site, proxy, clause_id)
    assert finding.verdict is Verdict.FAILS, finding.observation


def test_every_clause_about_containers_has_a_fault():
    container_clauses = [
        clause.id
        for clause in selected(["T-2.2-"])
        if clause.id not in ("T-2.2-json", "T-2.2-protobuf")
    ]
    assert set(MUTANTS) == set(container_clauses)


def test_without_the_address_for_containers_no_clause_of_theirs_is_tried(site: Site):
    trial = Trial(
        site.trial.node,
        site.trial.partner,
        site.trial.evidence,
        OPTIONS,
    )
    finding = judge(trial, clause_of("T-2.2-pop"))
    assert finding.verdict is Verdict.NOT_TRIED
    assert "--container-url" in finding.observation


def test_a_missing_token_is_no_fault_and_the_way_to_one_is_named(site: Site, proxy: Proxy):
    trial = site.trial
    transport = CheckedNode(
        proxy.url,
        trial.node.node_id,
        Identity(CHECK),
        trial.evidence,
    )
    without_way_back = Trial(
        trial.node,
        None,
        trial.evidence,
        OPTIONS,
        transport,
    )
    finding = judge(without_way_back, clause_of("T-2.2-push"))
    without_way_back.clean_up()
    transport.close()
    assert finding.verdict is Verdict.NOT_TRIED
    assert "--container-token" in finding.observation


def test_the_token_of_a_container_is_in_no_report(site: Site, proxy: Proxy):
    finding = judged(site, proxy, "T-2.2-push")
    exchanges = [exchange for exchange in finding.exchanges if not exchange.to_node]
    tokens = [
        exchange.sent_headers.get("x-ptp-token", "")
        for exchange in finding.exchanges
        if exchange.sent_headers.get("x-ptp-token")
    ]
    assert any(b"leaves out" in exchange.sent for exchange in exchanges)
    assert tokens
    for exchange in exchanges:
        assert b64encode(tokens[0].encode()) not in exchange.sent
