"""The user's job by the ways that networks leave open: through proxies of both kinds, by IPv6."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority, Files
from tests.e2e import jobs
from tests.e2e.jobs import ARBITER, GUEST, HOST
from tests.e2e.nodes import Federation, Node, process_engine
from tests.network.lab import Host, Lab
from tests.network.offices import (
    check_outputs,
    check_routes,
    key_of,
    peer_url,
    place,
    recorded,
    wait_for_links,
)
from tests.services import outbound_proxy, reverse_proxies

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
]

HTTPS = 443
PROXY_PORT = 3128
SHUT_IN = ARBITER  # the node whose only way out is the outbound proxy


def run_job(guest: Node, host: Node) -> None:
    """Run the user's job between two nodes, and check its outputs."""
    check_routes(guest, host)
    body = jobs.quick_job(guest.id, host.id, depth=1)
    job_id = guest.submit(body)
    job = guest.wait_job(job_id)
    assert job["progress"] == 100
    check_outputs(guest, host, job_id)


# ---------------------------------------------------------------- proxies


@dataclass(frozen=True)
class Site:
    """The guest's node behind nginx, the host's in the open, and one behind a proxy."""

    nodes: Federation
    proxy: outbound_proxy.OutboundProxy
    proxy_host: Host


class Layout:
    """A `Site` before its start: certificates, addresses and routes."""

    def __init__(self, home: Path, lab: Lab) -> None:
        self.nodes = Federation(
            home / "nodes",
            [GUEST, HOST, SHUT_IN],
            process_engine("unionpay:2.0.0"),
        )
        self.authority = Authority(home / "certificates")
        self.hosts = {node.id: lab.host() for node in self.nodes}
        self.proxy_host = lab.host()
        self.hosts[SHUT_IN].call_only(self.proxy_host)
        self.proxy = outbound_proxy.OutboundProxy(
            home / "outbound",
            PROXY_PORT,
            [HTTPS],
            self.proxy_host.ipv4,
        )
        self.nginx = reverse_proxies.Site(
            home / "nginx",
            f"127.0.0.1:{self.nodes[GUEST].peer_port}",
            self.authority,
            HTTPS,
            self.hosts[GUEST].ipv4,
        )
        self._password_file = home / "password"
        self._password_file.write_text(outbound_proxy.PASSWORD)
        self._place_nodes()
        self._write_routes()

    def _place_nodes(self) -> None:
        for node in self.nodes:
            place(node, self.hosts[node.id])
        guest = self.nodes[GUEST]
        place(guest, self.hosts[GUEST], "127.0.0.1")
        guest.settings["listen"]["peer"]["trusted_proxies"] = ["127.0.0.1"]
        files = self._certificate(HOST)
        self.nodes[HOST].settings["listen"]["peer"]["tls"] = {
            "certificate": files.certificate,
            "key": files.key,
            "client_ca": self.authority.file,
        }

    def _write_routes(self) -> None:
        host = self.nodes[HOST]
        to_host = self._route(
            GUEST,
            host,
            peer_url(host, "https"),
        )
        to_shut_in = {
            "reached": "by-link",
            "keys": key_of(self.nodes[SHUT_IN]),
        }
        self.nodes[GUEST].route(**{HOST: to_host, SHUT_IN: to_shut_in})
        host.route(**{GUEST: self._to_guest(HOST)})
        through_proxy = {
            "dial": "out",
            "proxy": self.proxy.url,
            "proxy_password": str(self._password_file),
        }
        to_guest = self._to_guest(SHUT_IN)
        self.nodes[SHUT_IN].route(**{GUEST: to_guest | through_proxy})

    def _to_guest(self, source: str) -> dict[str, Any]:
        """Return a node's route to the guest behind nginx."""
        guest = self.nodes[GUEST]
        url = f"https://{self.hosts[GUEST].ipv4}/bfia"
        return self._route(source, guest, url)

    def _route(
        self,
        source: str,
        target: Node,
        url: str,
    ) -> dict[str, Any]:
        """Return a route by https with a certificate of the source."""
        files = self._certificate(source)
        return {
            "url": url,
            "keys": key_of(target),
            "ca": self.authority.file,
            "certificate": files.certificate,
            "key": files.key,
        }

    def _certificate(self, node_id: str) -> Files:
        address = self.hosts[node_id].ipv4
        return self.authority.sign(node_id, address, node_id)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        lab = stack.enter_context(Lab())
        layout = Layout(home, lab)
        for folder in (layout.nginx.home, layout.proxy.home):
            folder.mkdir()
        nginx = layout.hosts[GUEST].serving(
            reverse_proxies.nginx(layout.nginx),
            home / "nginx.log",
            HTTPS,
        )
        proxy = layout.proxy_host.serving(
            layout.proxy.command(),
            home / "proxy.log",
            PROXY_PORT,
        )
        stack.enter_context(nginx)
        stack.enter_context(proxy)
        stack.enter_context(layout.nodes)
        jobs.prepare(layout.nodes, GUEST, HOST)
        jobs.upload(layout.nodes[SHUT_IN], "host")
        wait_for_links(layout.nodes[GUEST], layout.nodes[SHUT_IN])
        yield Site(layout.nodes, layout.proxy, layout.proxy_host)


@pytest.mark.reverse_proxies
@pytest.mark.outbound_proxy
def test_the_job_runs_with_a_node_behind_nginx_that_ends_tls(site):
    run_job(site.nodes[GUEST], site.nodes[HOST])


@pytest.mark.reverse_proxies
@pytest.mark.outbound_proxy
def test_the_job_runs_with_a_node_whose_only_way_out_is_a_proxy_with_login(site):
    with recorded(site.proxy_host) as recording:
        run_job(site.nodes[GUEST], site.nodes[SHUT_IN])

    assert "CONNECT" in site.proxy.log
    assert recording.words() == ()


# ---------------------------------------------------------------- IPv6


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Federation]:
    """Two nodes at hosts without an address of IPv4."""
    nodes = Federation(
        tmp_path / "nodes",
        [GUEST, HOST],
        process_engine("unionpay:2.0.0"),
    )
    with Lab() as lab:
        for node in nodes:
            host = lab.host("6")
            place(node, host, f"[{host.ipv6}]")
        for node_id, partner_id in ((GUEST, HOST), (HOST, GUEST)):
            partner = nodes[partner_id]
            route = {
                "url": peer_url(partner),
                "keys": key_of(partner),
            }
            nodes[node_id].route(**{partner_id: route})
        with nodes:
            jobs.prepare(nodes, GUEST, HOST)
            yield nodes


def test_the_job_runs_by_ipv6_alone(pair):
    run_job(pair[GUEST], pair[HOST])
