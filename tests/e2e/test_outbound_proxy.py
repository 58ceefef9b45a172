"""Nodes that reach each other through a real HTTP proxy alone, which asks for a login."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.jobs import GUEST, HOST
from tests.e2e.nodes import Federation
from tests.e2e.test_channel import PING_PONG
from tests.services.outbound_proxy import PASSWORD, OutboundProxy, outbound_proxy

pytestmark = [pytest.mark.slow, pytest.mark.outbound_proxy]


@dataclass(frozen=True)
class Site:
    """Two nodes, and the proxy on the guest's way to the host."""

    federation: Federation
    proxy: OutboundProxy

    def route_test(self) -> dict[str, tuple[str, str]]:
        """Return the result and the text of each step of the guest's route test."""
        response = self.federation[GUEST].post(f"/api/v1/routes/{HOST}/test", {})
        texts = {}
        for step in response["steps"]:
            texts[step["name"]] = (step["result"], step["cause"] or step["found"])
        return texts


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("nodes")
    authority = Authority(home / "certificates")
    federation = Federation(
        home,
        [GUEST, HOST],
        PING_PONG,
    )
    host_files = authority.sign(HOST, "127.0.0.1", HOST)
    federation[HOST].settings["listen"]["peer"]["tls"] = {
        "certificate": host_files.certificate,
        "key": host_files.key,
    }
    with ExitStack() as stack:
        proxy = stack.enter_context(
            outbound_proxy(
                home / "proxy",
                federation[GUEST].peer_port,
                federation[HOST].peer_port,
            )
        )
        password_file = home / "proxy-password"
        password_file.write_text(f"{PASSWORD}\n")
        through_proxy = {
            "proxy": proxy.url,
            "proxy_password": str(password_file),
        }
        to_host = {
            "url": f"https://127.0.0.1:{federation[HOST].peer_port}",
            "ca": authority.file,
            **through_proxy,
        }
        to_guest = {
            "url": f"http://127.0.0.1:{federation[GUEST].peer_port}",
            **through_proxy,
        }
        federation[GUEST].route(**{HOST: to_host})
        federation[HOST].route(**{GUEST: to_guest})
        stack.enter_context(federation)
        for node in federation:
            node.register(A_PROVIDER)
        yield Site(federation, proxy)


def test_a_job_runs_through_a_proxy_that_asks_for_a_login(site):
    guest = site.federation[GUEST]
    job_id = guest.submit(jobs.echo_job(GUEST, HOST, rounds=3, size=1_000_000))

    assert guest.wait_job(job_id)["progress"] == 100

    for node in site.federation:
        assert f"CONNECT 127.0.0.1:{node.peer_port}" in site.proxy.log


def test_a_proxy_that_restarts_ends_no_job(site):
    guest = site.federation[GUEST]
    job_id = guest.submit(jobs.echo_job(GUEST, HOST, rounds=60))

    site.proxy.stop()
    site.proxy.start()

    assert guest.wait_job(job_id)["progress"] == 100


def test_the_route_test_names_the_proxy(site):
    steps = site.route_test()

    assert steps["tcp"][0] == "ok"
    assert f"127.0.0.1:{site.proxy.port}" in steps["dns"][1]


def test_a_wrong_login_fails_the_route_test_with_its_remedy(site):
    guest = site.federation[GUEST]
    path = f"/api/v1/routes/{HOST}"
    entry = {"proxy": f"http://somebody@127.0.0.1:{site.proxy.port}"}
    guest.ask("PATCH", path, json={"route": entry, "reason": "mistyped"})

    result, cause = site.route_test()["tcp"]

    guest.ask("PATCH", path, json={"route": {"proxy": site.proxy.url}, "reason": "corrected"})
    assert result == "failed"
    assert "asks for another user or password" in cause
