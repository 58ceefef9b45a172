"""A first hour in the browser: users of two nodes, from the login to the curves of a training."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.console import translator
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for
from tests.services.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.browser]
TOKEN = "0123456789abcdef0123"
expect.set_options(timeout=120_000)  # ms; only ends a hang
HOSTILE = "<img src=x onerror=\"document.title='stolen'\">"
PAGES = ("jobs", "submit", "approvals", "data", "providers", "partners", "node")
LANGUAGES = ["en-GB", "zh-CN"]
CHART = ".chart [role=img][aria-label^='train-loss loss']"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two nodes with tokens; at the host each job needs approval."""
    home = tmp_path_factory.mktemp("console")
    auth = {
        "mode": "on",
        "token": TOKEN,
    }
    with Federation(
        home, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0"), auth=auth
    ) as federation:
        for node in federation.nodes.values():
            node.headers["authorization"] = f"Bearer {TOKEN}"
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        host = federation[jobs.HOST]
        host.stop()
        host.settings["approval"] = {"mode": "person"}
        host.start()
        yield federation


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as instance:
        yield instance


@pytest.fixture
def language() -> str:
    """Chinese, the language of most users; tests of both languages name them."""
    return "zh-CN"


def person(
    browser: Browser,
    node: Node,
    language: str,
    **options: Any,
) -> Page:
    """Return the console after a login; an error of the page fails the test.

    ``options`` are further ones of the browser's context.
    """
    context: BrowserContext = browser.new_context(locale=language, **options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
    page.goto(f"{node.operator}/")
    page.locator("input[name=token]").fill(TOKEN)
    page.locator("form button").click()
    expect(page.locator("nav")).to_be_visible()
    return page


def go(page: Page, name: str) -> None:
    page.locator(f"nav a[href='#/{name}']").click()
    expect(page.locator(f"nav a[href='#/{name}'][aria-current=page]")).to_be_visible()
    expect(page.locator("main h1")).to_be_visible()


def button(
    page: Page | Locator,
    name: str,
) -> Locator:
    return page.get_by_role(
        "button",
        name=name,
        exact=True,
    )


def keep(page: Page, name: str) -> None:
    """Write a picture of a page into the folder that BFIA_SCREENSHOTS names."""
    folder = os.environ.get("BFIA_SCREENSHOTS")
    if folder:
        page.screenshot(
            path=f"{folder}/{name}.png",
            full_page=True,
        )


def serious_violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return the rules of accessibility that a page breaks, each with the elements."""
    return [
        (violation["id"], [node["html"][:120] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


def test_a_wrong_token_is_refused_and_stored_nowhere(nodes, browser):
    page = browser.new_page()
    page.goto(f"{nodes[jobs.GUEST].operator}/")
    page.locator("input[name=token]").fill("bfia_wrong")
    page.locator("form button").click()
    expect(page.get_by_role("alert")).to_contain_text("TOKEN_UNKNOWN")
    assert page.context.cookies() == []


def test_a_job_is_checked_submitted_approved_and_its_result_looked_at(nodes, browser, language):
    ann = person(browser, nodes[jobs.GUEST], language)
    hers = translator(language)
    bob = person(browser, nodes[jobs.HOST], "en-GB")
    his = translator("en-GB")
    agreed = f"与数据部门确认 {language}"
    body = jobs.quick_job(jobs.GUEST, jobs.HOST) | {"flow_id": HOSTILE}
    go(ann, "submit")
    ann.locator("summary", has_text=hers("job as JSON")).click()
    text = ann.locator("textarea")
    submit = button(ann, hers("submit"))
    text.fill("{")
    submit.click()
    expect(ann.get_by_role("alert")).to_contain_text(hers("not JSON"))
    text.fill(json.dumps(body | {"config": {}}))
    submit.click()
    expect(ann.get_by_role("alert")).to_contain_text("config.initiator")
    lost = json.loads(json.dumps(body).replace("testspace#test_guest", "testspace#none"))
    text.fill(json.dumps(lost))
    expect(ann.get_by_role("alert")).to_have_text(hers("would not run"))  # by itself
    submit.click()
    expect(ann.get_by_role("alert")).to_have_text(
        hers("would not run")
        + hers(
            "not submitted",
            count=1,
        )
    )
    assert nodes[jobs.GUEST].get("/api/v1/jobs", flow_id=HOSTILE, status="PENDING")["jobs"] == []
    text.fill(json.dumps(body))
    expect(ann.get_by_text(hers("would run"))).to_be_visible()
    submit.click()
    expect(ann.locator("main h1")).to_contain_text("job-")
    expect(ann.get_by_text(HOSTILE, exact=True)).to_be_visible()
    expect(ann.locator(".box.wait").first).to_contain_text("APPROVAL")

    go(bob, "approvals")
    expect(bob.get_by_text(HOSTILE).first).to_be_visible()
    # The dataset that the job would read, its image and its parameters.
    expect(bob.get_by_role("link", name="testspace#test_host").first).to_be_visible()
    expect(bob.get_by_text("unionpay:2.0.0").first).to_be_visible()
    parameters = bob.get_by_text(re.compile('rsa_params: .*"key_length":1024')).first
    expect(parameters).to_be_visible()
    keep(bob, f"approvals-{language}")
    button(bob, his("approve")).click()
    expect(bob.locator("dialog p")).to_contain_text("job-")
    bob.locator("dialog input").fill(agreed)
    bob.locator("dialog button.main").click()
    expect(bob.locator("#notices .good")).to_contain_text("job-")
    expect(bob.get_by_text(his("nothing waits")).first).to_be_visible()

    expect(ann.locator("main .row .badge").first).to_have_text(hers("=SUCCEEDED"))  # by itself
    expect(ann.locator(".graph .task.good")).to_have_count(2)
    expect(ann.locator(f"{CHART} canvas")).to_be_visible()
    button(ann, hers("log")).first.click()
    expect(ann.locator("pre.log")).not_to_be_empty()
    button(ann, hers("look")).first.click()
    expect(ann.get_by_role("region", name="id, y")).to_be_visible()
    with ann.expect_download() as download:
        ann.get_by_role("link", name=hers("download"), exact=True).first.click()
    assert Path(download.value.path()).read_bytes().startswith(b"id,y,")
    assert ann.title() != "stolen" != bob.title()
    keep(ann, f"job-{language}")
    go(bob, "jobs")
    bob.locator("main table a").first.click()
    expect(bob.locator("main .row .badge").first).to_have_text(his("=SUCCEEDED"))
    old = ann.locator("main h1").inner_text()
    button(ann, hers("run again")).click()
    expect(ann.locator("dialog select")).to_have_value("intersect_rsa_1")
    ann.locator("dialog select").select_option("hetero_secureboost_1")
    with ann.expect_request("**/rerun") as sent:
        ann.locator("dialog button.main").click()
    assert sent.value.post_data_json == {"from": "hetero_secureboost_1"}
    expect(ann.locator("main h1")).not_to_have_text(old)
    expect(ann.get_by_role("link", name=f"{old[:16]}…")).to_be_visible()
    go(bob, "approvals")
    button(bob, his("reject")).click()
    bob.locator("dialog button.danger").click()
    expect(ann.locator(".graph .task", has_text=hers("=not run"))).to_have_count(2)
    expect(ann.get_by_text(hers("nothing was started"))).to_be_visible()
    audit = nodes[jobs.HOST].get("/api/v1/audit")["audit"]
    approvals = [entry for entry in audit if entry["action"].endswith("/approve")]
    assert approvals[0]["who"] == "operator"
    assert approvals[0]["detail"]["reason"] == agreed


def test_a_job_is_drawn_from_the_registered_components(nodes, browser, language, tmp_path):
    """Both nodes accept the drawn job; keys of its JSON that the drawing lacks stay unchanged."""
    page = person(browser, nodes[jobs.GUEST], language)
    say = translator(language)
    node, dataset = (f"{say(key)} {{}}.0" for key in ("node", "dataset"))
    go(page, "submit")
    page.get_by_label(say("flow")).fill("drawn")
    button(page, say("add a party")).click()
    expect(page.get_by_label(node.format("host"))).to_have_value(jobs.HOST)
    button(page, say("add a task")).click()
    expect(page.get_by_text(say("no tasks yet"))).to_be_visible()  # as none is chosen
    page.get_by_label(say("component")).select_option(label="Intersection · unionpay:2.0.0@docker")
    button(page, say("add a task")).click()
    expect(page.get_by_role("heading", name="Intersection")).to_be_visible()
    for role in ("guest", "host"):
        page.get_by_label(dataset.format(role)).fill(f"testspace#test_{role}")
        page.keyboard.press("Tab")
    page.get_by_label("(id)").fill("id")
    page.get_by_label(say("component")).select_option(
        label="HeteroSecureBoost · unionpay:2.0.0@docker"
    )
    button(page, say("add a task")).click()
    expect(page.get_by_role("heading", name="HeteroSecureBoost")).to_be_visible()
    page.get_by_label(say("name"), exact=True).fill("trees")
    page.keyboard.press("Tab")
    expect(page.get_by_label(f"{say('input')} train_data")).to_have_value(
        "intersection_1.train_data"
    )
    page.get_by_label("(num_trees)").fill("2")
    page.get_by_label("(tree_param)").fill('{"max_depth": 2}')
    page.keyboard.press("Tab")
    page.get_by_role("button", name="intersection_1").press("Enter")
    expect(page.get_by_role("heading", name="Intersection")).to_be_visible()
    expect(page.get_by_label("(id)")).to_have_value("id")
    keep(page, f"composer-{language}")
    page.locator("summary", has_text=say("job as JSON")).click()
    job = json.loads(page.locator("textarea").input_value())
    assert job["config"]["task_params"] == {
        "common": {
            "intersection_1": {"id": "id"},
            "trees": {
                "num_trees": 2,
                "tree_param": '{"max_depth": 2}',
            },
        },
        "guest": {"0": {"intersection_1": {"dataset_id": "testspace#test_guest"}}},
        "host": {"0": {"intersection_1": {"dataset_id": "testspace#test_host"}}},
    }
    job["config"]["task_params"]["common"]["trees"] |= {
        "id": "id",
        "encrypt_param": {
            "method": "Paillier",
            "key_length": 1024,
        },
    }
    job["tags"] = ["kept"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    page.locator("input[type=file]").set_input_files(file)
    expect(page.locator("textarea")).to_have_value(re.compile('"kept"'))
    page.get_by_label(say("flow")).fill("drawn again")
    with page.expect_download() as download:
        button(page, say("save as JSON")).click()
    assert json.loads(Path(download.value.path()).read_text()) == job | {"flow_id": "drawn again"}
    button(page, say("plan")).click()
    expect(page.get_by_text(say("would run"))).to_be_visible()


def test_curves_grow_while_training_runs(nodes, browser, language):
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["common"]["hetero_secureboost_1"] |= {
        "num_trees": 1000,
        "tol": 0,
    }
    body["config"]["job_params"]["guest"] = {"0": {"resources": {"cpu": 1}}}
    job_id = nodes[jobs.GUEST].submit(body)
    wait_for(lambda: nodes[jobs.HOST].get("/api/v1/approvals")["approvals"])
    nodes[jobs.HOST].post(
        f"/api/v1/jobs/{job_id}/approve",
        {"reason": "agreed"},
    )
    page = person(browser, nodes[jobs.GUEST], language)
    say = translator(language)
    page.goto(f"{nodes[jobs.GUEST].operator}/console/#/jobs/{job_id}")
    points = page.locator(
        "summary",
        has_text="loss (",
    )
    before = points.text_content()
    assert before is not None
    points.click()
    expect(points).not_to_have_text(before)
    expect(page.locator("details[open] summary", has_text="loss (")).to_be_visible()
    expect(page.locator(f"{CHART} canvas")).to_be_visible()
    position = page.locator(".chart .u-series .u-value").first
    expect(position).not_to_have_text(re.compile("^[01]?$"))  # the legend shows the last point
    page.locator(f"{CHART} .u-over").hover(position={"x": 1, "y": 50})
    expect(position).to_have_text(re.compile("^[01]$"))
    expect(page.locator("main .row .badge").first).to_have_text(say("=RUNNING"))
    keep(page, f"training-{language}")
    assert serious_violations(page) == []
    page.emulate_media(color_scheme="dark")
    expect(page.locator(f"{CHART} canvas")).to_be_visible()
    assert serious_violations(page) == []
    keep(page, f"training-{language}-dark")
    go(page, "node")
    expect(page.get_by_role("row", name=job_id)).to_be_visible()  # who holds what, since when
    page.get_by_role("link", name=job_id).click()
    button(page, say("stop")).click()
    page.locator("dialog button.danger").click()
    expect(page.locator("main .row .badge").first).to_have_text(say("=STOPPED"))
    expect(page.locator("main .box.bad")).to_contain_text(f"{say('by')} operator")
    runs = page.locator(
        "section",
        has=page.get_by_role(
            "heading",
            name=say("runs here"),
            exact=True,
        ),
    )
    expect(runs.locator(".badge", has_text=say("=STOPPED"))).to_have_count(
        1
    )  # by itself, after the job
    expect(page.locator("dt", has_text=say("model"))).to_have_count(0)  # none was made
    page.locator("#skip").press("Enter")
    expect(page.locator("main h1")).to_have_text(job_id)  # and not the page of all jobs

    def failed(
        route: Any,
    ) -> None:  # as after a failure at the partner: the job was not stopped by a person
        response = route.fetch()
        failure = {
            "reason": "EXIT_1",
            "message": "",
            "node": jobs.HOST,
            "role": "host",
            "task": "it's",
        }
        failed_job = response.json() | {
            "outcome": "FAILED",
            "failure": failure,
        }
        route.fulfill(
            response=response,
            json=failed_job,
        )

    page.route(f"**/api/v1/jobs/{job_id}", failed)
    page.reload()
    expect(runs.get_by_text(say("stopped with the job"))).to_have_count(1)
    command = f"""job logs {job_id} --task 'it'"'"'s' --party host.0"""
    expect(page.locator("main .box.bad")).to_contain_text(command)
    lanes = page.locator(
        "section",
        has=page.get_by_role(
            "heading",
            name=say("over time"),
            exact=True,
        ),
    )
    expect(lanes.locator("td", has_text=re.compile(r"^(guest|host)\.0$"))).to_have_count(4)
    expect(lanes.locator(".lane .wait")).to_have_count(1)
    expect(lanes.locator(".lane .busy")).to_have_count(0)
    keep(page, f"failed-{language}")


def test_the_picture_of_the_console_shows_an_ended_training(nodes, browser):
    """README's picture, written into the folder that BFIA_SCREENSHOTS names."""
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["common"]["hetero_secureboost_1"] |= {
        "num_trees": 12,
        "tol": 0,
    }
    job_id = nodes[jobs.GUEST].submit(body)
    wait_for(lambda: nodes[jobs.HOST].get("/api/v1/approvals")["approvals"])
    nodes[jobs.HOST].post(
        f"/api/v1/jobs/{job_id}/approve",
        {"reason": "agreed"},
    )
    viewport = {
        "width": 1240,
        "height": 960,
    }
    page = person(
        browser,
        nodes[jobs.GUEST],
        "en-GB",
        viewport=viewport,
    )
    page.goto(f"{nodes[jobs.GUEST].operator}/console/#/jobs/{job_id}")
    expect(page.locator("main .row .badge").first).to_have_text("SUCCEEDED")
    expect(page.locator(f"{CHART} canvas")).to_be_visible()
    folder = os.environ.get("BFIA_SCREENSHOTS")
    if folder:
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=f"{folder}/console.png")


def test_a_table_is_uploaded_granted_and_revoked(nodes, browser, language, tmp_path):
    page = person(browser, nodes[jobs.GUEST], language)
    say = translator(language)
    table = tmp_path / "t.csv"
    table.write_text("id;y\n1;0\n1;1\n")
    go(page, "data")
    for name, text in (
        ("namespace", "bank"),
        ("name", language),
        ("id column", "id"),
        ("label column", "y"),
    ):
        page.locator(f"input[name='{name}']").fill(text)
    page.locator("input[type=file]").set_input_files(table)
    with page.expect_request("**/upload/file") as sent:
        page.locator("form button.main").click()
    assert sent.value.header_value("accept-language") == language[:2]
    expect(page.locator("form .box.bad")).to_contain_text("file:3")  # an id that is there twice
    table.write_text("id;y\n1;0\n2;1\n")
    page.locator("input[type=file]").set_input_files(table)
    page.locator("form button.main").click()
    expect(page.locator("#notices")).to_contain_text(
        say(
            "uploaded",
            id=f"bank#{language}",
            rows=2,
            columns=2,
        )
    )
    page.get_by_role("link", name=f"bank#{language}").click()
    for name, state in (("grant", "=in force"), ("revoke", "=revoked")):
        button(page, say(name)).click()
        page.locator("dialog button").first.click()
        expect(page.locator("main .badge", has_text=say(state))).to_be_visible()
    (grant,) = nodes[jobs.GUEST].get(f"/api/v1/datasets/bank/{language}")["grants"]
    assert grant["node"] == jobs.HOST
    assert grant["state"] == "revoked"


def test_a_route_is_tested_disabled_and_rolled_back(nodes, browser, language):
    guest = nodes[jobs.GUEST]
    page = person(browser, guest, language)
    say = translator(language)

    def enabled() -> bool:
        return bool(guest.get("/api/v1/routes")["routes"][0]["enabled"])

    go(page, "partners")
    button(page, say("test")).click()
    expect(
        page.get_by_role(
            "cell",
            name=say("=step way back").removeprefix("step "),
        )
    ).to_be_visible()
    version = guest.get("/api/v1/routes")["version"]
    button(page, say("edit")).click()
    page.locator("dialog input[name=institution]").fill("BANK-B")
    page.locator("dialog input[name=url]").fill("ftp://x")
    page.locator("dialog button.main").click()
    wrong = page.locator("#notices .bad")
    expect(wrong.locator("p")).to_have_count(2)  # the reason and the problem
    expect(wrong).to_contain_text("必须以下列之一开头")
    button(page, say("edit")).click()
    expect(wrong).to_have_count(0)
    page.locator("dialog input[name=institution]").fill("BANK-B")
    page.locator("dialog input[name=ca]").fill("/none.pem")
    page.locator("dialog button.main").click()
    expect(wrong).to_contain_text(f"{jobs.HOST}.ca")
    button(page, say("edit")).click()
    page.locator("dialog input[name=institution]").fill("BANK-B")
    page.locator("dialog button.main").click()
    expect(page.locator("#notices")).to_contain_text(say("version in force", version=version + 1))
    expect(page.get_by_role("cell", name="BANK-B", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name=say("=enabled"), exact=True)).to_be_visible()
    button(page, say("disable")).click()
    page.locator("dialog input").fill(f"maintenance {language}")
    page.locator("dialog button.danger").click()
    expect(page.get_by_text(f"maintenance {language}")).to_be_visible()
    assert enabled() is False
    button(page.get_by_role("row", name=re.compile(rf"^{version} ")), say("back to this")).click()
    page.locator("dialog button.main").click()
    expect(button(page, say("disable"))).to_be_visible()
    expect(page.get_by_role("cell", name="BANK-B", exact=True)).to_have_count(0)
    assert enabled() is True
    page.locator("summary", has_text=say("new partner")).click()
    button(page, say("add a route")).click()
    page.locator("dialog input[name=node]").fill("JG0100003300000030")
    page.locator("dialog input[name=via]").fill("JG0100009900000099")
    page.locator("dialog button.main").click()
    expect(page.locator("#notices")).to_contain_text("ROUTE_INVALID")  # no such node
    (before,) = guest.get("/api/v1/routes")["routes"]
    button(page, say("add a route")).click()
    page.locator("dialog input[name=node]").fill(jobs.HOST)
    page.locator("dialog input[name=institution]").fill("BANK-C")
    page.locator("dialog button.main").click()
    expect(page.get_by_role("cell", name="BANK-C", exact=True)).to_be_visible()
    assert guest.get("/api/v1/routes")["routes"] == [before | {"institution": "BANK-C"}]


@pytest.mark.parametrize(
    ("language", "apart", "runs"),
    [
        ("en-GB", "keeps nothing apart", "the node is running"),
        ("zh-CN", "process 引擎不做任何隔离", "节点正在运行"),
    ],
)
def test_the_node_is_checked_and_its_audit_log_is_searched(nodes, browser, language, apart, runs):
    page = person(browser, nodes[jobs.GUEST], language)
    say = translator(language)
    go(page, "node")
    button(page, say("look at all")).click()
    expect(page.get_by_role("cell", name=apart)).to_have_count(2)  # and of the engine
    expect(page.get_by_role("cell", name=runs)).to_be_visible()
    page.locator("input[name=action]").fill({"zh-CN": "上传", "en-GB": "Upload"}[language])
    page.keyboard.press("Tab")
    uploads = page.get_by_role(
        "cell",
        name="POST /v2/component/upload/file",
    )
    expect(page.get_by_role("row").filter(has=uploads).last).to_contain_text(say("=done"))
    expect(page.get_by_role("cell", name="POST /v2/provider/register")).to_have_count(0)
    page.locator("input[name=action]").fill("provider/register")
    page.keyboard.press("Tab")
    expect(page.get_by_role("cell", name="POST /v2/provider/register")).to_have_count(1)
    expect(uploads).to_have_count(0)
    page.locator("input[name=who]").fill("nobody")
    page.keyboard.press("Tab")
    expect(page.get_by_text(say("no audit"))).to_be_visible()


@pytest.mark.parametrize(("language", "scheme"), [*zip(LANGUAGES, ("light", "dark"), strict=True)])
def test_every_page_is_usable_without_eyes_or_mouse_and_on_a_telephone(
    nodes, browser, language, scheme
):
    page = person(
        browser,
        nodes[jobs.GUEST],
        language,
        color_scheme=scheme,
        viewport={
            "width": 390,
            "height": 800,
        },
    )
    for name in PAGES:
        go(page, name)
        if name != "jobs":  # which follows a stream
            page.wait_for_load_state("networkidle")
        assert serious_violations(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            f"{name} is too wide"
        )
        hidden = (
            "[...document.querySelectorAll('td button')]"
            ".some((b) => b.getBoundingClientRect().right > innerWidth)"
        )
        assert not page.evaluate(hidden), f"{name} has buttons out of sight"
        if name == "providers":
            expect(page.locator("tbody td").last).to_have_text(translator(language)("=admins"))
        keep(page, f"{name}-{language}-{scheme}")
