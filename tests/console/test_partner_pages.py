"""A partner's page in the browser: its route under test, a contract, grants, and the invitation."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect

from gateway.domain.applications import APPROVED
from gateway.domain.datasets import Grant
from gateway.domain.run import Address
from gateway.store.repositories import SqlGrants
from tests.console.opening import browser, close_pages, make_key, open_page
from tests.domain.test_applications import an_application
from tests.inprocess import ME, PEER, Node

__all__ = ["browser", "close_pages"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@contextmanager
def silent_peer() -> Iterator[tuple[str, socket.socket]]:
    """Listen, and answer nothing; yield the URL and the socket, whose end ends the connections."""
    any_port = ("127.0.0.1", 0)
    with socket.create_server(any_port) as server:
        _, port = server.getsockname()
        yield f"http://127.0.0.1:{port}", server


def test_the_steps_of_a_route_test_appear_while_it_runs(world, browser):
    with silent_peer() as (url, server):
        route = {"url": url}
        node = world.node(routes={PEER: route})
        person = open_page(browser, node, f"partners/{PEER}")

        person.press("test")

        connection = person.cell("tcp")
        expect(connection).to_be_visible()
        status = person.page.get_by_role("status")
        verdict = status.locator(".badge")
        expect(verdict).to_have_text("RUNNING")
        last_step = person.cell("way back")
        expect(last_step).to_have_count(0)

        server.close()  # the peer is gone, and the connection that waits is reset
        expect(verdict).to_have_text("failed")
        expect(last_step).to_be_visible()


def test_an_admin_applies_for_a_contract_that_the_partner_approves(world, browser):
    me = world.node(prepare=make_key)
    peer = world.node(
        node_id=PEER,
        prepare=make_key,
    )
    world.connect(me, peer)
    applicant = open_page(
        browser,
        me,
        f"partners/{PEER}",
        "zh-CN",
    )
    applicant.press("apply for contract")
    address = me.addresses()["peer"]
    applicant.confirm(
        address=address,
        key="sha256:0000",
    )
    problem = applicant.error_at("key")
    expect(problem).to_be_visible()

    peer_key = peer.card.key()
    applicant.confirm(key=peer_key.id)

    expect(applicant.dialog).to_have_count(0)
    applied = applicant.say("=APPLIED")
    applicant.sees(applied)
    approve_by_hand(browser, peer)
    partner = open_page(
        browser,
        peer,
        f"partners/{ME}",
        "zh-CN",
    )
    approved = partner.say("=APPROVED")
    partner.sees(approved)


def approve_by_hand(browser: Browser, node: Node) -> None:
    """Approve the only application of a partner."""
    person = open_page(
        browser,
        node,
        "approvals",
        "zh-CN",
    )
    person.press("approve")
    person.confirm()
    confirmation = person.notices.locator(".good")
    expect(confirmation).to_be_visible()


def test_grants_show_their_days_and_the_jobs_of_their_permits(world, browser):
    route = {"url": "http://127.0.0.1:9"}
    node = world.node(routes={PEER: route})
    permit = an_application(
        partner=PEER,
        subject="bank#credit",
        status=APPROVED,
        most_jobs=5,
        request={"times_limit": 10},
    )
    node.stored_applications.add(permit)
    for name in ("credit", "loans"):
        store_grant(node, name)

    person = open_page(browser, node, f"partners/{PEER}")

    grants = person.section("grants to it")
    with_permit = grants.get_by_role("row", name="bank#credit")
    expect(with_permit).to_contain_text("0 of 5 used (asked: 10)")
    expect(with_permit).to_contain_text(" days")
    by_hand = grants.get_by_role("row", name="bank#loans")
    expect(by_hand).to_contain_text("any number")


def store_grant(node: Node, name: str) -> None:
    """Have a dataset granted to `PEER` for many years."""
    grant = Grant(
        dataset=Address("bank", name),
        node=PEER,
        granted_at=datetime(2026, 1, 1, tzinfo=UTC),
        granted_by="ann",
        expires_at=datetime(2199, 1, 1, tzinfo=UTC),
    )
    grants = SqlGrants(node.store)
    grants.put(grant)


def test_the_invitation_has_the_address_of_the_settings(world, browser):
    any_port = "127.0.0.1:0"
    advertised = "http://gw.bank.example:7380"
    listen = {
        "peer": {
            "bind": any_port,
            "advertise": advertised,
        },
        "container": {"bind": any_port},
        "operator": {"bind": any_port},
    }
    node = world.node(
        settings={"listen": listen},
        prepare=make_key,
    )

    person = open_page(browser, node, "invitation")

    address = person.named_input("address")
    expect(address).to_have_value(advertised)
    person.press("show invitation")
    invitation = person.page.locator("main pre")
    expect(invitation).to_contain_text(advertised)
