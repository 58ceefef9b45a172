"""Attack: a stranger who reaches the port names a partner whose route proves nothing."""

import base64
import json
from pathlib import Path

import pytest

from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.bootstrap.peer_proof import is_local
from gateway.config.schema.listeners import PeerListener
from gateway.diagnostics.network import signing_of
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.runtime.trials import Result
from tests.adapter.fate.flowing import dag, party
from tests.builders import a_spec
from tests.cleaning.ended import run_job
from tests.cli import call
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import ME, PEER, ask, containers, running
from tests.trust.agreeing import set_routes
from tests.trust.peer_requests import CONTROL, PeerRequest, reason_of
from tests.world import UNREACHABLE, NodeSetup

PAIR = KeyPair(KEY_GENERATORS["ed25519"]())
HUB = "JG0100003300000030"
BEHIND = "JG0100004400000040"
KEYLESS = "JG0100005500000050"
SITE = "9999"  # speaks FATE's protocol
ANY_ADDRESS = {
    "peer": {"bind": "0.0.0.0:0"},
    "container": {"bind": "127.0.0.1:0"},
    "operator": {"bind": "127.0.0.1:0"},
}
# A node whose listener other machines reach.
NODE = NodeSetup(settings={"listen": ANY_ADDRESS, "fate": {"enabled": True}})
CHANNEL = "/v1/interconn/chan"
JOB = "job-of-a-stranger"
DENIED = "E0000000403"
RED = "\x1b[31m"  # of a terminal
# A route table in the form of host and port.
USERS_TABLE = {PEER: {"host": "127.0.0.1", "port": 9}}
SITES_TABLE = {SITE: {**UNREACHABLE, "profile": "fate-partner"}}


def a_job():
    """Return the body of a job of the partner, in the standard's words."""
    roles = {
        "guest": (PEER,),
        "host": (ME,),
    }
    return create_body(
        a_spec("a", roles, job_id=JOB),
        PROFILES["spec"],
    )


def in_the_partners_name(path, body, source=PEER):
    """Return a request without a signature."""
    request = PeerRequest(
        path=path,
        body=json.dumps(body).encode(),
    )
    return request.with_header("x-source-node-id", source)


# ---------------------------------------------------------------- requests that are refused

# Another node for each: the history of a route outlasts its removal.
UNPROVEN_TABLES = {
    "host and port": (PEER, USERS_TABLE),
    "profile of FATE": (SITE, SITES_TABLE),
    "signatures, but no key": (
        KEYLESS,
        {KEYLESS: {**UNREACHABLE, "signing": "required"}},
    ),
    "behind a hub": (
        BEHIND,
        {HUB: UNREACHABLE, BEHIND: {"via": HUB}},
    ),
}
CONTROL_REQUESTS = {
    "job/create": a_job(),
    "job/create_all": a_job(),
    "job/plan": a_job(),
    "job/stop": {"job_id": JOB},
    "task/callback": {
        "task_id": "t",
        "role": "guest",
        "status": "SUCCESS",
    },
    "task/poll": {"task_id": "t", "role": "guest"},
}


@pytest.mark.parametrize(
    ("sender", "table"),
    UNPROVEN_TABLES.values(),
    ids=UNPROVEN_TABLES,
)
@pytest.mark.parametrize("path", CONTROL_REQUESTS)
def test_a_control_request_of_an_unproven_partner_is_refused(node, sender, table, path):
    set_routes(node, table)
    request = in_the_partners_name(
        f"{CONTROL}/{path}",
        CONTROL_REQUESTS[path],
        sender,
    )

    response = request.send_to(node)

    assert reason_of(response) == "SENDER_UNPROVEN"
    assert sender in response["msg"]
    assert "route edit" in response["msg"]
    assert node.store.local_jobs.find(JOB) is None
    assert node.store.jobs.find(JOB) is None


def test_the_refusal_names_the_invitation_and_stays_in_the_audit(node):
    set_routes(node, USERS_TABLE)
    response = PeerRequest().send_to(node)
    assert "bfia-gateway partner accept" in response["msg"]
    assert f"at node {ME}: " in response["msg"]
    assert "SENDER_UNPROVEN" in node.get("/api/v1/audit").text


def test_a_request_in_fates_protocol_is_refused_if_the_site_does_not_sign(node):
    set_routes(node, SITES_TABLE)
    job_id = "202411220101020000777"
    body = {
        **dag(SITE),
        **party(job_id),
    }

    response = ask(
        node,
        "peer",
        "POST",
        "/v2/partner/job/create",
        json=body,
    )

    assert reason_of(response.json()) == "SENDER_UNPROVEN"
    assert "fate.sites" in response.text
    assert node.store.local_jobs.find(job_id) is None


# ---------------------------------------------------------------- messages of containers


@pytest.fixture(scope="module")
def session(shared_world):
    """A running job of the partner at a node that other machines reach."""
    node = shared_world.node(NODE, node_id=ME)
    headers = containers(
        node,
        "job-with-messages",
        {"guest": (ME,), "host": (PEER,)},
    )
    return node, headers["guest.0"]


def metadata(session_id):
    """Return the headers of a message in the partner's name."""
    return {
        "x-ptp-version": "1",
        "x-ptp-topic": "t",
        "x-ptp-session-id": session_id,
        "x-ptp-source-node-id": PEER,
        "x-ptp-target-node-id": ME,
    }


def by_headers(headers):
    return {
        "headers": headers,
        "json": {"payload": "aGk="},
    }


def in_an_envelope(headers):
    payload = base64.b64encode(json.dumps({"payload": "aGk="}).encode()).decode()
    return {"json": {"metadata": headers, "payload": payload}}


@pytest.mark.parametrize(
    "form",
    [by_headers, in_an_envelope],
)
def test_a_message_of_an_unproven_partner_is_not_stored(session, form):
    node, container = session
    request = form(metadata(container["x-ptp-session-id"]))

    def send():
        return ask(
            node,
            "peer",
            "POST",
            f"{CHANNEL}/invoke",
            **request,
        ).json()["code"]

    def unread_messages():
        topics = node.broker.backlog(container["x-ptp-session-id"])
        return sum(topic.messages for topic in topics)

    set_routes(node, USERS_TABLE)
    before = unread_messages()
    assert send() == DENIED
    assert unread_messages() == before

    set_routes(
        node,
        {PEER: {**UNREACHABLE, "signing": "off"}},
    )
    assert send() == "E0000000000"
    assert unread_messages() == before + 1


def test_a_part_of_a_message_of_an_unproven_partner_is_refused(session):
    node, container = session
    set_routes(node, USERS_TABLE)
    headers = metadata(container["x-ptp-session-id"])
    response = ask(
        node,
        "peer",
        "POST",
        f"{CHANNEL}/part",
        headers=headers,
        content=b"part",
    )
    assert (
        decode_answer(
            response.content,
            response.headers["content-type"],
        ).code
        == DENIED
    )


def test_an_unproven_partners_requests_are_not_relayed(node):
    relayed = {**UNREACHABLE, "relay": True}
    set_routes(
        node,
        {PEER: relayed, HUB: relayed},
    )
    request = PeerRequest().with_header("x-target-node-id", HUB)
    assert request.refusal_of(node) == "SENDER_UNPROVEN"


# ---------------------------------------------------------------- decisions that open a route


def test_a_key_admits_the_partner_and_nobody_else(node):
    set_routes(
        node,
        {PEER: {**UNREACHABLE, "keys": PAIR.public}},
    )
    assert PeerRequest().refusal_of(node) == "SIGNATURE_REFUSED"
    assert PeerRequest().signed(PAIR).refusal_of(node) == "TASK_UNKNOWN"


@pytest.mark.parametrize(
    "signing",
    ["off", "accepted"],
)
def test_a_persons_decision_admits_everyone_and_is_shown(node, signing):
    set_routes(node, {})
    # without quotes, as people write it
    text = f"{PEER}:\n  host: 127.0.0.1\n  port: 9\n  signing: {signing}\n"
    Path(str(node.settings.route_table.file)).write_text(text)
    node.routes.reload()
    assert node.routes.problems == ()

    assert PeerRequest().refusal_of(node) == "TASK_UNKNOWN"

    step = signing_of(node.settings)
    assert step.result is Result.WARNING
    assert PEER in step.cause
    assert f"bfia-gateway route edit {PEER}" in step.remedy


def test_a_node_without_proof_reads_what_is_open_to_everyone(node):
    set_routes(node, USERS_TABLE)
    path = "/v1/interconn/node/query"
    query = PeerRequest(
        method="GET",
        path=path,
        query=f"node_id={ME}",
        body=b"",
    )
    assert query.refusal_of(node) == ""
    greeting = in_the_partners_name(
        f"{CONTROL}/node/hello",
        {},
    ).send_to(node)
    assert greeting["data"]["proof"] == "missing"


def test_a_node_without_proof_does_not_have_this_node_call_it(node):
    set_routes(node, USERS_TABLE)
    hello = in_the_partners_name(f"{CONTROL}/node/hello", {"call_back": True})
    assert hello.refusal_of(node) == "SENDER_UNPROVEN"


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ({"bind": "127.0.0.1:7380"}, True),
        ({"bind": "[::1]:7380"}, True),
        ({"bind": "localhost:7380"}, True),
        (
            {"bind": "127.0.0.1:7380", "advertise": "http://127.0.0.1:7380"},
            True,
        ),
        ({"bind": "0.0.0.0:7380"}, False),
        ({"bind": "10.0.0.5:7380"}, False),
        # A proxy on this machine forwards requests of others.
        (
            {"bind": "127.0.0.1:7380", "advertise": "https://gw.bank.example"},
            False,
        ),
    ],
)
def test_only_a_listener_on_loopback_needs_no_decision(listener, expected):
    assert is_local(PeerListener(**listener)) is expected


# ---------------------------------------------------------------- lists of routes


@pytest.mark.parametrize(
    ("fields", "proof", "words"),
    [
        ({}, "missing", "none: refused"),
        ({"signing": "required"}, "missing", "none: refused"),
        ({"signing": "off"}, "off", "none: open to anyone"),
        (
            {"keys": PAIR.public, "signing": "accepted"},
            "off",
            "none: open to anyone",
        ),
        (
            {"keys": PAIR.public},
            "signature",
            "signature",
        ),
    ],
)
def test_the_list_of_routes_shows_the_proof_and_the_next_step(node, fields, proof, words):
    set_routes(
        node,
        {PEER: {**UNREACHABLE, **fields}},
    )
    [route] = node.get("/api/v1/routes").json()["routes"]
    assert route["proof"] == proof
    is_unproven = proof in ("missing", "off")
    assert bool(route["remedy"]) is is_unproven

    colours = {
        "FORCE_COLOR": "1",
        "TERM": "xterm",
        "COLUMNS": "200",
    }
    listed = call(
        "route",
        "list",
        "--url",
        node.addresses()["operator"],
        env=colours,
    )
    assert words in listed.stdout
    assert (RED in listed.stdout) is is_unproven
    assert ("bfia-gateway route edit" in listed.stdout) is is_unproven


@pytest.mark.parametrize(
    "entry",
    [ME, "default"],
)
def test_a_route_without_senders_needs_no_proof(node, entry):
    set_routes(
        node,
        {entry: {"url": "https://127.0.0.1:9", "server_name": "gw"}},
    )
    [route] = node.get("/api/v1/routes").json()["routes"]
    assert route["proof"] is None
    assert signing_of(node.settings).result is Result.OK


# ---------------------------------------------------------------- a route that only sends


def test_a_job_with_an_unproven_partner_ends_by_polling(tmp_path):
    """The partner's callbacks are refused, and its answers are taken."""
    with (
        running(
            tmp_path / "me",
            listen=ANY_ADDRESS,
            engine=PATIENT_ENGINE,
        ) as me,
        running(
            tmp_path / "peer",
            PEER,
            engine=PATIENT_ENGINE,
        ) as peer,
    ):
        set_routes(
            me,
            {PEER: {"url": peer.addresses()["peer"]}},
        )
        set_routes(
            peer,
            {ME: {"url": me.addresses()["peer"]}},
        )

        job_id = run_job(tmp_path / "register", me, peer)

        assert me.get(f"/api/v1/jobs/{job_id}").json()["outcome"] == "SUCCEEDED"
        assert "SENDER_UNPROVEN" in me.get("/api/v1/audit").text
