"""Attack: a certificate of the partners' authority is used in another node's name."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509

from adapter.bfia.channel import grpc_client, grpc_server
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound, TransportOutbound
from gateway.bootstrap.peer_proof import message_risk
from gateway.config import tls as peer_tls
from gateway.config.loader import load
from gateway.errors import Invalid, NotAllowed
from gateway.http.peers import PeerIdentity
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from route_table.certificates import pin
from route_table.document import parse
from route_table.model import DEFAULT_ENTRY, Route, RouteTable
from tests.certificates import Authority, Files
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node
from tests.trust.peer_requests import POLL, reason_of
from tests.world import UNREACHABLE

OTHER = "JG0100003300000030"
BEHIND = "JG0100004400000040"  # is reached by way of `OTHER`
PINNED = "JG0100005500000050"  # its route names the certificate itself
NAMED = "JG0100006600000060"  # its route names the certificate's host name

CHANNEL = "/v1/interconn/chan"
INVOKE = f"{CHANNEL}/invoke"
OK = "E0000000000"
DENIED = "E0000000403"
SIGNER = KeyPair(KEY_GENERATORS["ed25519"]()).public


@dataclass
class Site:
    """The node under attack, and the certificates of its authority."""

    node: Node
    authority: Authority
    files: dict[str, Files]  # certificates, by their owner
    revocation_list: str
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def post(self, owner, path, headers, **body):
        """Send a request with the certificate of ``owner``; return the body of the response."""
        body = body or {"json": {"task_id": "t"}}
        return self._client(owner).post(path, headers=headers, **body).json()

    def _client(self, owner):
        if owner not in self.clients:
            context = ssl.create_default_context(cafile=self.authority.file)
            context.load_cert_chain(
                self.files[owner].certificate,
                self.files[owner].key,
            )
            self.clients[owner] = httpx.Client(
                base_url=self.node.addresses()["peer"].replace(
                    "http://",
                    "https://",
                ),
                verify=context,
                trust_env=False,
                timeout=300,
            )
        return self.clients[owner]


@pytest.fixture(scope="module")
def site(shared_world):
    authority = Authority(shared_world.home / "tls")
    files = {
        ME: authority.sign(ME, "127.0.0.1", ME),
        PEER: authority.sign(PEER, "127.0.0.1", PEER),
        OTHER: authority.sign(OTHER, "127.0.0.1", OTHER),
        "nameless": authority.sign("nameless", "127.0.0.1"),
        PINNED: authority.sign("pinned", "10.0.0.1"),
        NAMED: authority.sign("named", "gw.partner.example"),
        "stolen": authority.sign("stolen", PEER),
    }
    pinned_pem = Path(files[PINNED].certificate).read_bytes()
    pinned = pin(x509.load_pem_x509_certificate(pinned_pem))
    names = "GW.partner.example, spare.partner.example"
    routes = {
        PEER: UNREACHABLE,
        OTHER: UNREACHABLE,
        BEHIND: {"via": OTHER},
        PINNED: {**UNREACHABLE, "peer_certificate": pinned},
        NAMED: {**UNREACHABLE, "peer_certificate": names},
    }
    revocation_list = authority.revoke()
    listen = {name: {"bind": "127.0.0.1:0"} for name in ("peer", "container", "operator")}
    listen["peer"]["tls"] = {
        "certificate": files[ME].certificate,
        "key": files[ME].key,
        "client_ca": authority.file,
        "revoked": revocation_list,
    }
    node = shared_world.node(
        routes=routes,
        settings={"listen": listen},
    )
    site = Site(node, authority, files, revocation_list)
    yield site
    for client in site.clients.values():
        client.close()


# ---------------------------------------------------------------- the node in a request's headers


@pytest.mark.parametrize(
    ("owner", "claimed"),
    [
        (PEER, PEER),
        (OTHER, BEHIND),
        (PINNED, PINNED),
        (NAMED, NAMED),
    ],
    ids=["its own id", "behind its relay", "pinned", "by a host name"],
)
def test_a_certificate_speaks_for_the_node_it_is_bound_to(site, owner, claimed):
    response = site.post(
        owner,
        POLL,
        {"x-source-node-id": claimed},
    )
    assert reason_of(response) == "TASK_UNKNOWN"


@pytest.mark.parametrize(
    ("owner", "claimed"),
    [
        (OTHER, PEER),
        (PEER, OTHER),
        ("nameless", PEER),
        (PEER, BEHIND),
        (PEER, PINNED),
        (PINNED, NAMED),
    ],
)
def test_a_certificate_speaks_only_for_the_node_it_is_bound_to(site, owner, claimed):
    response = site.post(
        owner,
        POLL,
        {"x-source-node-id": claimed},
    )
    assert reason_of(response) == "CERTIFICATE_MISMATCH"


def test_a_nameless_certificate_is_refused_before_it_names_a_node(site):
    response = site.post("nameless", POLL, {})
    assert reason_of(response) == "CERTIFICATE_MISMATCH"


def test_a_removed_partners_certificate_counts_despite_a_default_route(site):
    former = Route(PEER, "https://127.0.0.1:1")
    table = RouteTable(routes={DEFAULT_ENTRY: Route(DEFAULT_ENTRY, "https://127.0.0.1:2")})
    identity = PeerIdentity(
        ME,
        table=lambda: table,
        former={PEER: former}.get,
    )

    identity.check(scope_with_certificate(site.files[PEER]), [PEER])

    with pytest.raises(NotAllowed, match="the client certificate is not that of"):
        identity.check(scope_with_certificate(site.files[OTHER]), [PEER])


def scope_with_certificate(files):
    """Return the scope of a request over TLS with a client certificate."""
    chain = [Path(files.certificate).read_text(encoding="ascii")]
    return {"path": POLL, "extensions": {"tls": {"client_cert_chain": chain}}}


# ---------------------------------------------------------------- messages of the channel


def message_headers(session, **headers):
    """Return the headers of a message to this node."""
    return {
        "x-ptp-version": "1",
        "x-ptp-session-id": session,
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
        **headers,
    }


@pytest.mark.parametrize(
    "header", ["x-ptp-source-node-id", "x_ptp_source_node_id", "x-ptp-from-node-id"]
)
def test_a_message_is_accepted_only_from_the_node_of_the_certificate(site, header):
    headers = message_headers("session_s", **{header: PEER})
    for path in (INVOKE, f"{CHANNEL}/part"):
        assert site.post(OTHER, path, headers, json={})["code"] == DENIED
    assert site.post(PEER, INVOKE, headers, json={"payload": "aGk="})["code"] == OK


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-source-node-id": OTHER},
    ],
    ids=["no name", "its name"],
)
def test_the_body_of_a_message_cannot_name_another_sender(site, headers):
    metadata = message_headers("session_s", **{"x-ptp-source-node-id": PEER})
    body = {
        "metadata": metadata,
        "payload": "",
    }
    assert site.post(OTHER, INVOKE, headers, json=body)["code"] == DENIED


def test_only_another_gateway_of_this_node_passes_on_messages_of_others(site):
    headers = message_headers("session_h", **{"x-ptp-source-node-id": PEER})
    passed_on = headers | {"x-handed-on": "1"}
    assert site.post(OTHER, INVOKE, passed_on, json={})["code"] == DENIED
    assert site.post(ME, INVOKE, passed_on, json={"payload": "aGk="})["code"] == OK
    assert site.post(ME, INVOKE, headers, json={})["code"] == DENIED


# ---------------------------------------------------------------- messages by gRPC

GRPC_INVOKE = f"/{grpc_client.SERVICE}/invoke"
GRPC_TRANSPORT = f"/{grpc_client.SERVICE}/transport"  # a stream
GRPC_PART = f"/{grpc_client.SERVICE}/part"
GRPC_DENIED = (DENIED, "PERMISSION_DENIED")
CONTENT = PushInbound(topic="t", payload=b"hi").SerializeToString()
MESSAGE = Inbound(payload=CONTENT).SerializeToString()
METADATA = {
    "x-ptp-session-id": "session_g",
    "x-ptp-source-node-id": PEER,
    "x-ptp-target-node-id": ME,
}


def call_by_grpc(site, owner, path, message, metadata):
    """Send a message with the certificate of ``owner``.

    Returns the code of the response, or the name of gRPC's status if there is none.
    """
    address = site.node.addresses()["peer"].partition("://")[2]
    with grpc.secure_channel(address, grpc_credentials(site, owner)) as channel:
        try:
            response = exchange(
                channel,
                path,
                message,
                list(metadata.items()),
            )
        except grpc.RpcError as error:
            return error.code().name
    return TransportOutbound.FromString(response).code


def grpc_credentials(site, owner):
    """Return credentials with the certificate of ``owner``, without one for an unknown owner."""
    authority = Path(site.authority.file).read_bytes()
    files = site.files.get(owner)
    if files is None:
        return grpc.ssl_channel_credentials(authority)
    key = Path(files.key).read_bytes()
    certificate = Path(files.certificate).read_bytes()
    return grpc.ssl_channel_credentials(authority, key, certificate)


def exchange(channel, path, message, metadata):
    """Send a message; return the first response."""
    if path == GRPC_TRANSPORT:
        responses = channel.stream_stream(path)(
            iter([message]),
            metadata=metadata,
            timeout=300,
        )
        return next(iter(responses))
    return channel.unary_unary(path)(
        message,
        metadata=metadata,
        timeout=300,
    )


def test_by_grpc_a_message_is_accepted_only_from_the_certificates_node(site):
    """Attack: nodes with another certificate, or without one, send in a partner's name."""
    for path in (GRPC_INVOKE, GRPC_TRANSPORT, GRPC_PART):
        for owner in (OTHER, "nameless"):
            assert call_by_grpc(site, owner, path, MESSAGE, METADATA) in GRPC_DENIED
        assert call_by_grpc(site, "no certificate", path, MESSAGE, METADATA) == "UNAVAILABLE"
    passed_on = METADATA | {"x-handed-on": "1"}
    assert call_by_grpc(site, OTHER, GRPC_INVOKE, MESSAGE, passed_on) in GRPC_DENIED
    named_inside = Inbound(payload=b"hi", metadata=METADATA).SerializeToString()
    assert call_by_grpc(site, OTHER, GRPC_INVOKE, named_inside, {}) in GRPC_DENIED
    with_its_own_name = METADATA | {"x-ptp-from-node-id": OTHER}
    for path in (GRPC_INVOKE, GRPC_TRANSPORT):
        assert call_by_grpc(site, OTHER, path, MESSAGE, with_its_own_name) in GRPC_DENIED
    assert site.node.broker.backlog("session_g") == []

    for path in (GRPC_INVOKE, GRPC_TRANSPORT):
        assert call_by_grpc(site, PEER, path, MESSAGE, METADATA) == OK


@pytest.mark.parametrize(
    "method",
    grpc_server.METHODS[grpc_server.SERVICE],
)
def test_the_methods_of_containers_are_not_served_to_peers_by_grpc(site, method):
    metadata = {
        "x-ptp-session-id": "session_g",
        "x-ptp-token": "t",
    }
    status = call_by_grpc(site, PEER, f"/{grpc_server.SERVICE}/{method}", b"", metadata)
    assert status == "UNIMPLEMENTED"


# ---------------------------------------------------------------- revocation


def test_a_revoked_certificate_is_denied_within_two_seconds(site, caplog):
    def poll_with_stolen_certificate():
        return reason_of(site.post("stolen", POLL, {"x-source-node-id": PEER}))

    assert poll_with_stolen_certificate() != "CERTIFICATE_REVOKED"
    site.authority.revoke(site.files["stolen"].certificate)
    os.utime(site.revocation_list)
    wait_for(lambda: poll_with_stolen_certificate() == "CERTIFICATE_REVOKED")
    assert reason_of(site.post(PEER, POLL, {"x-source-node-id": PEER})) == "TASK_UNKNOWN"

    # The last good list stays in force.
    Path(site.revocation_list).write_text("-----BEGIN X509 CRL-----\nhalf")

    def is_list_refused():
        poll_with_stolen_certificate()
        return "revocation list not accepted" in caplog.text

    wait_for(is_list_refused)
    assert poll_with_stolen_certificate() == "CERTIFICATE_REVOKED"


def test_a_list_of_another_authority_is_refused_at_the_start(tmp_path):
    ours = Authority(tmp_path / "ours")
    theirs = Authority(tmp_path / "theirs", "another")
    files = ours.sign("node")
    tls = peer_tls.PeerTls(
        certificate=Path(files.certificate),
        key=Path(files.key),
        client_ca=Path(ours.file),
        revoked=Path(theirs.revoke()),
    )

    with pytest.raises(Invalid) as refusal:
        peer_tls.served(tls)

    [problem] = refusal.value.problems
    assert problem.path == "listen.peer.tls.revoked"


def listening_at(bind):
    """Return the settings of a node whose peers need no certificate."""
    values = {
        "node": {"id": ME},
        "engine": {"kind": "process"},
        "listen": {"peer": {"bind": bind}},
    }
    return load(None, values)


def risk_of(bind, route):
    """Return the risk of forged messages at a listener with one route of a partner."""
    table = parse(f"{PEER}: {{host: h, port: 1, {route}}}")
    return message_risk(table.routes.values(), listening_at(bind))


@pytest.mark.parametrize(
    ("bind", "has_warning"),
    [
        ("0.0.0.0:7380", True),
        ("127.0.0.1:7380", False),
        ("[::1]:1", False),
        ("gateway:1", True),
    ],
)
def test_a_listener_beyond_loopback_without_certificates_has_a_warning(bind, has_warning):
    assert bool(risk_of(bind, f"keys: {SIGNER}")) is has_warning


@pytest.mark.parametrize(
    ("route", "has_warning"),
    [
        (f"keys: {SIGNER}", True),
        (f"keys: {SIGNER}, sealing: accepted", True),
        ("signing: off", True),
        (f"keys: {SIGNER}, sealing: required", False),
        ("signing: required", False),
    ],
    ids=["keys", "seals accepted", "no proof", "seals required", "no keys"],
)
def test_only_a_route_that_takes_unsealed_messages_has_a_warning(route, has_warning):
    warning = risk_of("0.0.0.0:7380", route)
    assert (PEER in warning) is has_warning
    assert bool(warning) is has_warning


def test_a_node_without_routes_has_no_warning_of_forged_messages():
    assert message_risk((), listening_at("0.0.0.0:7380")) == ""
