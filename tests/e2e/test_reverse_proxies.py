"""Nodes behind real reverse proxies that end TLS, as docs/network.md sets them up."""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from websockets.sync.client import connect

from adapter.bfia.examples import A_PROVIDER
from gateway.links.carrier import LINK_PATH
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation
from tests.e2e.test_channel import PING_PONG, peer_bind
from tests.services import reverse_proxies
from tests.trust.peer_requests import POLL, reason_of

pytestmark = [pytest.mark.slow, pytest.mark.reverse_proxies]

PARTNERS = {
    GUEST: HOST,
    HOST: GUEST,
}
PROXIES = {
    GUEST: reverse_proxies.nginx,
    HOST: reverse_proxies.haproxy,
}


@dataclass(frozen=True)
class Site:
    """Guest and host, the URLs at their proxies, and who signs certificates."""

    federation: Federation
    urls: Mapping[str, str]  # by node id
    authority: Authority

    def tls(self, file: str, name: str) -> ssl.SSLContext:
        """Return the TLS context of a client with a certificate for a name."""
        files = self.authority.sign(file, "127.0.0.1", name)
        context = ssl.create_default_context(cafile=self.authority.file)
        context.load_cert_chain(files.certificate, files.key)
        return context

    def client(self, file: str, name: str) -> httpx.Client:
        """Return a client with a certificate for a name."""
        return httpx.Client(
            verify=self.tls(file, name),
            trust_env=False,
            timeout=120,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The guest behind nginx and the host behind HAProxy."""
    home = tmp_path_factory.mktemp("nodes")
    authority = Authority(home / "certificates")
    federation = Federation(
        home,
        [GUEST, HOST],
        PING_PONG,
    )
    with ExitStack() as stack:
        urls = {}
        for node_id, command_of in PROXIES.items():
            listener = federation[node_id].settings["listen"]["peer"]
            listener["trusted_proxies"] = ["127.0.0.1"]
            proxy = reverse_proxies.running(
                command_of,
                home / f"proxy-{node_id}",
                peer_bind(federation[node_id]),
                authority,
            )
            urls[node_id] = stack.enter_context(proxy)
        for node_id, partner_id in PARTNERS.items():
            files = authority.sign(node_id, "127.0.0.1", node_id)
            route = {
                "url": urls[partner_id],
                "ca": authority.file,
                "certificate": files.certificate,
                "key": files.key,
            }
            federation[node_id].route(**{partner_id: route})
        stack.enter_context(federation)
        for node in federation:
            node.register(A_PROVIDER)
        yield Site(federation, urls, authority)


def test_a_job_runs_between_nodes_behind_nginx_and_haproxy(site):
    for node_id, partner_id in PARTNERS.items():
        route_test = site.federation[node_id].post(f"/api/v1/routes/{partner_id}/test", {})
        assert route_test["good"], route_test
    body = jobs.echo_job(
        GUEST,
        HOST,
        rounds=2,
        size=3_000_000,  # above all buffers of the proxies
    )

    guest = site.federation[GUEST]
    job_id = guest.submit(body)

    assert guest.wait_job(job_id)["progress"] == 100


@pytest.mark.parametrize(
    ("node_id", "partner_id"),
    PARTNERS.items(),
    ids=["nginx", "haproxy"],
)
def test_a_link_of_a_closed_node_passes_the_proxy(site, node_id, partner_id):
    url = site.urls[node_id].replace("https", "wss", 1) + LINK_PATH
    tls = site.tls(f"dialling-{node_id}", partner_id)
    with connect(
        url,
        ssl=tls,
        compression=None,
        proxy=None,
    ) as socket:
        assert "challenge" in json.loads(socket.recv(60))


@pytest.mark.parametrize(
    ("node_id", "partner_id"),
    PARTNERS.items(),
    ids=["nginx", "haproxy"],
)
def test_a_header_of_the_client_does_not_replace_its_certificate(site, node_id, partner_id):
    """Attack: a partner brings another one's certificate in the header that the proxy sets."""
    names = {
        "own": partner_id,
        "other": "JG0100009900000090",
    }
    reasons = {}
    with site.client(f"client-{node_id}", partner_id) as client:
        for name, owner in names.items():
            stolen = site.authority.sign(f"{name}-{node_id}", "127.0.0.1", owner)
            response = client.post(
                site.urls[node_id] + POLL,
                headers={
                    "x-source-node-id": owner,
                    "client-cert": quote(Path(stolen.certificate).read_text()),
                },
                json={"task_id": "t"},
            )
            reasons[name] = reason_of(response.json())
    assert reasons == {
        "own": "TASK_UNKNOWN",
        "other": "CERTIFICATE_MISMATCH",
    }
