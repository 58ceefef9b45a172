"""Address, certificate and key of every command and refusal of a peer are recorded as proof."""

import asyncio
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from unittest.mock import Mock

import pytest
from anyio import CapacityLimiter
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from adapter.fate.signing import Signatures
from gateway.auth import origin
from gateway.config.schema.partners import FateApp, FateSite
from gateway.errors import NotAllowed
from gateway.http.guard import MAX_WRITTEN, Partners, Refusals, noting_refusals
from gateway.http.peers import noting_origin
from tests.adapter.fate.flowing import SIGNS, Flow, dag, fate_world, party
from tests.builders import a_spec
from tests.certificates import Authority
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.trust.peer_requests import CONTROL

FROM_HERE = {"from": "127.0.0.1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two nodes; `THIRD` is a partner of `ME`."""
    with fate_world(tmp_path_factory.mktemp("nodes")) as world:
        yield world


def send_command(world, path, body, sender=THIRD):
    """Send a command to `ME`; return the body of the response."""
    headers = {"x-source-node-id": sender}
    response = ask(world.me, "peer", "POST", CONTROL + path, json=body, headers=headers)
    return response.json()


def find_refusal(world, who, ids):
    """Return the refusal of a request about these ids; None if it is not in the audit yet."""
    query = {
        "who": who,
        "limit": "1000",
    }
    audit = ask(world.me, "operator", "GET", "/api/v1/audit", params=query).json()["audit"]
    for entry in audit:
        if ids.items() <= entry["detail"].get("asked", {}).items():
            return entry
    return None


def wait_for_refusal(world, who, **ids):
    """Return the refusal of a request about these ids, which is written after the response."""
    return wait_for(lambda: find_refusal(world, who, ids), 10, 0.05)


def timeline(world, job_id):
    """Return the entries of a job's timeline, by event."""
    return {entry.event: entry for entry in world.me.store.timeline(job_id)}


def a_job(job_id, **changes):
    """Build the body of a job of `THIRD`."""
    spec = a_spec(
        "a",
        {
            "guest": (THIRD,),
            "host": (ME,),
        },
        job_id=job_id,
    )
    return create_body(spec, PROFILES["spec"]) | changes


# ---------------------------------------------------------------- commands that are obeyed

COMMANDS = [
    ("/job/create", a_job("job-proof")),
    ("/job/start", {"job_id": "job-proof"}),
    ("/task/start", {"job_id": "job-proof", "task_id": "t-proof", "task_name": "a"}),
    ("/job/stop", {"job_id": "job-proof", "task_name": "a"}),
    ("/job/stop", {"job_id": "job-proof"}),
]
EVENTS = [
    "job READY here",
    "job RUNNING here",
    "task accepted",
    "task stop asked",
    "job FINISHED here",
]


def test_a_command_names_node_and_address_in_the_timeline(world):
    for path, body in COMMANDS:
        assert send_command(world, path, body)["code"] == 0

    entries = timeline(world, "job-proof")
    for event in EVENTS:
        assert entries[event].by == THIRD, event
        assert entries[event].detail["origin"] == FROM_HERE, event
    for entry in entries.values():
        assert entry.by == THIRD or "origin" not in entry.detail


def sign_as_site(token):
    """Return the headers of a FATE site that signs with a token."""
    app = FateApp(
        app_id="1",
        app_token=token,
    )
    return Signatures({ME: FateSite(sends=app)}).sign(ME, SIGNS)


def test_a_signed_command_names_the_key(world):
    job_id = "202411220101020000801"
    flow = Flow(world)
    body = {**dag(SIGNS), **party(job_id)}

    assert flow.code("/partner/job/create", body, **sign_as_site("secret")) == 0

    entry = timeline(world, job_id)["job READY here"]
    assert entry.detail["origin"] == FROM_HERE | {"key": "1"}


def test_a_wrongly_signed_command_names_no_key(world):
    job_id = "202411220101020000802"
    flow = Flow(world)
    body = {**dag(SIGNS), **party(job_id)}
    assert flow.code("/partner/job/create", body, **sign_as_site("secret")) == 0

    assert flow.code("/partner/job/stop", party(job_id), **sign_as_site("guessed")) != 0

    refusal = wait_for_refusal(
        world,
        "somebody",
        job_id=job_id,
    )
    assert refusal["detail"]["reason"] == "SIGNATURE_WRONG"
    assert "key" not in refusal["detail"]


# ---------------------------------------------------------------- commands that are refused


def a_job_of_others(job_id):
    """Build the body of a job in which this node plays no part."""
    body = a_job(job_id, role="guest")
    body["config"]["role"] = {
        "guest": [THIRD],
        "host": [PEER],
    }
    return body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (a_job("job-not-fitting", dag={"components": []}), "INVALID"),
        (a_job("job-unreadable", config=5), "INVALID"),
        (a_job_of_others("job-of-others"), "NOT_A_PARTY"),
    ],
    ids=["not fitting", "unreadable", "of others"],
)
def test_a_refused_job_is_in_the_audit_with_its_reason(world, body, reason):
    assert send_command(world, "/job/create", body)["data"]["reason"] == reason

    refusal = wait_for_refusal(
        world,
        f"node {THIRD}",
        job_id=body["job_id"],
    )
    assert refusal["action"] == f"POST {CONTROL}/job/create"
    assert refusal["code"] >= 400
    assert refusal["detail"]["reason"] == reason
    assert refusal["detail"]["from"] == "127.0.0.1"
    assert refusal["detail"]["message"]


def test_a_flood_of_unknown_nodes_hides_no_refusal_of_a_partner(world):
    for number in range(2 * MAX_WRITTEN):
        send_command(
            world,
            "/job/create",
            a_job("job-flood"),
            sender=f"JG{number:016}",
        )

    response = send_command(world, "/job/stop", {"job_id": "job-hidden"})

    assert response["data"]["reason"] == "JOB_UNKNOWN"
    refusal = wait_for_refusal(
        world,
        f"node {THIRD}",
        job_id="job-hidden",
    )
    assert refusal["detail"]["reason"] == "JOB_UNKNOWN"


class RefusingApp:
    """An ASGI application that refuses every request, behind the layer that records refusals."""

    def __init__(self, proof):
        self.proof = proof  # the field of the origin that proves the sender
        self.recorded = []  # node and action of each refusal
        partners = Partners(
            Mock(return_value=True),
            lru_cache(self._refusals),
            self._refusals(),
        )
        self.app = noting_origin(
            noting_refusals(
                self._refuse,
                self._refusals(),
                Mock(return_value=""),
                CapacityLimiter(1),
                partners,
            )
        )

    def _refusals(self, _node=""):
        return Refusals(self._record, lambda: datetime.now(UTC))

    def _record(self, _time, who, action, *_):
        self.recorded.append((who, action))

    async def _refuse(self, scope, receive, send):
        origin().node = scope["sender"]
        setattr(origin(), self.proof, scope["proof"])
        scope["state"] = {"refused": NotAllowed("no")}

    async def send(self, sender, path, proof=""):
        """Send a request in a node's name, by default without a proof."""
        scope = {
            "type": "http",
            "client": ("192.0.2.7", 5),
            "sender": sender,
            "proof": proof,
            "path": path,
            "method": "POST",
            "headers": [],
        }
        await self.app(scope, None, None)


@pytest.mark.parametrize("proof", ["key", "fingerprint"])
def test_false_claims_and_other_partners_hide_no_refusal_of_a_partner(proof):
    app = RefusingApp(proof)

    async def attack():
        for number in range(2 * MAX_WRITTEN):
            await app.send(PEER, f"/claimed-{number}")
            await app.send(THIRD, f"/{number}", "proof of the third")
        await app.send(PEER, "/its-own", "proof of the peer")

    asyncio.run(attack())
    assert (f"node {PEER}", "POST /its-own") in app.recorded
    assert len(app.recorded) == 2 * MAX_WRITTEN + 1


# ---------------------------------------------------------------- certificates


def origin_of_request(**scope):
    """Return the origin that is recorded for a request."""
    details = []

    async def record_origin(scope, receive, send):
        details.append(origin().detail())

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    request = {
        "type": "http",
        "client": ("192.0.2.7", 5),
        "headers": [(b"x-client-cert", b"me")],
        **scope,
    }
    asyncio.run(noting_origin(record_origin)(request, receive, send))
    return details.pop()


def test_a_certificate_is_named_by_subject_and_fingerprint(tmp_path):
    """The server puts it into the scope; a header with the same name has no effect."""
    pem = Path(Authority(tmp_path).sign("partner").certificate).read_text()
    fingerprint = x509.load_pem_x509_certificate(pem.encode()).fingerprint(SHA256())

    extensions = {"tls": {"client_cert_chain": [pem]}}

    assert origin_of_request(extensions=extensions) == {
        "from": "192.0.2.7",
        "certificate": "CN=partner",
        "sha256": fingerprint.hex(),
    }


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"extensions": {"tls": {"client_cert_chain": []}}},
    ],
    ids=["without TLS", "without a certificate"],
)
def test_a_request_without_a_certificate_has_its_address_only(scope):
    assert origin_of_request(**scope) == {"from": "192.0.2.7"}
    assert origin().detail() == {}
