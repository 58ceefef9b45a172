"""Attack C2: a certificate of the partners' authority that speaks for another node than its own."""

import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from cryptography import x509

from adapter.bfia.channel import calls, rpc
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound, TransportOutbound
from gateway.bootstrap.node import Gateway
from gateway.config import tls as peer_tls
from gateway.errors import Invalid
from route_table.certificates import pin
from tests.certificates import Authority, Files
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, running

OTHER, BEHIND, PINNED, NAMED = (
    "JG0100003300000030",
    "JG0100004400000040",
    "JG0100005500000050",
    "JG0100006600000060",
)
POLL = "/v1/interconn/schedule/task/poll"
INVOKE = "/v1/interconn/chan/invoke"


@dataclass
class Site:
    node: Gateway
    authority: Authority
    own: dict[str, Files]
    revoked: str
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def post(
        self,
        who: str,
        path: str,
        headers: dict[str, str],
        **body: Any,
    ) -> dict[str, Any]:
        """Send a request with the certificate of ``who``."""
        if who not in self.clients:
            context = ssl.create_default_context(cafile=self.authority.file)
            context.load_cert_chain(self.own[who].certificate, self.own[who].key)
            url = self.node.addresses()["peer"].replace("http://", "https://")
            self.clients[who] = httpx.Client(
                base_url=url,
                verify=context,
                trust_env=False,
                timeout=60,
            )
        return (
            self.clients[who]
            .post(path, headers=headers, **(body or {"json": {"task_id": "t"}}))
            .json()
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    authority = Authority(home / "tls")
    own = {node: authority.sign(node, "127.0.0.1", node) for node in (ME, PEER, OTHER)}
    own["nameless"] = authority.sign("nameless", "127.0.0.1")
    own[PINNED] = authority.sign("pinned", "10.0.0.1")
    own[NAMED] = authority.sign("named", "gw.partner.example")
    own["stolen"] = authority.sign("stolen", PEER)
    shown = x509.load_pem_x509_certificate(Path(own[PINNED].certificate).read_bytes())
    revoked = authority.revoke()
    url = "http://127.0.0.1:9"
    routes = {
        PEER: {"url": url},
        OTHER: {"url": url},
        BEHIND: {"via": OTHER},
        PINNED: {"url": url, "peer_certificate": pin(shown)},
        NAMED: {"url": url, "peer_certificate": "GW.partner.example, spare.partner.example"},
    }
    (home / "routes.yml").write_text(yaml.safe_dump(routes))
    listen = {name: {"bind": "127.0.0.1:0"} for name in ("peer", "container", "operator")}
    tls = {
        "certificate": own[ME].certificate,
        "key": own[ME].key,
        "client_ca": authority.file,
        "revoked": revoked,
    }
    with running(home, listen=listen | {"peer": listen["peer"] | {"tls": tls}}) as node:
        yield (site := Site(node, authority, own, revoked))
        for client in site.clients.values():
            client.close()


def by_grpc(
    site: Site,
    who: str,
    path: str,
    message: bytes,
    headers: dict[str, str],
) -> str:
    """Send a message with the certificate of ``who``, if any; return the code, or the status of a refusal."""
    files = site.own.get(who)
    shown = (
        (Path(files.key).read_bytes(), Path(files.certificate).read_bytes())
        if files
        else (None, None)
    )
    trusted = grpc.ssl_channel_credentials(Path(site.authority.file).read_bytes(), *shown)
    metadata = list(headers.items())
    with grpc.secure_channel(site.node.addresses()["peer"].partition("://")[2], trusted) as channel:
        try:
            if path.endswith("transport"):
                stream = channel.stream_stream(path)(iter([message]), metadata=metadata, timeout=60)
                answer = next(iter(stream))
            else:
                answer = channel.unary_unary(path)(message, metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(TransportOutbound.FromString(answer).code)


MESSAGE = Inbound(
    payload=PushInbound(topic="t", payload=b"hi").SerializeToString()
).SerializeToString()
TAKES, STREAMS, PARTS = (f"/{calls.SERVICE}/{name}" for name in ("invoke", "transport", "part"))
DENIED = ("E0000000403", "PERMISSION_DENIED")


def test_by_grpc_a_message_is_taken_only_from_the_node_of_the_certificate(site: Site):
    """Attack: who has a certificate of another node, or none, sends by gRPC in a partner's name."""
    about = {
        "x-ptp-session-id": "session_g",
        "x-ptp-source-node-id": PEER,
        "x-ptp-target-node-id": ME,
    }
    for path in (TAKES, STREAMS, PARTS):
        for who in (OTHER, "nameless"):
            assert by_grpc(site, who, path, MESSAGE, about) in DENIED
        assert by_grpc(site, "nobody", path, MESSAGE, about) == "UNAVAILABLE"
    assert by_grpc(site, OTHER, TAKES, MESSAGE, about | {"x-handed-on": "1"}) in DENIED
    named = Inbound(payload=b"hi", metadata=about).SerializeToString()
    assert by_grpc(site, OTHER, TAKES, named, {}) in DENIED
    for path in (TAKES, STREAMS):  # headers that name the sender truly, and one that names another
        assert by_grpc(site, OTHER, path, MESSAGE, about | {"x-ptp-from-node-id": OTHER}) in DENIED
    assert site.node.broker.backlog("session_g") == []
    for path in (TAKES, STREAMS):
        assert by_grpc(site, PEER, path, MESSAGE, about) == "E0000000000"


def test_what_is_for_containers_is_not_served_to_peers_by_grpc(site: Site):
    for method in rpc.METHODS[rpc.SERVICE]:
        about = {"x-ptp-session-id": "session_g", "x-ptp-token": "t"}
        assert by_grpc(site, PEER, f"/{rpc.SERVICE}/{method}", b"", about) == "UNIMPLEMENTED"


def reason(said: dict[str, Any]) -> str:
    return str(said.get("data", {}).get("reason", ""))


@pytest.mark.parametrize(
    ("who", "claimed", "taken"),
    [
        (PEER, PEER, True),
        (OTHER, PEER, False),
        (PEER, OTHER, False),
        ("nameless", PEER, False),
        ("nameless", None, False),  # before it names a node
        (OTHER, BEHIND, True),  # by the certificate of the relay that the route names
        (PEER, BEHIND, False),
        (PINNED, PINNED, True),
        (PEER, PINNED, False),
        (NAMED, NAMED, True),
        (PINNED, NAMED, False),
    ],
)
def test_a_certificate_speaks_only_for_the_node_it_is_bound_to(
    site: Site,
    who: str,
    claimed: str | None,
    taken: bool,
):
    said = site.post(who, POLL, {"x-source-node-id": claimed} if claimed else {})
    assert reason(said) == ("TASK_UNKNOWN" if taken else "CERTIFICATE_MISMATCH")


def test_a_message_is_taken_only_from_the_node_of_the_certificate(site: Site):
    about = {
        "x-ptp-version": "1",
        "x-ptp-session-id": "session_s",
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
    }
    for name in ("x-ptp-source-node-id", "x_ptp_source_node_id", "x-ptp-from-node-id"):
        for path in (INVOKE, INVOKE.replace("invoke", "part")):
            assert site.post(OTHER, path, about | {name: PEER}, json={})["code"] == "E0000000403"
        assert (
            site.post(PEER, INVOKE, about | {name: PEER}, json={"payload": "aGk="})["code"]
            == "E0000000000"
        )
    body = {"metadata": about | {"x-ptp-source-node-id": PEER}, "payload": ""}
    for headers in ({}, {"x-source-node-id": OTHER}):  # which do not let the body name another
        assert site.post(OTHER, INVOKE, headers, json=body)["code"] == "E0000000403"


def test_only_another_gateway_of_this_node_passes_on_what_others_sent(site: Site):
    about = {
        "x-ptp-version": "1",
        "x-ptp-session-id": "session_h",
        "x-ptp-topic": "t",
        "x-handed-on": "1",
    }
    about |= {"x-ptp-source-node-id": PEER, "x-ptp-target-node-id": ME}
    assert site.post(OTHER, INVOKE, about, json={})["code"] == "E0000000403"
    assert site.post(ME, INVOKE, about, json={"payload": "aGk="})["code"] == "E0000000000"
    del about["x-handed-on"]
    assert site.post(ME, INVOKE, about, json={})["code"] == "E0000000403"


def test_a_revoked_certificate_is_denied_within_two_seconds(
    site: Site, caplog: pytest.LogCaptureFixture
):
    def polled() -> str:
        return reason(site.post("stolen", POLL, {"x-source-node-id": PEER}))

    assert polled() != "CERTIFICATE_REVOKED"
    site.authority.revoke(site.own["stolen"].certificate)
    os.utime(site.revoked)
    wait_for(lambda: polled() == "CERTIFICATE_REVOKED")
    assert reason(site.post(PEER, POLL, {"x-source-node-id": PEER})) == "TASK_UNKNOWN"
    Path(site.revoked).write_text(
        "-----BEGIN X509 CRL-----\nhalf"
    )  # the last good list stays in force
    wait_for(lambda: polled() and "revocation list not accepted" in caplog.text)
    assert polled() == "CERTIFICATE_REVOKED"


def test_a_list_of_another_authority_is_refused_at_the_start(tmp_path: Path):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "another")
    own = ours.sign("node")
    tls = peer_tls.PeerTls(
        certificate=Path(own.certificate),
        key=Path(own.key),
        client_ca=Path(ours.file),
        revoked=Path(theirs.revoke()),
    )
    with pytest.raises(Invalid) as refused:
        peer_tls.served(tls)
    assert [p.path for p in refused.value.problems] == ["listen.peer.tls.revoked"]


def test_a_listener_beyond_loopback_without_certificates_is_warned_of():
    for bind, proven in (
        ("0.0.0.0:7380", False),
        ("127.0.0.1:7380", True),
        ("[::1]:1", True),
        ("gateway:1", False),
    ):
        assert (peer_tls.unproven(bind, None) == "") is proven, bind
