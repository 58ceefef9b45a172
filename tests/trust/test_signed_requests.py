"""Requests between nodes are signed: changed, repeated, unsigned and foreign ones are refused."""

import gzip
import json
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from unittest.mock import Mock
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NotAllowed, NotFound
from gateway.http.guard import MAX_WRITTEN
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring, is_valid_signature
from gateway.identity.signatures import (
    VALID_SECONDS,
    Signable,
    UsedSignatures,
    Verifier,
    digest,
    sign,
    signature_base,
)
from gateway.runtime.trials import Result
from gateway.store.repositories import SqlUsedSignatures
from route_table.certificates import public_key
from tests.builders import a_local_job, a_spec
from tests.e2e.nodes import ROOT, wait_for
from tests.inprocess import ME, PEER, ask, running
from tests.trust.agreeing import edit_route, set_routes
from tests.trust.peer_requests import CONTROL, POLL, PeerRequest, reason_of
from tests.world import UNREACHABLE

OTHER = "JG0100003300000030"
BEHIND = "JG0100004400000040"  # is reached by way of `CLOSED`
OPEN = "JG0100005500000050"  # its requests may be unsigned
CLOSED = "JG0100006600000060"  # its route is disabled
PAIRS = {node: KeyPair(KEY_GENERATORS["ed25519"]()) for node in (PEER, OTHER, BEHIND, OPEN)}
VECTORS = json.loads((ROOT / "docs/signing-vectors.json").read_text())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Give a node under attack and its partner, which has a second key in `PAIRS`."""
    home = tmp_path_factory.mktemp("nodes")
    my_key = Keyring(home / ME / "state").make("ed25519").public
    peer_key = Keyring(home / PEER / "state").make("ed25519").public
    options = {
        "limits": {"partner_requests_per_minute": 100_000},
        "fate": {"enabled": True},
    }
    with (
        running(home / ME, **options) as me,
        running(home / PEER, PEER, **options) as peer,
    ):
        set_routes(
            peer,
            {ME: {"url": me.addresses()["peer"], "keys": my_key}},
        )
        routes = {
            PEER: {
                "url": peer.addresses()["peer"],
                "keys": f"{peer_key}, {PAIRS[PEER].public}",
            },
            OTHER: {**UNREACHABLE, "keys": PAIRS[OTHER].public},
            CLOSED: {**UNREACHABLE, "enabled": False},
            BEHIND: {
                "via": CLOSED,
                "keys": PAIRS[BEHIND].public,
            },
            OPEN: {**UNREACHABLE, "keys": PAIRS[OPEN].public, "signing": "accepted"},
        }
        set_routes(me, routes)
        yield me, peer


@pytest.fixture
def me(nodes):
    """Give the node under attack."""
    return nodes[0]


def audit_mentions(node, text):
    """Return whether the audit shows a text to the node's operators."""
    audit = ask(node, "operator", "GET", "/api/v1/audit").json()["audit"]
    return any(text in json.dumps(entry["detail"]) for entry in audit)


def wait_for_audit(node, text):
    """Wait for a text in the audit, which is written after the response."""
    assert wait_for(lambda: audit_mentions(node, text))


# ---------------------------------------------------------------- what a signature covers


@pytest.mark.parametrize(
    "vector",
    VECTORS["rfc9421"],
    ids=[vector["section"] for vector in VECTORS["rfc9421"]],
)
def test_the_vectors_of_the_rfc_hold(vector):
    components = [(f'"{name}"', value) for name, value in vector["components"]]
    base = signature_base(components, vector["params"])
    key = public_key(vector["public_key"])
    signature = b64decode(vector["signature"])

    assert is_valid_signature(key, signature, base)
    changed = base.replace(b"POST", b"GET").replace(b"200", b"201")
    assert not is_valid_signature(key, signature, changed)


def test_the_sample_of_the_sm2_standard_holds():
    sample = VECTORS["sm2"]["sample"]
    key = public_key(sample["public_key"])
    content = sample["content"].encode()
    signature = b64decode(sample["signature"])

    assert is_valid_signature(key, signature, content)
    assert not is_valid_signature(key, signature, content + b".")


OUR_VECTORS = [(VECTORS["key"], vector) for vector in VECTORS["requests"]]
OUR_VECTORS.append(tuple(VECTORS["sm2"].values()))


@pytest.mark.parametrize(
    ("key", "vector"), OUR_VECTORS, ids=("POST", "GET", "SM2, signed by the openssl command")
)
def test_our_own_vectors_hold(key, vector):
    body = vector["body"].encode()
    signable = Signable(
        vector["method"],
        vector["path"],
        vector["query"],
        digest(body),
        vector["source"],
        vector["target"],
    )
    created = datetime.fromtimestamp(vector["created"], UTC)
    verifier = a_verifier(vector["target"], created)

    key_id = verifier.check(
        signable,
        body,
        vector["x_auth_sign"],
        [key["public_key"]],
    )

    assert key_id == key["keyid"]


def a_verifier(node, now):
    """Build a verifier for which each signature is used for the first time."""

    def first_use(signature, request, seconds):
        return request

    return Verifier(node, Mock(return_value=now), first_use)


def test_a_signature_of_a_compressed_body_covers_the_compressed_bytes(me):
    plain = PeerRequest().signed(PAIRS[PEER])
    compressed = PeerRequest(body=gzip.compress(PeerRequest.body))
    compressed = compressed.with_header("content-encoding", "gzip")
    assert compressed.signed(PAIRS[PEER]).send_to(me) == plain.send_to(me)

    signed_before_compression = replace(
        compressed, headers=PeerRequest().signed(PAIRS[PEER]).headers
    ).with_header("content-encoding", "gzip")
    assert signed_before_compression.refusal_of(me) == "SIGNATURE_REFUSED"


@pytest.mark.parametrize("algorithm", KEY_GENERATORS)
def test_each_kind_of_key_signs_and_stays_usable_through_a_rotation(nodes, algorithm):
    me, peer = nodes
    ring = Keyring(peer.settings.state_dir)
    old_key = ring.pairs["signing"].public
    second_key = PAIRS[PEER].public
    new_key = ring.make(algorithm).public

    edit_route(me, PEER, keys=f"{old_key}, {new_key}, {second_key}")
    check_requests_are_served(peer)
    ring.switch()
    check_requests_are_served(peer)
    edit_route(me, PEER, keys=f"{new_key}, {second_key}")
    check_requests_are_served(peer)

    results = {step.name: step.result for step in peer.protocol.try_route(ME)}
    assert results["way back"] is Result.OK
    with pytest.raises(NotFound):
        peer.protocol.participant(ME).stop_job(f"job-{algorithm}", "", None, PEER)
    wait_for_audit(me, ring.pairs["signing"].id)


def check_requests_are_served(peer):
    """Check that signed requests of `PEER` fail only because they are about unknown things."""
    with pytest.raises(NotFound):
        peer.protocol.participant(ME).poll_task("t", "guest", PEER)
    with pytest.raises(NotFound):
        peer.protocol.scheduler(ME).job_status("job-none", PEER)


# ---------------------------------------------------------------- unsigned requests


@pytest.mark.parametrize(
    "spelling", ["x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id"]
)
@pytest.mark.parametrize(
    "path",
    [
        POLL,
        f"{CONTROL}/job/create",
        f"{CONTROL}/node/hello",
        "/v1/%69nterconn/schedule/task/poll",
    ],
)
def test_an_unsigned_request_is_refused_in_every_spelling(me, spelling, path):
    headers = (
        (spelling, PEER),
        ("x-target-node-id", ME),
    )
    request = PeerRequest(
        path=path,
        headers=headers,
    )
    assert request.refusal_of(me) in ("SIGNATURE_REFUSED", "INVALID")


def test_an_unsigned_request_of_a_node_behind_a_relay_is_refused(me):
    request = PeerRequest().with_header("x-source-node-id", BEHIND)
    assert request.refusal_of(me) == "SIGNATURE_REFUSED"


def test_an_unsigned_request_in_fates_protocol_is_refused(me):
    request = PeerRequest(
        path="/v2/partner/job/start",
        body=b'{"job_id": "j"}',
    )
    assert request.refusal_of(me) == "SIGNATURE_REFUSED"


def test_the_body_of_an_unsigned_request_is_not_parsed(me):
    invalid = PeerRequest(body=b"{")
    assert invalid.refusal_of(me) == "SIGNATURE_REFUSED"
    assert invalid.signed(PAIRS[PEER]).refusal_of(me) == "INVALID"


def test_an_unsigned_request_is_in_the_audit(me):
    assert PeerRequest().refusal_of(me) == "SIGNATURE_REFUSED"
    wait_for_audit(me, "SIGNATURE_MISSING")


# ---------------------------------------------------------------- changed requests

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=-"
HEADERS = ("x-source-node-id", "x-target-node-id", "content-digest", "x-auth-sign")
KINDS = (
    "body",
    "header",
    "signature",
    "header removed",
    "header twice",
    "method",
    "spelling of the path",
    "query",
    "sender",
)


@dataclass(frozen=True)
class Change:
    """A change of a signed request on its way."""

    kind: str
    header: str
    position: int  # of a changed character, modulo the length of the text
    character: str

    def apply(self, request):
        """Return the changed request."""
        match self.kind:
            case "body":
                body = self._change_character(request.body.decode())
                return replace(
                    request,
                    body=body.encode(),
                )
            case "header":
                return self._change_header(request, self.header)
            case "signature":
                return self._change_header(request, "x-auth-sign")
            case "header removed":
                headers = dict(request.headers)
                del headers[self.header]
                return replace(
                    request,
                    headers=tuple(headers.items()),
                )
            case "header twice":
                repeated = (self.header, request.header(self.header))
                return replace(request, headers=(*request.headers, repeated))
            case "method":
                return replace(request, method="PUT")
            case "spelling of the path":
                return replace(
                    request,
                    path=request.path.replace("task/poll", "task/%70oll"),
                )
            case "query":
                return replace(
                    request,
                    query=request.query + self.character,
                )
        return request.with_header("x-source-node-id", OTHER)

    def _change_header(self, request, name):
        return request.with_header(
            name,
            self._change_character(request.header(name)),
        )

    def _change_character(self, text):
        position = self.position % len(text)
        return text[:position] + self.character + text[position + 1 :]


CHANGES = st.builds(
    Change,
    kind=st.sampled_from(KINDS),
    header=st.sampled_from(HEADERS),
    position=st.integers(0, 600),
    character=st.sampled_from(CHARACTERS),
)


@given(change=CHANGES)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
)
def test_no_changed_request_is_accepted(nodes, change):
    me, _ = nodes
    request = PeerRequest().signed(PAIRS[PEER])
    changed = change.apply(request)

    if changed != request:
        check_is_refused(changed.send_to(me))

    # A refused copy does not use up the signature.
    assert request.refusal_of(me) == "TASK_UNKNOWN"
    assert request.refusal_of(me) == "SIGNATURE_REFUSED"


def check_is_refused(response):
    """Check that a changed request was refused, or met no path."""
    if response["code"] in (404, 405):
        return
    assert reason_of(response) in (
        "SIGNATURE_REFUSED",
        "NOT_AUTHORISED",
        "INVALID",
        "RELAY_NOT_ALLOWED",
    )


# ---------------------------------------------------------------- repeated and foreign signatures


def test_every_gateway_of_a_node_refuses_a_repeated_request_at_any_time(me):
    request = PeerRequest().signed(PAIRS[PEER])
    with ThreadPoolExecutor(8) as pool:
        reasons = list(pool.map(request.refusal_of, [me] * 8))
    assert sorted(reasons) == ["SIGNATURE_REFUSED"] * 7 + ["TASK_UNKNOWN"]
    wait_for_audit(me, "SIGNATURE_USED")

    another_gateway = Verifier(
        ME,
        me.clock,
        SqlUsedSignatures(me.store, me.clock).first,
    )
    body_digest = request.header("content-digest")
    signable = Signable(
        request.method,
        request.path,
        request.query,
        body_digest,
        PEER,
        ME,
    )
    signature = request.header("x-auth-sign")
    with pytest.raises(NotAllowed) as refusal:
        another_gateway.check(
            signable,
            request.body,
            signature,
            [PAIRS[PEER].public],
        )
    assert refusal.value.reason == "SIGNATURE_USED"


def test_a_refused_signature_is_explained_to_operators_only(me):
    # A path of its own: refusals of one path within a minute are counted, not written again.
    unsigned = PeerRequest(path=f"{CONTROL}/job/stop")
    now = int(time.time())
    by_other_key = unsigned.signed(PAIRS[OTHER])
    signature = by_other_key.header("x-auth-sign")
    with_wrong_key_id = signature.replace(
        PAIRS[OTHER].id,
        PAIRS[PEER].id,
    )
    attacks = (
        ("SIGNATURE_MISSING", unsigned),
        ("SIGNATURE_KEY_UNKNOWN", by_other_key),
        ("not one of this message", by_other_key.with_header("x-auth-sign", with_wrong_key_id)),
        (
            "SIGNATURE_EXPIRED",
            unsigned.signed(
                PAIRS[PEER],
                now - VALID_SECONDS - 60,
            ),
        ),
        (
            "SIGNATURE_EXPIRED",
            unsigned.signed(
                PAIRS[PEER],
                now + VALID_SECONDS + 60,
            ),
        ),
    )

    responses = set()
    for explanation, request in attacks:
        responses.add(json.dumps(request.send_to(me)))
        wait_for_audit(me, explanation)

    [response] = responses
    assert "SIGNATURE_REFUSED" in response


def test_a_signature_for_another_node_is_refused_by_the_listener(me):
    request = PeerRequest().signed(PAIRS[PEER], target=OTHER)
    assert request.refusal_of(me) == "SIGNATURE_REFUSED"


def test_a_verifier_names_the_node_that_a_signature_is_for():
    """Attack: a node forwards a request that it was sent itself."""
    signable, signature = sign_empty_poll(target=OTHER)
    verifier = a_verifier(ME, datetime.now(UTC))
    with pytest.raises(NotAllowed, match=f"signed for '{OTHER}'"):
        verifier.check(signable, b"", signature, [PAIRS[PEER].public])


def test_a_signature_that_is_not_base64_is_refused():
    signable, signature = sign_empty_poll(target=ME)
    verifier = a_verifier(ME, datetime.now(UTC))
    assert verifier.check(
        signable,
        b"",
        signature,
        [PAIRS[PEER].public],
    )

    cut = signature.rpartition("signature=:")[0] + "signature=:AAAAA:"
    with pytest.raises(NotAllowed, match="is not one of this message"):
        verifier.check(
            signable,
            b"",
            cut,
            [PAIRS[PEER].public],
        )


def sign_empty_poll(target):
    """Return a request of `PEER` without a body, and its signature."""
    signable = Signable(
        "POST",
        POLL,
        "",
        digest(b""),
        PEER,
        target,
    )
    return signable, sign(
        PAIRS[PEER],
        signable,
        str(uuid4()),
        int(time.time()),
    )


def test_expired_signatures_are_forgotten(monkeypatch):
    clock = Mock(return_value=100.0)
    monkeypatch.setattr("gateway.identity.signatures.time", Mock(monotonic=clock))
    used = UsedSignatures(10.0)
    assert used.accept("a", "first")
    assert not used.accept("a", "second")

    clock.return_value = 111.0

    assert used.accept("b", "third")
    assert len(used) == 1


# ---------------------------------------------------------------- routes and refusals


def test_forged_requests_do_not_hide_refusals_of_the_real_partner(tmp_path):
    with running(tmp_path) as me:
        set_routes(me, {PEER: {**UNREACHABLE, "keys": PAIRS[PEER].public}})
        paths = control_paths(me)
        assert len(paths) > MAX_WRITTEN

        for path in paths:
            assert PeerRequest(path=path).refusal_of(me) == "SIGNATURE_REFUSED"
            respelled = path.replace("/v1/interconn", "/v1/%69nterconn")
            assert PeerRequest(path=respelled).refusal_of(me) == "SIGNATURE_REFUSED"

        assert PeerRequest().signed(PAIRS[PEER]).refusal_of(me) == "TASK_UNKNOWN"
        wait_for_audit(me, "TASK_UNKNOWN")


def control_paths(node):
    """Return the paths of the peers' listener that take commands."""
    paths = ask(node, "peer", "GET", "/openapi.json").json()["paths"]
    commands = [path for path, methods in paths.items() if "post" in methods]
    return [path for path in commands if path.startswith(CONTROL)]


@pytest.mark.parametrize(
    "sender",
    [PEER.encode(), b"\xa0" + PEER.encode(), PEER.encode() + b"\x85"],
    ids=["plain", "a no-break space before", "a line break after"],
)
def test_a_blank_around_its_id_does_not_exempt_a_removed_partner(tmp_path, sender):
    spec = a_spec(
        "a",
        {
            "guest": (PEER,),
            "host": (ME,),
        },
        job_id="job-former",
    )
    with running(tmp_path) as me:
        partner = {**UNREACHABLE, "keys": PAIRS[PEER].public}
        set_routes(me, {PEER: partner, OTHER: UNREACHABLE})
        me.store.local_jobs.add(
            replace(
                a_local_job(),
                spec=spec,
                node=ME,
            ),
            spec.flow_id,
        )
        set_routes(me, {OTHER: UNREACHABLE})

        headers = {
            "x-source-node-id": sender,
            "x-target-node-id": ME,
        }
        body = {"job_id": "job-former"}
        response = ask(
            me,
            "peer",
            "POST",
            f"{CONTROL}/job/stop",
            json=body,
            headers=headers,
        )

        assert reason_of(response.json()) == "SIGNATURE_REFUSED"


def test_a_key_is_revoked_by_an_edit_of_the_route(me):
    before = me.routes.table.routes[PEER].keys
    revoked = PAIRS[PEER].public
    remaining = [key for key in before if key != revoked]
    assert PeerRequest().signed(PAIRS[PEER]).refusal_of(me) == "TASK_UNKNOWN"

    edit_route(
        me,
        PEER,
        keys=", ".join(remaining),
    )
    assert PeerRequest().signed(PAIRS[PEER]).refusal_of(me) == "SIGNATURE_REFUSED"

    edit_route(
        me,
        PEER,
        keys=", ".join(before),
    )
    assert PeerRequest().signed(PAIRS[PEER]).refusal_of(me) == "TASK_UNKNOWN"


def test_where_signatures_are_accepted_only_a_wrong_one_is_refused(me):
    unsigned = PeerRequest().with_header("x-source-node-id", OPEN)
    declared_unsigned = unsigned.with_header("x-auth-sign", "unsigned")
    assert unsigned.refusal_of(me) == "TASK_UNKNOWN"
    assert declared_unsigned.refusal_of(me) == "TASK_UNKNOWN"
    assert unsigned.signed(PAIRS[OPEN]).refusal_of(me) == "TASK_UNKNOWN"
    assert unsigned.signed(PAIRS[PEER]).refusal_of(me) == "SIGNATURE_REFUSED"

    edit_route(me, OPEN, signing="off")
    assert unsigned.signed(PAIRS[PEER]).refusal_of(me) == "TASK_UNKNOWN"
