"""Sealed control requests cannot be read, altered, redirected or repeated, nor can their answers.

The requests between the two nodes pass a tap, which is at the place of a relay between them.
"""

from dataclasses import dataclass, replace

import httpx
import pytest

from gateway.errors import GatewayError, NotAllowed, NotFound, PeerUnreachable, Refused
from gateway.identity.keys import Keyring
from gateway.identity.request_seals import CoveredHeaders, RequestSeal
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.runtime.trials import Result
from tests.adapter.bfia.channel.sealed import Clock, Identity, flipped
from tests.adapter.bfia.scripted import refuses, says, scripted
from tests.inprocess import ME, PEER, running
from tests.trust.agreeing import call_api, edit_route, set_routes
from tests.trust.peer_requests import POLL, reason_of

SECRET = "task-of-the-secret-merger"
SEALED = "application/vnd.bfia-gateway.sealed"
TASK_STOP = "/v1/interconn/schedule/task/stop"
SILENT_HEADERS = ("host", "connection", "content-length", "accept-encoding")


@dataclass(frozen=True)
class Passed:
    """A response that has passed the tap."""

    status: int
    headers: dict[str, str]
    body: bytes

    def play(self, handler):
        """Write the response."""
        handler.send_response(self.status)
        for name, value in self.headers.items():
            if name not in ("content-length", "connection", "transfer-encoding"):
                handler.send_header(name, value)
        handler.send_header(
            "content-length",
            str(len(self.body)),
        )
        handler.end_headers()
        handler.wfile.write(self.body)


class Tap:
    """A peer that passes requests to a node, and records requests and responses."""

    def __init__(self, peer, node):
        self.peer = peer
        self.node = node
        self.responses = []
        peer.will(self.forward)

    @property
    def requests(self):
        return self.peer.requests

    def forward(self, handler):
        """Pass the newest request on, and its response back."""
        response = self.send(self.requests[-1])
        self.responses.append(response)
        response.play(handler)

    def send(
        self,
        request,
        node=None,
        **changes,
    ):
        """Send a recorded request to a node, by default the one behind the tap."""
        request = replace(request, **changes)
        headers = {
            name: value for name, value in request.headers.items() if name not in SILENT_HEADERS
        }
        response = httpx.request(
            request.method,
            (node or self.node).addresses()["peer"] + request.target,
            content=request.raw,
            headers=headers,
            timeout=60,
            trust_env=False,
        )
        return Passed(
            response.status_code,
            dict(response.headers),
            response.content,
        )

    def reason(
        self,
        request,
        node=None,
        **changes,
    ):
        """Send a recorded request; return the reason of the refusal."""
        response = self.send(request, node, **changes)
        return reason_of(httpx.Response(response.status, content=response.body).json())


def keys_of(home):
    """Return the fields of a route to the node with a home folder, after making its keys."""
    return {
        "keys": Keyring(home / "state").make("ed25519").public,
        "sealing_key": SealingKeyFile(home / "state").ensure().public,
        "control_sealing": "required",
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Give two nodes that require sealed control requests of each other, and a tap before one."""
    home = tmp_path_factory.mktemp("nodes")
    of_me = keys_of(home / "me")
    of_peer = keys_of(home / "peer")
    with (
        running(home / "me") as me,
        running(home / "peer", PEER) as peer,
        scripted() as (script, url),
    ):
        set_routes(me, {PEER: {"url": url, **of_peer}})
        set_routes(peer, {ME: {"url": me.addresses()["peer"], **of_me}})
        yield me, peer, Tap(script, peer)


@pytest.fixture
def nodes(pair):
    """Give the nodes, with their first routes and an empty tap."""
    me, peer, tap = pair
    tap.requests.clear()
    tap.responses.clear()
    tap.peer.will(tap.forward)
    yield me, peer, tap
    edit_route(
        me,
        PEER,
        control_sealing="required",
        signing="required",
    )
    edit_route(
        peer,
        ME,
        control_sealing="required",
        signing="required",
    )


@pytest.fixture
def tap(nodes):
    return nodes[2]


def poll(node, task_id=SECRET):
    """Ask the partner of `ME` for a task that it does not have."""
    return node.protocol.peer(PEER).post("/task/poll", {"task_id": task_id, "role": "guest"})


def recorded_poll(me, tap):
    """Return a poll that has passed the tap."""
    with pytest.raises(NotFound):
        poll(me)
    return tap.requests[-1]


# ---------------------------------------------------------------- reading


def test_a_relay_reads_neither_request_nor_answer(nodes):
    me, _, tap = nodes

    with pytest.raises(NotFound, match=SECRET):
        poll(me)

    (request,) = tap.requests
    (response,) = tap.responses
    traffic = repr((request, response))
    assert SECRET not in traffic
    assert "TASK_UNKNOWN" not in traffic
    assert request.headers["content-type"] == SEALED
    assert response.headers["content-type"] == SEALED
    assert "x-auth-sign" in response.headers


def test_a_relay_still_sees_who_sends_to_whom_and_where(nodes):
    me, _, tap = nodes

    request = recorded_poll(me, tap)

    assert request.target == POLL
    assert request.headers["x-source-node-id"] == ME
    assert request.headers["x-target-node-id"] == PEER


def test_the_answer_to_a_malformed_body_is_sealed_too(nodes):
    me, _, tap = nodes

    with pytest.raises(GatewayError, match="task_id"):
        me.protocol.peer(PEER).post("/task/poll", {"role": SECRET})

    assert tap.responses[-1].headers["content-type"] == SEALED


@pytest.mark.parametrize(
    "size",
    [0, 200_000],
)
def test_requests_of_any_size_are_opened(nodes, size):
    me, _, _ = nodes

    body = {"job_id": "job-unknown", "parameters": {"x": " " * size}, "reason": ""}

    with pytest.raises(NotFound):
        me.protocol.peer(PEER).ask("/job/parameters", body)


def test_a_request_by_get_is_sealed(nodes):
    me, _, tap = nodes

    with pytest.raises(NotFound):
        me.protocol.peer(PEER).job_status("GET", SECRET)

    assert tap.requests[-1].method == "GET"
    assert SECRET not in tap.requests[-1].target
    assert tap.requests[-1].headers["content-type"] == SEALED
    assert tap.responses[-1].headers["content-type"] == SEALED


# ---------------------------------------------------------------- altering


def test_an_altered_body_is_refused(nodes):
    me, _, tap = nodes
    request = recorded_poll(me, tap)

    assert tap.reason(request, raw=flipped(request.raw)) == "SIGNATURE_REFUSED"


@pytest.mark.parametrize(
    "change",
    ["nothing", "path"],
)
def test_a_request_is_served_once_and_at_its_path(nodes, change):
    me, _, tap = nodes
    request = recorded_poll(me, tap)
    target = TASK_STOP if change == "path" else request.target

    assert tap.reason(request, target=target) == "SIGNATURE_REFUSED"


def test_a_request_for_another_node_is_refused(nodes):
    me, _, tap = nodes
    request = recorded_poll(me, tap)
    ends = {
        "x-source-node-id": PEER,
        "x-node-id": PEER,
        "x-target-node-id": ME,
    }
    stolen = {**request.headers, **ends}

    assert tap.reason(request, node=me, headers=stolen) == "SIGNATURE_REFUSED"


@pytest.mark.parametrize(
    "signing",
    ["accepted", "off"],
)
def test_a_sealed_request_is_not_repeated_where_signatures_are_optional(nodes, signing):
    me, peer, tap = nodes
    edit_route(
        peer,
        ME,
        control_sealing="off",
        signing=signing,
    )
    request = recorded_poll(me, tap)

    assert tap.reason(request) == "SIGNATURE_REFUSED"


def test_a_sealed_request_without_its_signature_is_refused(nodes):
    me, peer, tap = nodes
    edit_route(peer, ME, signing="accepted")
    request = recorded_poll(me, tap)
    unsigned = {**request.headers, "x-auth-sign": "unsigned"}

    assert tap.reason(request, headers=unsigned) == "SIGNATURE_REFUSED"


def test_an_answer_to_another_request_is_refused(nodes):
    me, _, tap = nodes
    recorded_poll(me, tap)
    earlier = tap.responses[-1]
    tap.peer.will(earlier.play)

    with pytest.raises(PeerUnreachable, match="belongs to another request") as error:
        poll(me)

    assert error.value.reason == "SEAL_WRONG"


def test_an_altered_answer_is_refused(nodes):
    me, _, tap = nodes

    def forward_altered(handler):
        response = tap.send(tap.requests[-1])
        replace(response, body=flipped(response.body, index=-1)).play(handler)

    tap.peer.will(forward_altered)
    with pytest.raises(PeerUnreachable) as error:
        poll(me)

    assert error.value.reason == "SEAL_WRONG"


# ---------------------------------------------------------------- seals alone


@pytest.fixture(params=["x25519", "sm2"])
def ends(request):
    """Give a sealed request at both ends: the sender's seal, and the receiver's."""
    national = request.param == "sm2"
    clock = Clock()
    alpha = Identity("alpha", clock, national=national)
    beta = Identity("beta", clock, national=national)
    covered = CoveredHeaders(
        method="POST",
        path=POLL,
        query="",
        source="alpha",
        target="beta",
        nonce="nonce-of-the-request",
        timestamp="1790000000000",
        permits="",
    )
    message = alpha.seals.begin(
        "beta",
        beta.pair.public,
        "control",
    )
    sender = RequestSeal(
        message.key,
        message.sequence,
        covered,
    )
    key = beta.seals.received_key(
        message.key.header,
        "alpha",
        "control",
        [alpha.signing.public],
    )
    return sender, RequestSeal(
        key,
        message.sequence,
        covered,
    )


def test_both_ends_read_what_was_sealed(ends):
    sender, receiver = ends

    assert receiver.open(sender.seal(b"request")) == b"request"
    assert sender.open_response(200, receiver.seal_response(200, b"answer")) == b"answer"


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"path": TASK_STOP},
        {"query": "dry_run=false"},
        {"source": "gamma"},
        {"target": "gamma"},
        {"nonce": "another-nonce"},
        {"timestamp": "1790000000001"},
        {"permits": "stolen"},
    ],
    ids=str,
)
def test_a_seal_covers_each_header(ends, change):
    sender, receiver = ends
    body = sender.seal(b"request")
    elsewhere = replace(receiver, covered=replace(receiver.covered, **change))

    with pytest.raises(NotAllowed) as error:
        elsewhere.open(body)

    assert error.value.reason == "SEAL_WRONG"
    with pytest.raises(NotAllowed):
        sender.open_response(
            200,
            elsewhere.seal_response(200, b"answer"),
        )


def test_the_answer_is_bound_to_its_status_and_number(ends):
    sender, receiver = ends
    answer = receiver.seal_response(200, b"answer")
    of_next_request = replace(
        sender,
        number=sender.number + 1,
    )

    for seal, status in ((sender, 404), (of_next_request, 200)):
        with pytest.raises(NotAllowed):
            seal.open_response(status, answer)


def test_two_answers_to_one_request_share_no_key(ends):
    _, receiver = ends
    plain = bytes(64)

    answers = [receiver.seal_response(200, plain) for _ in range(2)]

    assert answers[0][32:] != answers[1][32:]


def test_an_answer_cannot_pass_for_a_request(ends):
    sender, receiver = ends

    with pytest.raises(NotAllowed):
        receiver.open(receiver.seal_response(200, b"request"))
    with pytest.raises(NotAllowed):
        sender.open_response(
            200,
            sender.seal(b"answer"),
        )


@pytest.mark.parametrize(
    "body",
    [b"", b"short"],
)
def test_a_body_that_is_too_short_is_refused(ends, body):
    sender, receiver = ends

    with pytest.raises(NotAllowed):
        receiver.open(body)
    with pytest.raises(NotAllowed):
        sender.open_response(200, body)


# ---------------------------------------------------------------- modes


def test_an_unsealed_request_is_refused_where_seals_are_required(nodes):
    me, _, tap = nodes
    edit_route(me, PEER, control_sealing="off")

    with pytest.raises(NotAllowed, match=f"route edit {PEER} --control-sealing required") as error:
        poll(me)

    assert error.value.reason == "CONTROL_SEALING_REQUIRED"
    assert SECRET.encode() in tap.requests[-1].raw


@pytest.mark.parametrize(
    "mode",
    ["accepted", "off"],
)
def test_an_unsealed_request_is_served_where_seals_are_not_required(nodes, mode):
    me, peer, tap = nodes
    edit_route(me, PEER, control_sealing="off")
    edit_route(peer, ME, control_sealing=mode)

    with pytest.raises(NotFound, match=SECRET):
        poll(me)

    assert tap.responses[-1].headers["content-type"] == "application/json"


def test_a_node_that_only_accepts_seals_sends_them_with_a_key(nodes):
    me, _, tap = nodes
    edit_route(me, PEER, control_sealing="accepted")

    recorded_poll(me, tap)

    assert tap.requests[-1].headers["content-type"] == SEALED


def test_seals_are_not_required_of_a_partner_without_a_key(nodes):
    me, _, _ = nodes

    refusal = call_api(
        me,
        "PATCH",
        f"/routes/{PEER}",
        {"route": {"sealing_key": None}},
        400,
    )

    assert [problem["path"] for problem in refusal["data"]["problems"]] == [
        f"{PEER}.control_sealing"
    ]


def test_without_a_key_of_the_partner_nothing_is_sent(nodes):
    me, _, tap = nodes
    route = replace(
        me.routes.table.routes[PEER],
        sealing_key=None,
    )

    with pytest.raises(NotAllowed) as error:
        me.protocol.peer(PEER, route).post("/task/poll", {"task_id": SECRET, "role": "guest"})

    assert error.value.reason == "SEALING_KEY_MISSING"
    assert tap.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        says(),
        says({"code": 400, "msg": "content-type must be JSON", "data": {"reason": "INVALID"}}),
        says({"code": 1, "msg": "cannot parse"}),
    ],
    ids=["success", "refusal of an older gateway", "refusal of another product"],
)
def test_a_partner_that_opens_no_seals_is_named(nodes, answer):
    me, _, tap = nodes
    edit_route(me, PEER, signing="accepted")
    tap.peer.will(answer)

    with pytest.raises(Refused, match=f"route edit {PEER} --control-sealing off") as error:
        poll(me)

    assert error.value.reason == "ANSWER_NOT_SEALED"


@pytest.mark.parametrize("reason", ["TASK_UNKNOWN", "RELAY_NO_ROUTE"])
def test_a_refusal_in_clear_needs_a_signature(nodes, reason):
    me, _, tap = nodes
    edit_route(me, PEER, signing="accepted")
    tap.peer.will(refuses(404, reason, relay="somebody"))

    with pytest.raises(PeerUnreachable, match="not proven to be its own"):
        poll(me)


def test_a_refused_seal_is_reported_with_its_cause(nodes, tmp_path):
    me, _, _ = nodes
    key = me.routes.table.routes[PEER].sealing_key
    edit_route(
        me,
        PEER,
        sealing_key=SealingKeyFile(tmp_path).ensure().public,
    )
    try:
        with pytest.raises(NotAllowed, match="partner invite") as error:
            poll(me)
    finally:
        edit_route(me, PEER, sealing_key=key)

    assert error.value.reason == "SEAL_KEY_UNKNOWN"


# ---------------------------------------------------------------- test of a route


def sealing_step(node, partner):
    """Return the step "sealing" of a route's test."""
    (step,) = [step for step in node.protocol.try_route(partner) if step.name == "sealing"]
    return step


def test_a_route_test_says_that_control_requests_are_sealed(nodes):
    me, _, _ = nodes

    step = sealing_step(me, PEER)

    assert step.result is Result.OK, step
    word = "sealed, and unsealed ones are refused"
    assert step.found.endswith(f"; control requests sent: {word}; received: {word}")


@pytest.mark.parametrize(
    "side",
    ["here", "there"],
)
def test_a_route_test_names_the_side_that_does_not_seal(nodes, side):
    me, peer, _ = nodes
    if side == "here":
        edit_route(me, PEER, control_sealing="off")
    else:
        edit_route(peer, ME, control_sealing="off")

    step = sealing_step(me, PEER)

    assert step.result is Result.FAILED
    assert f"route edit {PEER} --control-sealing required" in step.remedy
    assert f"route edit {ME} --control-sealing required" in step.remedy


def test_a_route_test_finds_a_partner_that_opens_no_seals(nodes, tmp_path):
    me, _, _ = nodes
    key = me.routes.table.routes[PEER].sealing_key
    edit_route(
        me,
        PEER,
        sealing_key=SealingKeyFile(tmp_path).ensure().public,
        sealing="off",
    )
    try:
        step = sealing_step(me, PEER)
    finally:
        edit_route(
            me,
            PEER,
            sealing_key=key,
            sealing=None,
        )

    assert step.result is Result.FAILED
    assert "the peer does not open a sealed control request" in step.cause
