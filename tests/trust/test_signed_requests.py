"""Requests between nodes are signed: changed, repeated, of another's key, or unsigned they are refused."""

import gzip
import json
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.bootstrap.node import Gateway
from gateway.errors import NotAllowed, NotFound
from gateway.http.guard import MOST
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
from tests.trust.agreeing import route

OTHER, BEHIND, OPEN, CLOSED = (
    "JG0100003300000030",
    "JG0100004400000040",
    "JG0100005500000050",
    "JG0100006600000060",
)
CONTROL = "/v1/interconn/schedule"
POLL = f"{CONTROL}/task/poll"
PAIRS = {node: KeyPair(KEY_GENERATORS["ed25519"]()) for node in (PEER, OTHER, BEHIND, OPEN)}
VECTORS = json.loads((ROOT / "docs/signing-vectors.json").read_text())


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Give a node that is attacked, with its partner."""
    home = tmp_path_factory.mktemp("nodes")
    keys = {node: Keyring(home / node / "state").make("ed25519").public for node in (ME, PEER)}
    over: dict[str, Any] = {
        "limits": {"partner_requests_per_minute": 100_000},
        "fate": {"enabled": True},
    }
    with running(home / ME, **over) as me, running(home / PEER, PEER, **over) as peer:
        route(peer, {ME: {"url": me.addresses()["peer"], "keys": keys[ME]}})
        nowhere = {"url": "http://127.0.0.1:9"}
        route(
            me,
            {
                PEER: {
                    "url": peer.addresses()["peer"],
                    "keys": f"{keys[PEER]}, {PAIRS[PEER].public}",
                },
                OTHER: {**nowhere, "keys": PAIRS[OTHER].public},
                CLOSED: {**nowhere, "enabled": False},
                BEHIND: {"via": CLOSED, "keys": PAIRS[BEHIND].public},
                OPEN: {
                    **nowhere,
                    "keys": PAIRS[OPEN].public,
                    "signing": "accepted",
                },
            },
        )
        yield me, peer


@dataclass(frozen=True)
class Sent:
    """A request as it goes over the wire."""

    method: str = "POST"
    path: str = POLL
    query: str = ""
    body: bytes = b'{"task_id": "t", "role": "guest"}'
    headers: tuple[tuple[str, str], ...] = field(
        default=(("x-source-node-id", PEER), ("x-target-node-id", ME))
    )

    def signed(
        self,
        pair: KeyPair,
        created: int | None = None,
        target: str = ME,
    ) -> "Sent":
        named = dict(self.headers)
        hashed = digest(self.body)
        source = named["x-source-node-id"]
        signable = Signable(self.method, self.path, self.query, hashed, source, target)
        value = sign(pair, signable, uuid4().hex, int(time.time()) if created is None else created)
        return replace(
            self, headers=(*self.headers, ("content-digest", hashed), ("x-auth-sign", value))
        )

    def to(self, node: Gateway) -> dict[str, Any]:
        path = self.path + (f"?{self.query}" if self.query else "")
        headers = [*self.headers, ("content-type", "application/json")]
        said = ask(node, "peer", self.method, path, content=self.body, headers=headers).json()
        assert isinstance(said, dict)
        return said


def reason(said: dict[str, Any]) -> str:
    return str(said.get("data", {}).get("reason", ""))


def noted(node: Gateway, words: str) -> bool:
    """Tell whether the node's operators see a refusal."""
    found = ask(node, "operator", "GET", "/api/v1/audit").json()["audit"]
    return any(words in json.dumps(entry["detail"]) for entry in found)


# ---------------------------------------------------------------- what is signed, and by which standard


def test_the_vectors_of_the_rfc_and_the_sample_of_the_sm2_standard_hold():
    for vector in VECTORS["rfc9421"]:
        base = signature_base(
            [(f'"{name}"', value) for name, value in vector["components"]], vector["params"]
        )
        key, signature = public_key(vector["public_key"]), b64decode(vector["signature"])
        assert is_valid_signature(key, signature, base), vector["section"]
        assert not is_valid_signature(
            key, signature, base.replace(b"POST", b"GET").replace(b"200", b"201")
        )
    sample = VECTORS["sm2"]["sample"]
    key, content = public_key(sample["public_key"]), sample["content"].encode()
    assert is_valid_signature(key, b64decode(sample["signature"]), content)
    assert not is_valid_signature(key, b64decode(sample["signature"]), content + b".")


def test_a_signature_of_a_compressed_body_is_of_what_was_sent(nodes: tuple[Gateway, Gateway]):
    me, _ = nodes
    plain = Sent().signed(PAIRS[PEER])
    encoding = ("content-encoding", "gzip")
    compressed = Sent(body=gzip.compress(Sent.body), headers=(*Sent().headers, encoding))
    assert compressed.signed(PAIRS[PEER]).to(me) == plain.to(me)
    as_if_plain = replace(
        plain, body=compressed.body, headers=(*Sent().signed(PAIRS[PEER]).headers, encoding)
    )
    assert reason(as_if_plain.to(me)) == "SIGNATURE_REFUSED"


OURS = [*((VECTORS["key"], one) for one in VECTORS["requests"]), *[tuple(VECTORS["sm2"].values())]]


@pytest.mark.parametrize(
    ("key", "vector"), OURS, ids=("POST", "GET", "SM2, signed by the openssl command")
)
def test_our_own_vectors_hold(key: dict[str, str], vector: dict[str, Any]):
    named = {name: vector[name] for name in ("method", "path", "query", "source", "target")}
    signable = Signable(digest=digest(vector["body"].encode()), **named)
    verifier = Verifier(
        vector["target"],
        lambda: datetime.fromtimestamp(vector["created"], UTC),
        lambda signature, request, seconds: request,
    )
    found = verifier.check(
        signable, vector["body"].encode(), vector["x_auth_sign"], [key["public_key"]]
    )
    assert found == key["keyid"]


@pytest.mark.parametrize("algorithm", KEY_GENERATORS)
def test_two_gateways_sign_with_each_kind_of_key_and_through_a_rotation(
    nodes: tuple[Gateway, Gateway], algorithm: str
):
    me, peer = nodes
    ring = Keyring(peer.settings.state_dir)
    before, others = ring.pairs["signing"].public, PAIRS[PEER].public
    new = ring.make(algorithm).public
    for keys, change in ((f"{before}, {new}", ring.switch), (new, lambda: None)):
        edited = {"route": {"keys": f"{keys}, {others}"}}
        assert (
            ask(me, "operator", "PATCH", f"/api/v1/routes/{PEER}", json=edited).status_code == 200
        )
        for _ in range(2):
            with pytest.raises(NotFound):
                peer.protocol.participant(ME).poll_task("t", "guest", PEER)
            with pytest.raises(NotFound):
                peer.protocol.scheduler(ME).job_status("job-none", PEER)
            change()
    assert {step.name: step.result for step in peer.protocol.try_route(ME)}["way back"] is Result.OK
    with pytest.raises(NotFound):
        peer.protocol.participant(ME).stop_job(f"job-{algorithm}", "", None, PEER)
    assert wait_for(lambda: noted(me, ring.pairs["signing"].id))


# ---------------------------------------------------------------- attacks


def test_an_unsigned_request_is_refused_in_every_spelling_of_its_sender(
    nodes: tuple[Gateway, Gateway],
):
    me, _ = nodes
    target = ("x-target-node-id", ME)
    for name in ("x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id"):
        for path in (
            POLL,
            f"{CONTROL}/job/create",
            f"{CONTROL}/node/hello",
            "/v1/%69nterconn/schedule/task/poll",
        ):
            said = Sent(path=path, headers=((name, PEER), target)).to(me)
            assert reason(said) in ("SIGNATURE_REFUSED", "INVALID"), path
    assert (
        reason(Sent(headers=(("x-source-node-id", BEHIND), target)).to(me)) == "SIGNATURE_REFUSED"
    )
    fates = Sent(path="/v2/partner/job/start", body=b'{"job_id": "j"}')
    assert fates.to(me)["data"]["reason"] == "SIGNATURE_REFUSED"
    assert wait_for(lambda: noted(me, "SIGNATURE_MISSING"))
    assert (
        reason(replace(Sent(), body=b"{").to(me)) == "SIGNATURE_REFUSED"
    )  # its body is not even parsed
    assert reason(replace(Sent(), body=b"{").signed(PAIRS[PEER]).to(me)) == "INVALID"


TEXT = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=-", min_size=1, max_size=1
)
HEADERS = ("x-source-node-id", "x-target-node-id", "content-digest", "x-auth-sign")


@st.composite
def changes(draw: st.DrawFn) -> Any:
    """Draw what turns a signed request into another one."""
    kind = draw(
        st.sampled_from(
            ("body", "header", "auth", "drop", "twice", "method", "path", "query", "other")
        )
    )
    name, at, text = draw(st.sampled_from(HEADERS)), draw(st.integers(0, 600)), draw(TEXT)

    def put(
        sent: Sent,
        name: str,
        change: Any,
    ) -> Sent:
        return replace(
            sent, headers=tuple((n, change(v) if n == name else v) for n, v in sent.headers)
        )

    def one(value: str) -> str:
        place = at % len(value)
        return value[:place] + text + value[place + 1 :]

    match kind:
        case "body":
            return lambda sent: replace(sent, body=one(sent.body.decode()).encode())
        case "header":
            return lambda sent: put(sent, name, one)
        case "auth":
            return lambda sent: put(sent, "x-auth-sign", one)
        case "drop":
            return lambda sent: replace(
                sent, headers=tuple(h for h in sent.headers if h[0] != name)
            )
        case "twice":
            return lambda sent: replace(
                sent, headers=(*sent.headers, (name, dict(sent.headers)[name]))
            )
        case "method":
            return lambda sent: replace(sent, method="PUT")
        case "path":
            return lambda sent: replace(
                sent, path=sent.path.replace("task/poll", "task/poll".replace("p", "%70"))
            )
        case "query":
            return lambda sent: replace(sent, query=f"{sent.query}{text}")
    return lambda sent: put(sent, "x-source-node-id", lambda _: OTHER)


@given(change=changes())
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
)
def test_no_changed_request_is_accepted(nodes: tuple[Gateway, Gateway], change: Any):
    me, _ = nodes
    sent = Sent().signed(PAIRS[PEER])
    changed = change(sent)
    if changed != sent:
        said = changed.to(me)
        assert reason(said) in (
            "SIGNATURE_REFUSED",
            "NOT_AUTHORISED",
            "INVALID",
            "RELAY_NOT_ALLOWED",
        ) or (said["code"] in (404, 405))
    assert reason(sent.to(me)) == "TASK_UNKNOWN"  # what was refused does not use it up
    assert reason(sent.to(me)) == "SIGNATURE_REFUSED"


def test_every_gateway_of_a_node_refuses_a_repeated_request_at_any_time(
    nodes: tuple[Gateway, Gateway],
):
    me, _ = nodes
    sent = Sent().signed(PAIRS[PEER])
    with ThreadPoolExecutor(8) as pool:
        answers = [reason(said) for said in pool.map(lambda _: sent.to(me), range(8))]
    assert sorted(answers) == ["SIGNATURE_REFUSED"] * 7 + ["TASK_UNKNOWN"]
    assert wait_for(lambda: noted(me, "SIGNATURE_USED"))
    another = Verifier(ME, me.clock, SqlUsedSignatures(me.store, me.clock).first)
    named = dict(sent.headers)
    signable = Signable(sent.method, sent.path, sent.query, named["content-digest"], PEER, ME)
    with pytest.raises(NotAllowed) as refused:
        another.check(signable, sent.body, named["x-auth-sign"], [PAIRS[PEER].public])
    assert refused.value.reason == "SIGNATURE_USED"


def test_a_refused_signature_is_explained_to_operators_only(
    nodes: tuple[Gateway, Gateway],
):
    me, _ = nodes
    plain = Sent(
        path=f"{CONTROL}/job/stop"
    )  # what is refused again within a minute is counted, by path
    now, others = int(time.time()), plain.signed(PAIRS[OTHER])
    source, target, hashed, value = others.headers
    under_my_id = ("x-auth-sign", value[1].replace(PAIRS[OTHER].id, PAIRS[PEER].id))
    attacks = (
        ("SIGNATURE_MISSING", plain),
        ("SIGNATURE_KEY_UNKNOWN", others),
        ("not one of this message", replace(others, headers=(source, target, hashed, under_my_id))),
        ("SIGNATURE_EXPIRED", plain.signed(PAIRS[PEER], now - VALID_SECONDS - 60)),
        ("SIGNATURE_EXPIRED", plain.signed(PAIRS[PEER], now + VALID_SECONDS + 60)),
    )
    told = set()
    for words, sent in attacks:
        told.add(json.dumps(sent.to(me)))
        assert wait_for(lambda words=words: noted(me, words))
    assert len(told) == 1 and "SIGNATURE_REFUSED" in told.pop()
    assert reason(Sent().signed(PAIRS[PEER], target=OTHER).to(me)) == "SIGNATURE_REFUSED"


def test_forged_requests_do_not_hide_refusals_of_the_real_partner(tmp_path: Path):
    with running(tmp_path) as me:
        route(me, {PEER: {"url": "http://127.0.0.1:9", "keys": PAIRS[PEER].public}})
        paths = ask(me, "peer", "GET", "/openapi.json").json()["paths"]
        forged = [
            path for path, ways in paths.items() if path.startswith(CONTROL) and "post" in ways
        ]
        for path in [
            *forged,
            *(f"/v1/%69nterconn{path.removeprefix('/v1/interconn')}" for path in forged),
        ]:
            assert reason(Sent(path=path).to(me)) == "SIGNATURE_REFUSED"
        assert len(forged) > MOST
        assert reason(Sent().signed(PAIRS[PEER]).to(me)) == "TASK_UNKNOWN"
        assert wait_for(lambda: noted(me, "TASK_UNKNOWN"))


def test_a_blank_before_its_id_does_not_exempt_a_removed_partner(tmp_path: Path):
    spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id="job-former")
    nowhere = {"url": "http://127.0.0.1:9"}
    with running(tmp_path) as me:
        route(me, {PEER: {**nowhere, "keys": PAIRS[PEER].public}, OTHER: nowhere})
        me.store.local_jobs.add(replace(a_local_job(), spec=spec, node=ME), spec.flow_id)
        route(me, {OTHER: nowhere})
        for named in (PEER.encode(), b"\xa0" + PEER.encode(), PEER.encode() + b"\x85"):
            headers = {"x-source-node-id": named, "x-target-node-id": ME}
            said = ask(
                me,
                "peer",
                "POST",
                f"{CONTROL}/job/stop",
                json={"job_id": "job-former"},
                headers=headers,
            )
            assert reason(said.json()) == "SIGNATURE_REFUSED"


def test_a_key_is_revoked_by_an_edit_of_the_route(nodes: tuple[Gateway, Gateway]):
    me, _ = nodes
    assert reason(Sent().signed(PAIRS[PEER]).to(me)) == "TASK_UNKNOWN"
    before = me.routes.table.routes[PEER].keys
    left = ", ".join(key for key in before if key != PAIRS[PEER].public)
    for keys, said in ((left, "SIGNATURE_REFUSED"), (", ".join(before), "TASK_UNKNOWN")):
        edited = {"route": {"keys": keys}}
        assert (
            ask(me, "operator", "PATCH", f"/api/v1/routes/{PEER}", json=edited).status_code == 200
        )
        assert reason(Sent().signed(PAIRS[PEER]).to(me)) == said


def test_where_signatures_are_accepted_only_a_wrong_one_is_refused(nodes: tuple[Gateway, Gateway]):
    me, _ = nodes
    unsigned = Sent(headers=(("x-source-node-id", OPEN), ("x-target-node-id", ME)))
    said_so = replace(unsigned, headers=(*unsigned.headers, ("x-auth-sign", "unsigned")))
    for sent in (unsigned, said_so, unsigned.signed(PAIRS[OPEN])):
        assert reason(sent.to(me)) == "TASK_UNKNOWN"
    assert reason(unsigned.signed(PAIRS[PEER]).to(me)) == "SIGNATURE_REFUSED"
    edited = {"route": {"signing": "off"}}
    assert ask(me, "operator", "PATCH", f"/api/v1/routes/{OPEN}", json=edited).status_code == 200
    assert reason(unsigned.signed(PAIRS[PEER]).to(me)) == "TASK_UNKNOWN"


def test_a_request_that_is_signed_for_another_node_is_refused():
    """Attack: who was sent a request passes it on as one for us; or writes what is no base64 at all."""
    pair = PAIRS[PEER]
    verifier = Verifier(ME, lambda: datetime.now(UTC), lambda _, request, __: request)
    for target in (ME, OTHER):
        signable = Signable("POST", POLL, "", digest(b""), PEER, target)
        value = sign(pair, signable, str(uuid4()), int(time.time()))
        if target == ME:
            assert verifier.check(signable, b"", value, [pair.public])
            cut = value.rpartition("signature=:")[0] + "signature=:AAAAA:"
            with pytest.raises(NotAllowed, match="is not one of this message"):
                verifier.check(signable, b"", cut, [pair.public])
            continue
        with pytest.raises(NotAllowed, match=f"signed for '{OTHER}'"):
            verifier.check(signable, b"", value, [pair.public])


def test_what_is_no_longer_valid_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    now = Mock(monotonic=Mock(return_value=100.0))
    monkeypatch.setattr("gateway.identity.signatures.time", now)
    used = UsedSignatures(10.0)
    assert used.accept("a", "first") and not used.accept("a", "second")
    now.monotonic.return_value = 111.0
    assert used.accept("b", "third") and list(used._uses) == ["b"]
