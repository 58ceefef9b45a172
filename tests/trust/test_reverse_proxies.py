"""Attack: requests around a reverse proxy, or with headers that only the proxy may set."""

import asyncio
import base64
import ssl
from ipaddress import ip_network
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import pytest

from gateway.errors import Invalid
from gateway.http.proxies import arrival_before
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.links.accepting import Arrival
from tests.certificates import Authority, Files
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, settings
from tests.linking import ANSWER_SECONDS, dialling, key_of, set_routes
from tests.trust.peer_requests import PeerRequest
from tests.world import UNREACHABLE

OTHER = "JG0100003300000030"
MISSING = "CERTIFICATE_MISSING"
MISMATCH = "CERTIFICATE_MISMATCH"
# The reason of a request that is served, as its task does not exist.
SERVED = "TASK_UNKNOWN"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, Files]:
    """Certificates by their owner."""
    return {name: authority.sign(name, name) for name in (PEER, OTHER)}


def behind(shared_world, *proxies: str) -> Node:
    """Start a node behind proxies at these addresses."""
    listen = {name: {"bind": "127.0.0.1:0"} for name in ("peer", "container", "operator")}
    listen["peer"]["trusted_proxies"] = list(proxies)
    return shared_world.node(
        routes={PEER: UNREACHABLE, OTHER: UNREACHABLE},
        settings={"listen": listen},
    )


@pytest.fixture(scope="module")
def node(shared_world) -> Node:
    """A node that trusts proxies on this machine."""
    return behind(shared_world, "127.0.0.0/8")


@pytest.fixture(scope="module")
def other_node(shared_world) -> Node:
    """A node whose proxy is at another address than the tests."""
    return behind(shared_world, "192.0.2.1", "2001:db8::/32")


def percent_encoded(files: Files) -> str:
    return quote(Path(files.certificate).read_text())


def byte_sequence(files: Files) -> str:
    """Return the form of RFC 9440."""
    der = ssl.PEM_cert_to_DER_cert(Path(files.certificate).read_text())
    return f":{base64.b64encode(der).decode()}:"


FORMS = [percent_encoded, byte_sequence]


@pytest.mark.parametrize("form", FORMS)
def test_a_certificate_that_the_proxy_hands_on_is_bound_to_its_node(node, files, form):
    reasons = {}
    for owner, certificate in files.items():
        request = PeerRequest().with_header("client-cert", form(certificate))
        reasons[owner] = request.refusal_of(node)
    assert reasons == {PEER: SERVED, OTHER: MISMATCH}


@pytest.mark.parametrize("form", FORMS)
def test_a_request_around_the_proxy_brings_no_certificate(other_node, files, form):
    request = PeerRequest().with_header("client-cert", form(files[PEER]))
    assert request.refusal_of(other_node) == MISSING


@pytest.mark.parametrize("path", ["/v1/interconn/schedule/node/hello", "/v1/interconn/chan/invoke"])
def test_no_path_is_served_around_the_proxy(other_node, path):
    request = PeerRequest(path=path).with_header("x-forwarded-for", "192.0.2.1")
    assert "certificate" in str(request.send_to(other_node))


@pytest.mark.parametrize(
    "request_without",
    [PeerRequest(), PeerRequest().with_header("client-cert", "")],
    ids=["no header", "an empty header"],
)
def test_a_request_without_a_certificate_is_refused(node, request_without):
    assert request_without.refusal_of(node) == MISSING


@pytest.mark.parametrize(
    "value",
    [":not base64:", ":bm90IGEgY2VydGlmaWNhdGU=:", "%00%ff", "-----BEGIN CERTIFICATE-----", "::"],
)
def test_an_unreadable_certificate_is_refused(node, value):
    request = PeerRequest().with_header("client-cert", value)
    assert request.refusal_of(node) == MISSING


def test_two_certificates_in_one_request_are_refused(node, files):
    headers = PeerRequest().headers
    for owner in (PEER, OTHER):
        headers += (("client-cert", percent_encoded(files[owner])),)
    assert PeerRequest(headers=headers).refusal_of(node) == MISSING


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("10.0.0.1, 198.51.100.8", "198.51.100.8"),
        ("2001:db8::9", "2001:db8::9"),
    ],
)
def test_the_audit_has_the_address_that_the_proxy_wrote(node, files, value, address):
    request = PeerRequest()
    request = request.with_header("client-cert", percent_encoded(files[OTHER]))
    request = request.with_header("x-forwarded-for", value)

    assert request.refusal_of(node) == MISMATCH

    newest = node.get("/api/v1/audit").json()["audit"][0]
    assert newest["detail"]["from"] == address


@pytest.mark.parametrize(
    ("listen", "path"),
    [
        ({"peer": {"trusted_proxies": ["proxy.bank"]}}, "listen.peer.trusted_proxies"),
        ({"peer": {"trusted_proxies": ["10.1.2.3/8"]}}, "listen.peer.trusted_proxies"),
        ({"peer": {"trusted_proxies": ["10.1.2.3"]}, "container": None}, "listen.container"),
    ],
    ids=["a name", "host bits", "containers without a listener"],
)
def test_settings_that_cannot_work_are_refused(tmp_path, listen, path):
    with pytest.raises(Invalid) as refusal:
        settings(tmp_path, ME, listen=listen)
    assert path in str(refusal.value)


def test_a_proxy_is_trusted_whose_address_an_ipv6_listener_shows():
    scope = {
        "client": ("::ffff:10.0.0.2", 4711),
        "headers": [(b"x-forwarded-for", b"192.0.2.9")],
    }
    arrival = Arrival(
        reader=asyncio.StreamReader(loop=Mock()),
        writer=Mock(),
        head=b"",
        scope=scope,
        certificates=(),
    )
    assert arrival_before(arrival, [ip_network("10.0.0.0/24")]).host == "192.0.2.9"


# ------------------------------------------------------------ links


def refusal_of_link(node: Node, pair: KeyPair, certificate: Files | None = None) -> str:
    """Open a link in the name of `PEER` with a certificate; return the refusal, "" for none."""
    key_of(node)
    set_routes(
        node,
        {PEER: {"reached": "by-link", "keys": pair.public}},
    )
    headers = {"x-forwarded-for": "192.0.2.9"}
    if certificate is not None:
        headers["client-cert"] = percent_encoded(certificate)
    with dialling(node, headers) as link:
        answer = link.claim(PEER, pair)
        wait_for(
            lambda: "refused" in answer or node.links.count(PEER) == 1,
            ANSWER_SECONDS,
            0.02,
        )
        if "refused" not in answer:
            (state,) = node.links.states()
            assert state.address == "192.0.2.9:0"
    return str(answer.get("refused", ""))


@pytest.fixture
def pair() -> KeyPair:
    return KeyPair(KEY_GENERATORS["ed25519"]())


@pytest.mark.parametrize(
    ("owner", "reason"),
    [(PEER, ""), (OTHER, MISMATCH), (None, MISSING)],
)
def test_a_link_needs_the_certificate_that_the_proxy_hands_on(
    shared_world, files, pair, owner, reason
):
    node = behind(shared_world, "127.0.0.0/8")
    assert refusal_of_link(node, pair, files.get(owner)) == reason


def test_a_link_around_the_proxy_is_refused(shared_world, files, pair):
    node = behind(shared_world, "192.0.2.1")
    assert refusal_of_link(node, pair, files[PEER]) == MISSING
