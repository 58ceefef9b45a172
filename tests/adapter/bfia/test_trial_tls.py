"""Tests of a route by TLS: every fault of certificates is named with its cause."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia.connections import Connections
from adapter.bfia.peer import Peer
from adapter.bfia.route_check import hello
from adapter.bfia.route_tls import try_tls
from gateway.config.tls import Tls
from gateway.errors import PeerUnreachable
from gateway.runtime.trials import Result
from route_table.live import LiveRoutes
from route_table.model import Identity
from tests.adapter.bfia.route_trials import by_tls, failed_steps, run_trial, serving_peer
from tests.certificates import Authority, Files
from tests.inprocess import ME, PEER


@dataclass(frozen=True)
class Certificates:
    """An authority, an untrusted one, and their certificates by name."""

    authority: Authority
    stranger: Authority
    files: dict[str, Files]

    def context(
        self,
        name: str,
        *,
        demands_client: bool = False,
    ) -> ssl.SSLContext:
        """Return the TLS of a server that shows a certificate."""
        files = self.files[name]
        client_ca = None
        if demands_client:
            client_ca = self.authority.file
        return Tls(files.certificate, files.key, client_ca).context()

    def own(
        self,
        name: str,
    ) -> dict[str, str]:
        """Return the keys of a route's entry with which this node shows a certificate."""
        files = self.files[name]
        return {
            "certificate": files.certificate,
            "key": files.key,
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "another authority")
    files = {
        "good": authority.sign("good"),
        "named": authority.sign("named", "gateway.example"),
        "old": authority.sign(
            "old",
            days=-1,
        ),
        "soon": authority.sign(
            "soon",
            days=5,
        ),
        "mine": authority.sign("mine"),
        "strangers": stranger.sign("theirs"),
    }
    return Certificates(authority, stranger, files)


@dataclass(frozen=True)
class TlsFault:
    """A server and a route that do not fit, with the cause and a part of the remedy."""

    # the server's certificate; None: it has no TLS
    server: str | None
    cause: str
    remedy: str
    # the authority that the route names: "authority", "stranger", or none
    ca: str = ""
    # the name that the route expects in the server's certificate
    server_name: str = ""
    # the certificate that this node shows
    own_certificate: str = ""
    demands_client: bool = False

    def entry(
        self,
        port: int,
        certificates: Certificates,
    ) -> dict[str, Any]:
        """Return the entry of the route to a port."""
        entry = by_tls(port)
        if self.ca:
            entry["ca"] = getattr(certificates, self.ca).file
        if self.server_name:
            entry["server_name"] = self.server_name
        if self.own_certificate:
            entry |= certificates.own(self.own_certificate)
        return entry


TLS_FAULTS = {
    "no TLS": TlsFault(None, "no TLS there", "scheme http"),
    "another authority": TlsFault(
        "good", "not trusted", "does not have its authority", ca="stranger"
    ),
    "no authority": TlsFault("good", "not trusted", "set ca in the entry"),
    "another name": TlsFault(
        "named",
        "another name than 127.0.0.1",
        "server_name",
        ca="authority",
    ),
    "another expected name": TlsFault(
        "good", "another name", "server_name", ca="authority", server_name="gateway.example"
    ),
    "expired": TlsFault(
        "old",
        "has expired",
        "renew",
        ca="authority",
    ),
    "no own certificate": TlsFault(
        "good",
        "wants a certificate",
        "certificate and key",
        ca="authority",
        demands_client=True,
    ),
    "untrusted own certificate": TlsFault(
        "good",
        "does not accept",
        "admin",
        ca="authority",
        own_certificate="strangers",
        demands_client=True,
    ),
}
TLS_VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", TLS_VERSIONS)
@pytest.mark.parametrize(
    "fault",
    TLS_FAULTS.values(),
    ids=TLS_FAULTS,
)
def test_a_fault_of_tls_is_named_with_its_cause(tmp_path, certificates, fault, version):
    context = None
    if fault.server:
        context = certificates.context(
            fault.server,
            demands_client=fault.demands_client,
        )
        context.maximum_version = version

    with serving_peer(tls=context) as port:
        steps = run_trial(tmp_path, fault.entry(port, certificates))

    assert failed_steps(steps) == ["tls"]
    assert fault.cause in steps["tls"].cause
    assert fault.remedy in steps["tls"].remedy


@pytest.mark.parametrize("version", TLS_VERSIONS)
def test_certificates_of_both_nodes_that_fit_are_good(tmp_path, certificates, version):
    context = certificates.context(
        "named",
        demands_client=True,
    )
    context.maximum_version = version
    with serving_peer(tls=context) as port:
        entry = by_tls(
            port,
            ca=certificates.authority.file,
            server_name="gateway.example",
            **certificates.own("mine"),
        )
        steps = run_trial(tmp_path, entry)
    assert failed_steps(steps) == []
    assert steps["tls"].result is Result.OK


def test_files_of_a_route_that_have_disappeared_are_named(tmp_path, certificates):
    with serving_peer(tls=certificates.context("good")) as port:
        step = try_tls(
            "127.0.0.1",
            port,
            Identity(ca=str(tmp_path / "gone.pem")),
        )
    assert step.result is Result.FAILED
    assert "certificates that the route names" in step.cause
    assert "correct ca, certificate and key" in step.remedy


def test_an_own_certificate_that_expired_after_loading_is_named(certificates):
    expired = certificates.files["old"]
    identity = Identity(
        certificates.authority.file,
        expired.certificate,
        expired.key,
    )
    with serving_peer(tls=certificates.context("good", demands_client=True)) as port:
        step = try_tls("127.0.0.1", port, identity)
    assert f"this node's certificate in {expired.certificate} has expired on" in step.cause
    assert "renew" in step.remedy


def test_a_peers_certificate_that_ends_soon_is_a_warning(tmp_path, certificates):
    with serving_peer(tls=certificates.context("soon")) as port:
        step = run_trial(tmp_path, by_tls(port, ca=certificates.authority.file))["tls"]
    assert step.result is Result.WARNING
    assert "expires in 4 days" in step.cause


def test_an_own_certificate_that_ends_soon_is_a_warning(tmp_path, certificates):
    with serving_peer(tls=certificates.context("good")) as port:
        entry = by_tls(port, ca=certificates.authority.file, **certificates.own("soon"))
        step = run_trial(tmp_path, entry)["tls"]
    assert step.result is Result.WARNING
    assert "certificate in" in step.cause


def test_a_renewed_file_is_used_without_restart_a_missing_one_named(tmp_path, certificates):
    ca = tmp_path / "ca.pem"
    ca.write_text(Path(certificates.stranger.file).read_text())
    routes_file = tmp_path / "routes.yml"
    connections = Connections()
    with serving_peer(tls=certificates.context("good")) as port:
        routes_file.write_text(yaml.safe_dump({PEER: by_tls(port, ca=str(ca))}))
        peer = Peer(
            ME,
            PEER,
            LiveRoutes(routes_file).resolve,
            connections,
        )
        with pytest.raises(PeerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            hello(peer, ME)

        # another size, by which the change is noticed even within a second
        ca.write_text(Path(certificates.authority.file).read_text() + "\n")
        assert hello(peer, ME)["node_id"] == PEER

        ca.unlink()
        with pytest.raises(PeerUnreachable, match="certificates that the route names") as refused:
            hello(peer, ME)
        assert refused.value.delivered is False
    connections.close()


# ---------------------------------------------------------------- a gateway that demands TLS


@pytest.fixture
def tls_url(world, certificates):
    """The address of a gateway that demands certificates of its peers."""
    files = certificates.files["good"]
    free_port = {"bind": "127.0.0.1:0"}
    tls = {
        "certificate": files.certificate,
        "key": files.key,
        "client_ca": certificates.authority.file,
    }
    listen = {
        "peer": free_port | {"tls": tls},
        "container": free_port,
        "operator": free_port,
    }
    return world.node(node_id=PEER, settings={"listen": listen}).addresses()["peer"]


def test_a_gateway_that_demands_tls_differs_from_one_that_is_down(tmp_path, tls_url):
    steps = run_trial(
        tmp_path,
        {"url": tls_url.replace("https:", "http:")},
    )
    assert failed_steps(steps) == ["answer"]
    assert steps["answer"].remedy == "begin the entry's url with https"


def test_a_gateway_without_this_nodes_certificate_logs_once_a_minute(
    tmp_path, tls_url, certificates, caplog
):
    """Its listener ends such connections without an alert."""
    entry = {
        "url": tls_url,
        "ca": certificates.authority.file,
    }

    for _ in range(2):
        steps = run_trial(tmp_path, entry)
        assert failed_steps(steps) == ["tls"]
        assert "wants a certificate of this node" in steps["tls"].cause

    [warning] = [
        record
        for record in caplog.records
        if record.levelname == "WARNING" and record.msg == "a connection was not made"
    ]
    assert warning.address == "127.0.0.1"


def test_a_certificate_of_another_node_is_named(tmp_path, tls_url, certificates):
    entry = {"url": tls_url, "ca": certificates.authority.file} | certificates.own("named")
    steps = run_trial(tmp_path, entry)
    assert failed_steps(steps) == ["answer"]
    assert steps["answer"].cause.count("CERTIFICATE_MISMATCH") == 1
    assert "peer_certificate" in steps["answer"].remedy
