"""Pages of the console over nodes in this process, as fixtures and functions of several tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from gateway.identity.keys import Keyring
from tests.console.person import Person, open_tab
from tests.inprocess import Node
from tests.services.browser import chromium

expect.set_options(timeout=120_000)  # ms; only ends a hang


def make_key(node: Node) -> None:
    Keyring(node.settings.state_dir).make("ed25519")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as instance:
        yield instance


@pytest.fixture(autouse=True)
def close_pages(browser: Browser) -> Iterator[None]:
    """Close the pages of each test: every page holds a stream of events open."""
    yield
    for context in browser.contexts:
        context.close()


def address_of(node: Node, path: str) -> str:
    """Return the address of a page of the console."""
    return f"{node.addresses()['operator']}/console/#/{path}"


def fail_for_dialog(dialog: object) -> None:
    """Fail the test for a dialog of the browser, which only foreign scripts open."""
    pytest.fail(f"the page says {dialog}")


def open_page(
    browser: Browser,
    node: Node,
    path: str,
    language: str = "en-GB",
) -> Person:
    """Open a page of the console; an error or a dialog of the browser fails the test."""
    page = open_tab(browser, language)
    page.on("dialog", fail_for_dialog)
    page.goto(address_of(node, path))
    expect(page.locator("main h1")).to_be_visible()
    return Person(page, language)
