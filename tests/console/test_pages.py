"""Pages in the browser over nodes in this process: foreign text, invitations, YAML, templates."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.auth import Role
from gateway.identity.keys import Keyring
from tests.cleaning.ended import left_behind, logs_of
from tests.e2e import jobs
from tests.inprocess import ME, PEER, STRANGER, Node, token_of
from tests.registry.builders import a_description, a_request
from tests.services.browser import chromium
from tests.trust.contract_sender import APPLY, Sender
from tests.world import NodeSetup, World

pytestmark = [pytest.mark.slow, pytest.mark.browser]
expect.set_options(timeout=120_000)  # ms; only ends a hang
SCRIPT = (
    "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>{{7*7}}"
)
JOB = "job-00000000000000000000000000000051"
# The pages that the navigation names.
PAGES = ("approvals", "data", "providers", "partners", "node", "submit", "jobs")


def make_key(node: Node) -> None:
    Keyring(node.settings.state_dir).make("ed25519")


@pytest.fixture(scope="module")
def nodes(shared_world: World) -> tuple[Node, Node]:
    """Two nodes with keys, `ME` and `PEER`, without routes to each other."""
    me = shared_world.node(prepare=make_key)
    peer = shared_world.node(
        NodeSetup(PEER),
        prepare=make_key,
    )
    return me, peer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as instance:
        yield instance


@pytest.fixture(autouse=True)
def close_pages(browser) -> Iterator[None]:
    """Close the pages of each test: every page holds a stream of events open."""
    yield
    for context in browser.contexts:
        context.close()


def address_of(node: Node, path: str) -> str:
    """Return the address of a page of the console."""
    return f"{node.addresses()['operator']}/console/#/{path}"


def open_page(
    browser: Browser,
    node: Node,
    path: str,
    language: str = "en-GB",
) -> Page:
    """Open a page of the console; an error or a dialog of the browser fails the test."""
    page = browser.new_context(locale=language).new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
    page.on("dialog", lambda dialog: pytest.fail(f"the page says {dialog.message}"))
    page.goto(address_of(node, path))
    expect(page.locator("main h1")).to_be_visible()
    return page


def click_button(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def unfold(page: Page, summary: str) -> None:
    """Click on the title of a folded part of the page."""
    page.locator("summary", has_text=summary).click()


def confirm(page: Page) -> None:
    """Click on the main button of the dialog."""
    page.locator("dialog button.main").click()


# ---------------------------------------------------------------- text from others


def write_hostile_job(node: Node) -> None:
    """Have a finished job with a script in its log and its report."""
    job = left_behind(node, JOB, 60.0)
    (run,) = job.runs
    (logs_of(node, run) / "stdout.log").write_text(f"begins {SCRIPT}\n")
    report = {
        SCRIPT: 0.5,
        "remark": SCRIPT,
        "loss": [{SCRIPT: n, "loss": 1 / (n + 1)} for n in range(3)],
        "vast": [{"at": n, "value": 10.0 ** (100 * n - 150)} for n in range(4)],
        "bars": [
            {
                "name": SCRIPT,
                "value": -1.5,
            },
            {"name": "b", "value": None},
        ],
    }
    folder = node.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-report"
    (folder / "data_0").write_text(json.dumps(report))


def register_hostile_provider(node: Node) -> None:
    """Register a component twice, the second time with a script as its description."""
    for text in ("first", SCRIPT):
        description = a_description(
            title=text,
            description=text,
        )
        request = a_request(
            description,
            metadata={"image": "acme:1.0.0"},
        )
        response = node.post("/api/v1/providers", request)
        assert response.status_code == 200, response.text


def upload_hostile_dataset(node: Node) -> None:
    """Upload a dataset with markup as the name of a column."""
    response = node.post(
        "/v2/component/upload/file",
        data={
            "namespace": "bank",
            "name": "loans",
        },
        files={"file": ("t.csv", b"id,<b>x\n1,2\n")},
    )
    assert response.json()["code"] == 0


def change_route_with_hostile_reason(node: Node) -> None:
    body = {
        "route": {"url": "http://127.0.0.1:9"},
        "reason": SCRIPT,
    }
    node.request(
        "PUT",
        "/api/v1/routes/JG0100003300000030",
        json=body,
    )


def test_text_from_others_is_text_on_every_page(nodes, browser):
    me, _ = nodes
    write_hostile_job(me)
    register_hostile_provider(me)
    upload_hostile_dataset(me)
    change_route_with_hostile_reason(me)

    page = open_page(browser, me, f"jobs/{JOB}")
    report_value = page.locator("dd", has_text="<img").first
    expect(report_value).to_be_visible()
    expect(page.get_by_role("img", name=SCRIPT).locator("canvas")).to_be_visible()
    expect(page.locator(".chart .u-label", has_text="<img")).to_be_visible()
    expect(page.get_by_role("img", name="vast").locator("canvas")).to_be_visible()
    expect(page.locator(".bars", has_text="<img")).to_contain_text("-1.5")
    unfold(page, "loss (")
    click_button(page, "Log")
    expect(page.locator("pre.log")).to_contain_text("begins <img")

    page.goto(address_of(me, "providers/acme:1.0.0@docker"))
    expect(page.locator("summary", has_text="<img")).to_be_visible()
    page.get_by_role("button", name="Difference").first.click()
    expect(page.get_by_role("cell", name="<img").first).to_be_visible()

    for path, text in (
        ("data/bank/loans", "<b>x"),
        ("partners", "<img"),
        ("node", "/api/v1/routes/"),
    ):
        page.goto(address_of(me, path))
        expect(page.locator("main", has_text=text)).to_be_visible()

    page.goto(address_of(me, "data/bank/loans"))
    page.get_by_role("button", name="Statistics").click()
    expect(page.get_by_text("Of the first 1 of 1 rows.")).to_be_visible()

    assert page.title() != "stolen"
    assert page.locator("img[src=x]").count() == 0


def test_an_application_shows_the_key_and_the_address_to_compare(nodes, browser):
    me, peer = nodes
    sender = Sender()
    address = "https://192.0.2.77:7380"
    assert sender.pair is not None
    application = {
        **peer.card.public(),
        "node_id": STRANGER,
        "address": address,
        "auth_credential": sender.pair.public,
        "auth_type": "ED25519",
    }
    response = sender.ask(
        me,
        "POST",
        APPLY,
        application,
        STRANGER,
    )
    assert response["code"] == 0, response

    page = open_page(browser, me, "approvals")

    for text in (sender.pair.id, address, STRANGER):
        expect(page.get_by_role("cell", name=text, exact=True).first).to_be_visible()


# ---------------------------------------------------------------- roles


def log_in(
    page: Page,
    node: Node,
    token: str,
) -> None:
    page.goto(f"{node.addresses()['operator']}/")
    page.locator("input[name=token]").fill(token)
    page.locator("form button").click()
    expect(page.locator("nav")).to_be_visible()


@pytest.mark.parametrize(
    ("role", "log_buttons"),
    [
        (Role.VENDOR, 1),
        (Role.VIEWER, 0),
    ],
)
def test_a_role_is_offered_only_what_it_may_do(browser, role, log_buttons, world):
    node = world.node(token="0123456789abcdef0123")
    left_behind(node, JOB, 60.0)
    page = browser.new_page()
    page.set_default_timeout(60_000)
    refused = []

    def record_refusal(response):
        if response.status == 403:
            refused.append(response.url)

    page.on("response", record_refusal)
    log_in(page, node, token_of(node, role))

    for name in PAGES:
        page.locator(f"nav a[href='#/{name}']").click()
        expect(page.locator(f"nav a[href='#/{name}'][aria-current=page]")).to_be_visible()
        expect(page.locator("main h1")).to_be_visible()

    page.goto(address_of(node, f"jobs/{JOB}"))
    expect(page.get_by_role("heading", name="Outputs")).to_be_visible()
    assert page.get_by_role("button", name="Log", exact=True).count() == log_buttons
    for name in ("Look", "Stop", "Run again"):
        assert page.get_by_role("button", name=name, exact=True).count() == 0

    page.goto(address_of(node, "submit"))
    expect(page.locator("main .box.wait").first).to_contain_text(str(role))
    assert refused == []


# ---------------------------------------------------------------- invitations


@dataclass(frozen=True)
class PartnerTexts:
    """The texts on the page with partners."""

    add: str
    show: str
    compare: str
    accept: str


ENGLISH = PartnerTexts("Add a partner", "Show", "Compare", "Accept")
CHINESE = PartnerTexts("添加合作方", "显示", "核对", "接受")


class PartnerPage:
    """The page with partners, as a person of a node uses it."""

    def __init__(
        self,
        page: Page,
        node: Node,
        texts: PartnerTexts,
    ) -> None:
        self.page = page
        self.node = node
        self.texts = texts

    def invite(self) -> str:
        """Have an invitation shown and return it."""
        unfold(self.page, self.texts.add)
        self.page.locator("input[name=address]").fill(self.node.addresses()["peer"])
        click_button(self.page, self.texts.show)
        return self.page.locator("details pre").first.inner_text()

    def compare(self, invitation: str) -> str:
        """Enter the partner's invitation; return the words that both compare."""
        self.page.locator("textarea[name=invitation]").fill(invitation)
        click_button(self.page, self.texts.compare)
        return self.page.locator("p.words").inner_text()

    def accept(self) -> None:
        """Accept the invitation; the dialog asks for no certificates without https."""
        click_button(self.page, self.texts.accept)
        expect(self.page.locator("dialog input")).to_have_count(0)
        confirm(self.page)
        expect(self.page.locator("dialog")).to_have_count(0)

    def expect_partner(self, node_id: str) -> None:
        expect(self.page.get_by_role("cell", name=node_id).first).to_be_visible()


def test_two_people_become_partners_by_six_words(nodes, browser):
    me, peer = nodes
    ann = PartnerPage(
        open_page(browser, me, "partners"),
        me,
        ENGLISH,
    )
    bob = PartnerPage(
        open_page(browser, peer, "partners", "zh-CN"),
        peer,
        CHINESE,
    )

    invitation_of_ann = ann.invite()
    invitation_of_bob = bob.invite()
    words_of_ann = ann.compare(invitation_of_bob)
    words_of_bob = bob.compare(invitation_of_ann)
    assert words_of_ann == words_of_bob
    assert len(words_of_ann.split()) == 6

    ann.accept()
    bob.accept()
    ann.expect_partner(PEER)
    bob.expect_partner(ME)
    ann.page.get_by_role("row", name=PEER).get_by_role("button", name="Test").click()
    expect(ann.page.get_by_role("cell", name="way back")).to_be_visible()
    for node, partner in ((me, peer), (peer, me)):
        route = node.get(f"/api/v1/routes/{partner.settings.node.id}").json()["route"]
        assert route["signing"] == "required"
        assert route["url"] == partner.addresses()["peer"]

    # With https the dialog asks for certificates; a file that does not exist is refused.
    unfold(ann.page, ENGLISH.add)
    ann.page.locator("input[name=address]").fill(me.addresses()["peer"])
    ann.compare(invitation_of_bob.replace("http://", "https://"))
    click_button(ann.page, ENGLISH.accept)
    ann.page.locator("dialog input[name=ca]").fill("/none/ca.pem")
    confirm(ann.page)
    expect(ann.page.locator("#notices .bad")).to_contain_text(f"{PEER}.ca")


# ---------------------------------------------------------------- YAML and templates

# Values that a careless YAML writer or a translation of responses would change.
ODD_VALUES: dict[str, Any] = {
    "a": "yes",
    "b": "2026-11-25",
    "c": "007",
    "d": None,
    "e": 1e-9,
    "f": "中文\n: #",
    "g": [[]],
    "message": "no",
}


def choose_file(page: Page, file: Path) -> None:
    page.locator("input[type=file]").set_input_files(file)


def expect_job(
    page: Page,
    job: dict[str, Any],
) -> None:
    """Wait until the text field has a job with the odd values; compare it."""
    text = page.locator("textarea")
    expect(text).to_have_value(re.compile("2026-11-25"))
    assert json.loads(text.input_value()) == job


def test_a_job_goes_through_yaml_and_a_template_without_loss(nodes, browser, tmp_path):
    me, _ = nodes
    job = jobs.quick_job(ME, PEER) | {
        "flow_id": "loans",
        "tags": [ODD_VALUES],
    }
    file = tmp_path / "job.yaml"
    page = open_page(browser, me, "submit")
    unfold(page, "The job as JSON")
    page.locator("textarea").fill(json.dumps(job))

    with page.expect_download() as download:
        page.get_by_role("button", name="Save as YAML").click()
    download.value.save_as(file)
    page.get_by_role("button", name="Save as template").click()
    confirm(page)
    expect(page.get_by_label("Template", exact=True)).to_be_visible()

    page.locator("textarea").fill("{}")
    choose_file(page, file)
    expect_job(page, job)

    file.write_text("a: [")
    choose_file(page, file)
    expect(page.get_by_text("This is not YAML")).to_be_visible()

    # Another person, on another machine, uses the template and deletes it.
    second_page = open_page(browser, me, "submit", "zh-CN")
    second_page.get_by_label("模板", exact=True).select_option("loans")
    expect_job(second_page, job)
    second_page.get_by_role("button", name="删除模板").click()
    second_page.locator("dialog button.danger").click()
    expect(second_page.get_by_label("模板", exact=True)).to_have_count(0)
