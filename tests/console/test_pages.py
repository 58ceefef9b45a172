"""Pages in the browser over nodes in the test's process: text from others, invitations, YAML, templates."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.auth import Role
from gateway.bootstrap.node import Gateway
from gateway.identity.keys import Keyring
from tests.cleaning.ended import left_behind, logs_of
from tests.e2e import jobs
from tests.inprocess import ME, PEER, STRANGER, ask, running, token_of
from tests.registry.builders import a_description, a_request
from tests.services.browser import chromium
from tests.trust.contract_sender import APPLY, Sender

pytestmark = [pytest.mark.slow, pytest.mark.browser]
expect.set_options(timeout=120_000)  # there to end a hang
SCRIPT = (
    "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>{{7*7}}"
)
JOB = "job-00000000000000000000000000000051"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    home = tmp_path_factory.mktemp("pages")
    with running(home / "me") as me, running(home / "peer", PEER) as peer:
        for node in (me, peer):
            Keyring(node.settings.state_dir).make("ed25519")
        yield me, peer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as instance:
        yield instance


def opened(
    browser: Browser,
    node: Gateway,
    place: str,
    language: str = "en-GB",
) -> Page:
    page = browser.new_context(locale=language).new_page()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
    page.on("dialog", lambda dialog: pytest.fail(f"the page says {dialog.message}"))
    page.goto(f"{node.addresses()['operator']}/console/#/{place}")
    expect(page.locator("main h1")).to_be_visible()
    return page


def hostile(node: Gateway) -> None:
    """Have a job, a log, a report, a description, a dataset and a route's reason that hold a script."""
    local = left_behind(node, JOB, 60.0)
    (run,) = local.runs
    (logs_of(node, run) / "stdout.log").write_text(f"begins {SCRIPT}\n")
    report = {
        SCRIPT: 0.5,
        "remark": SCRIPT,
        "loss": [{SCRIPT: n, "loss": 1 / (n + 1)} for n in range(3)],
        "vast": [{"at": n, "value": 10.0 ** (100 * n - 150)} for n in range(4)],
        "bars": [{"name": SCRIPT, "value": -1.5}, {"name": "b", "value": None}],
    }
    (node.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-report" / "data_0").write_text(
        json.dumps(report)
    )
    for title in ("first", SCRIPT):
        body = a_request(
            a_description(title=title, description=title), metadata={"image": "acme:1.0.0"}
        )
        answer = ask(node, "operator", "POST", "/api/v1/providers", json=body)
        assert answer.status_code == 200, answer.text
    files = {"file": ("t.csv", b"id,<b>x\n1,2\n")}
    form = {"namespace": "bank", "name": "loans"}
    assert (
        ask(node, "operator", "POST", "/v2/component/upload/file", data=form, files=files).json()[
            "code"
        ]
        == 0
    )
    route = {"route": {"url": "http://127.0.0.1:9"}, "reason": SCRIPT}
    ask(node, "operator", "PUT", "/api/v1/routes/JG0100003300000030", json=route)


def test_text_from_others_is_text_on_every_page(nodes, browser):
    me, _ = nodes
    hostile(me)
    page = opened(browser, me, f"jobs/{JOB}")
    expect(page.locator("dd", has_text="<img").first).to_be_visible()  # the report
    chart = page.get_by_role("img", name=SCRIPT)
    expect(chart.locator("canvas")).to_be_visible()
    expect(page.locator(".chart .u-label", has_text="<img")).to_be_visible()
    expect(page.get_by_role("img", name="vast").locator("canvas")).to_be_visible()
    expect(page.locator(".bars", has_text="<img")).to_contain_text("-1.5")
    page.locator("summary", has_text="loss (").click()
    page.get_by_role("button", name="Log", exact=True).click()
    expect(page.locator("pre.log")).to_contain_text("begins <img")
    page.goto(f"{me.addresses()['operator']}/console/#/providers/acme:1.0.0@docker")
    expect(page.locator("summary", has_text="<img")).to_be_visible()
    page.get_by_role("button", name="Difference").first.click()
    expect(page.get_by_role("cell", name="<img").first).to_be_visible()
    for place, there in (
        ("data/bank/loans", "<b>x"),
        ("partners", "<img"),
        ("node", "/api/v1/routes/"),
    ):
        page.goto(f"{me.addresses()['operator']}/console/#/{place}")
        expect(page.locator("main", has_text=there)).to_be_visible()
    page.goto(f"{me.addresses()['operator']}/console/#/data/bank/loans")
    page.get_by_role("button", name="Statistics").click()
    expect(page.get_by_text("Of the first 1 of 1 rows.")).to_be_visible()
    assert page.title() != "stolen"
    assert page.locator("img[src=x]").count() == 0


def test_an_application_shows_the_key_and_the_address_to_compare(nodes, browser):
    me, peer = nodes
    sender = Sender()
    address = "https://192.0.2.77:7380"
    assert sender.pair is not None
    body = {
        **peer.card.public(),
        "node_id": STRANGER,
        "address": address,
    }
    body |= {"auth_credential": sender.pair.public, "auth_type": "ED25519"}
    said = sender.ask(me, "POST", APPLY, body, STRANGER)
    assert said["code"] == 0, said
    page = opened(browser, me, "approvals")
    for text in (sender.pair.id, address, STRANGER):
        expect(page.get_by_role("cell", name=text, exact=True).first).to_be_visible()


@pytest.mark.parametrize("role", [Role.VENDOR, Role.VIEWER])
def test_a_role_is_offered_only_what_it_may_do(browser, role, tmp_path_factory):
    with running(
        tmp_path_factory.mktemp("roles"), auth={"mode": "on", "token": "0123456789abcdef0123"}
    ) as node:
        left_behind(node, JOB, 60.0)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        refused: list[str] = []
        page.on(
            "response", lambda answer: refused.append(answer.url) if answer.status == 403 else None
        )
        page.goto(f"{node.addresses()['operator']}/")
        page.locator("input[name=token]").fill(token_of(node, role))
        page.locator("form button").click()
        expect(page.locator("nav")).to_be_visible()
        for name in ("approvals", "data", "providers", "partners", "node", "submit", "jobs"):
            page.locator(f"nav a[href='#/{name}']").click()
            expect(page.locator(f"nav a[href='#/{name}'][aria-current=page]")).to_be_visible()
            expect(page.locator("main h1")).to_be_visible()
        page.goto(f"{node.addresses()['operator']}/console/#/jobs/{JOB}")
        expect(page.get_by_role("heading", name="Outputs")).to_be_visible()
        assert page.get_by_role("button", name="Log", exact=True).count() == (role is Role.VENDOR)
        for button in ("Look", "Stop", "Run again"):
            assert page.get_by_role("button", name=button, exact=True).count() == 0
        page.goto(f"{node.addresses()['operator']}/console/#/submit")
        expect(page.locator("main .box.wait").first).to_contain_text(str(role))
        assert refused == []


def test_two_people_become_partners_by_six_words(nodes, browser):
    ann = opened(browser, nodes[0], "partners")
    bob = opened(browser, nodes[1], "partners", "zh-CN")
    words = [("Add a partner", "Show", "Compare", "Accept"), ("添加合作方", "显示", "核对", "接受")]
    invitations = []
    for page, node, (add, show, _, _) in zip((ann, bob), nodes, words, strict=True):
        page.locator("summary", has_text=add).click()
        page.locator("input[name=address]").fill(node.addresses()["peer"])
        page.get_by_role("button", name=show, exact=True).click()
        invitations.append(page.locator("details pre").first.inner_text())
    seen = []
    for page, theirs, (_, _, compare, _) in zip(
        (ann, bob), reversed(invitations), words, strict=True
    ):
        page.locator("textarea[name=invitation]").fill(theirs)
        page.get_by_role("button", name=compare, exact=True).click()
        seen.append(page.locator("p.words").inner_text())
    assert seen[0] == seen[1]
    assert len(seen[0].split()) == 6
    for page, (_, _, _, accept) in zip((ann, bob), words, strict=True):
        page.get_by_role("button", name=accept, exact=True).click()
        expect(page.locator("dialog input")).to_have_count(
            0
        )  # no certificates, as the address is not https
        page.locator("dialog button.main").click()
        expect(page.locator("dialog")).to_have_count(0)
    expect(ann.get_by_role("cell", name=PEER).first).to_be_visible()
    expect(bob.get_by_role("cell", name=ME).first).to_be_visible()
    ann.get_by_role("row", name=PEER).get_by_role("button", name="Test").click()
    expect(ann.get_by_role("cell", name="way back")).to_be_visible()
    for node, other in ((nodes[0], nodes[1]), (nodes[1], nodes[0])):
        route = ask(node, "operator", "GET", f"/api/v1/routes/{other.settings.node.id}").json()[
            "route"
        ]
        assert route["signing"] == "required"
        assert route["url"] == other.addresses()["peer"]
    ann.locator("summary", has_text="Add a partner").click()
    ann.locator("input[name=address]").fill(nodes[0].addresses()["peer"])
    ann.locator("textarea[name=invitation]").fill(invitations[1].replace("http://", "https://"))
    ann.get_by_role("button", name="Compare", exact=True).click()
    ann.get_by_role("button", name="Accept", exact=True).click()
    ann.locator("dialog input[name=ca]").fill("/none/ca.pem")
    ann.locator("dialog button.main").click()
    expect(ann.locator("#notices .bad")).to_contain_text(f"{PEER}.ca")


def test_a_job_goes_through_yaml_and_a_template_without_loss(nodes, browser, tmp_path):
    page = opened(browser, nodes[0], "submit")
    odd: dict[str, Any] = {
        "a": "yes",
        "b": "2026-11-25",
        "c": "007",
        "d": None,
        "e": 1e-9,
        "f": "中文\n: #",
        "g": [[]],
        "message": "no",  # in an answer's own field it would be translated
    }
    job = jobs.quick_job(ME, PEER) | {"flow_id": "loans", "tags": [odd]}
    page.locator("summary", has_text="The job as JSON").click()
    text = page.locator("textarea")
    text.fill(json.dumps(job))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as YAML").click()
    file = tmp_path / "job.yaml"
    download.value.save_as(file)
    page.get_by_role("button", name="Save as template").click()
    page.locator("dialog button.main").click()
    expect(page.get_by_label("Template", exact=True)).to_be_visible()
    text.fill("{}")
    page.locator("input[type=file]").set_input_files(file)
    whole = re.compile("2026-11-25")
    expect(text).to_have_value(whole)
    assert json.loads(text.input_value()) == job
    file.write_text("a: [")
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_text("This is not YAML")).to_be_visible()
    other = opened(browser, nodes[0], "submit", "zh-CN")  # another person, at another machine
    other.get_by_label("模板", exact=True).select_option("loans")
    expect(other.locator("textarea")).to_have_value(whole)
    assert json.loads(other.locator("textarea").input_value()) == job
    other.get_by_role("button", name="删除模板").click()
    other.locator("dialog button.danger").click()
    expect(other.get_by_label("模板", exact=True)).to_have_count(0)
