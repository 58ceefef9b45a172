"""Every page without eyes, without a mouse, and on a telephone; and the documents it leads to."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from gateway.domain.applications import APPROVED
from tests.console import FILES
from tests.console.opening import address_of, browser, close_pages, make_key
from tests.console.person import Person, open_tab
from tests.console.test_pages import store_training
from tests.domain.test_applications import an_application
from tests.inprocess import PEER, Node
from tests.registry.builders import a_request
from tests.world import UNREACHABLE, NodeSetup

__all__ = ["browser", "close_pages"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.browser]

TOKEN = "0123456789abcdef0123"
JOB = "job-00000000000000000000000000000071"
OTHER_JOB = "job-00000000000000000000000000000072"
PAGES = (
    "overview",
    "jobs",
    f"jobs/{JOB}",
    f"jobs/{JOB}/rerun",
    "submit",
    f"submit/{JOB}",
    "approvals",
    "data",
    "data/bank/loans",
    "models",
    "models/credit/71",
    "providers",
    "providers/acme:1.0.0@docker",
    "partners",
    f"partners/{PEER}",
    "invitation",
    "tokens",
    "node",
    f"compare/{JOB}/{OTHER_JOB}",
    "nosuch",
)
FITS_THE_SCREEN = "document.documentElement.scrollWidth <= innerWidth"
TELEPHONE = {
    "width": 390,
    "height": 800,
}
SCREEN = {
    "width": 1280,
    "height": 800,
}


def fill_node(node: Node) -> None:
    """Have an entry for every page: jobs, a model, a dataset, a provider, a permit, a token."""
    make_key(node)
    store_training(node, JOB, loss=1.0)
    store_training(node, OTHER_JOB, loss=0.5)
    request = a_request(metadata={"image": "acme:1.0.0"})
    post(node, "/api/v1/providers", json=request)
    upload = {
        "namespace": "bank",
        "name": "loans",
    }
    table = ("loans.csv", b"id,x\n1,2\n")
    post(
        node,
        "/v2/component/upload/file",
        data=upload,
        files={"file": table},
    )
    token = {
        "name": "ann",
        "role": "viewer",
        "days": 1,
    }
    post(node, "/api/v1/tokens", json=token)
    permit = an_application(
        partner=PEER,
        status=APPROVED,
        most_jobs=5,
    )
    node.stored_applications.add(permit)
    application = an_application()
    node.stored_applications.add(application)


def post(node: Node, path: str, **body: Any) -> None:
    """Post something to a node as its admin."""
    response = node.request(
        "POST",
        path,
        token=TOKEN,
        **body,
    )
    assert response.status_code == 200, response.text


NODE = NodeSetup(
    routes={PEER: UNREACHABLE},
    token=TOKEN,
    prepare=fill_node,
)


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return the rules of accessibility that a page breaks, each with the elements."""
    broken = []
    report = Axe().run(page).response
    for violation in report["violations"]:
        elements = [element["html"] for element in violation["nodes"]]
        rule = violation["id"]
        broken.append((rule, elements))
    return broken


@pytest.mark.parametrize(
    ("language", "scheme", "viewport"),
    [
        ("en-GB", "light", SCREEN),
        ("zh-CN", "dark", TELEPHONE),
    ],
    ids=["light", "dark"],
)
def test_no_page_breaks_a_rule_of_accessibility(node, browser, language, scheme, viewport):
    page = open_tab(
        browser,
        language,
        color_scheme=scheme,
        viewport=viewport,
    )
    person = Person(page, language)
    address = node.addresses()["operator"]
    page.goto(f"{address}/")
    expect(person.named_input("token")).to_be_visible()
    assert violations(page) == [], "login"
    person.log_in(address, TOKEN)

    for path in PAGES:
        page.goto(address_of(node, path))
        loading = page.get_by_text(person.say("loading"))
        expect(loading).to_have_count(0)
        expect(person.heading).to_be_visible()
        assert person.alert.count() == 0, path
        assert violations(page) == [], path
        assert page.evaluate(FITS_THE_SCREEN), path


def test_a_dialog_is_used_by_the_keyboard_and_gives_the_focus_back(node, browser):
    page = open_tab(browser, "en-GB")
    person = Person(page, "en-GB")
    address = node.addresses()["operator"]
    person.log_in(address, TOKEN)
    page.goto(address_of(node, f"partners/{PEER}"))
    apply = person.button("apply for contract")

    apply.press("Enter")
    key = person.dialog.locator("[name=key]")
    key.fill("sha256:0000")
    key.press("Enter")
    problem = person.error_at("key")
    expect(problem).to_be_visible()
    expect(key).to_be_focused()
    described_by = key.get_attribute("aria-describedby")
    assert described_by == problem.get_attribute("id")
    page.keyboard.press("Escape")

    expect(person.dialog).to_have_count(0)
    expect(apply).to_be_focused()


def test_every_page_leads_to_its_document_and_the_api_to_its_reference(node):
    app = (FILES / "app.js").read_text(encoding="utf-8")
    names = re.findall(r'help: "([\w-]+)"', app)
    assert len(names) == 12

    for name in names:
        for suffix in (".md", ".zh-CN.md"):
            document = node.get(f"/docs/{name}{suffix}")
            assert document.status_code == 200
            assert "<h1" in document.text
    reference = node.get("/docs")
    assert "openapi.json" in reference.text
