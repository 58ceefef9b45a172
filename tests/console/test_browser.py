"""A first hour in the browser: users of two nodes, from the login to the curves of a training."""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.console.person import Person, open_tab
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for
from tests.services.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.browser]
expect.set_options(timeout=120_000)  # ms; only ends a hang

TOKEN = "0123456789abcdef0123"
HOSTILE = "<img src=x onerror=\"document.title='stolen'\">"
PAGES = (
    "overview",
    "jobs",
    "submit",
    "approvals",
    "data",
    "models",
    "providers",
    "partners",
    "node",
)
CHART = ".chart [role=img][aria-label^='train-loss loss']"
STRANGER = "JG0100003300000030"  # a node without a route
UNKNOWN_NODE = "JG0100009900000099"
PROVIDER = "unionpay:2.0.0@docker"
UPLOAD = "POST /v2/component/upload/file"
REGISTRATION = "POST /v2/provider/register"
TELEPHONE = {
    "width": 390,
    "height": 800,
}
# Beginnings of a plan's verdicts, in both languages.
NO_OBSTACLE = re.compile("No obstacle found|未发现障碍")
WOULD_FAIL = re.compile("This job would fail: |该作业会失败：")
README_PICTURE = {
    "width": 1240,
    "height": 960,
}

# Scripts that run in a page.
VISIBLE_HEIGHT = (
    "Math.min(innerHeight, document.querySelector('main').getBoundingClientRect().bottom)"
)
FITS_THE_SCREEN = "document.documentElement.scrollWidth <= innerWidth"
HAS_BUTTONS_OUT_OF_SIGHT = (
    "[...document.querySelectorAll('td button')]"
    ".some((b) => b.getBoundingClientRect().right > innerWidth)"
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two nodes with tokens; at the host each job needs approval."""
    home = tmp_path_factory.mktemp("console")
    engine = process_engine("unionpay:2.0.0")
    auth = {
        "mode": "on",
        "token": TOKEN,
    }
    parties = [jobs.GUEST, jobs.HOST]
    with Federation(home, parties, engine, auth=auth) as federation:
        for node in federation.nodes.values():
            node.headers["authorization"] = f"Bearer {TOKEN}"
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        host = federation[jobs.HOST]
        host.stop()
        host.settings["approval"] = {"mode": "person"}
        host.start()
        yield federation


@pytest.fixture(scope="module")
def guest(nodes: Federation) -> Node:
    return nodes[jobs.GUEST]


@pytest.fixture(scope="module")
def host(nodes: Federation) -> Node:
    return nodes[jobs.HOST]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as instance:
        yield instance


@pytest.fixture
def language() -> str:
    """Chinese, the language of most users; tests of both languages name them."""
    return "zh-CN"


def log_in(
    browser: Browser,
    node: Node,
    language: str,
    **options: Any,
) -> Person:
    """Return a person after the login; ``options`` are further ones of the browser's context."""
    tab = open_tab(browser, language, **options)
    person = Person(tab, language)
    person.log_in(node.operator, TOKEN)
    return person


def serious_violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return the rules of accessibility that a page breaks, each with the elements."""
    serious = []
    report = Axe().run(page).response
    for violation in report["violations"]:
        if violation["impact"] in ("serious", "critical"):
            elements = [node["html"] for node in violation["nodes"]]
            serious.append((violation["id"], elements))
    return serious


def open_job(
    person: Person,
    node: Node,
    job_id: str,
) -> None:
    """Open the page of a job."""
    person.page.goto(f"{node.operator}/console/#/jobs/{job_id}")


def test_a_wrong_token_is_refused_and_stored_nowhere(guest, browser):
    page = browser.new_page()
    page.goto(f"{guest.operator}/")
    page.locator("input[name=token]").fill("bfia_wrong")
    page.locator("form button").click()

    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("TOKEN_UNKNOWN")
    assert page.context.cookies() == []


# ---------------------------------------------------------------- submitting and approving


def test_a_job_is_checked_submitted_approved_and_its_result_looked_at(
    guest, host, browser, language
):
    ann = log_in(browser, guest, language)
    bob = log_in(browser, host, "en-GB")
    comment = f"与数据部门确认 {language}"
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    body["flow_id"] = HOSTILE

    ann.go("submit")
    ann.unfold("job as JSON")
    expect_refused_jobs(ann, body)
    waiting = guest.get(
        "/api/v1/jobs",
        flow_id=HOSTILE,
        status="PENDING",
    )
    assert waiting["jobs"] == []
    submit_by_hand(ann, body)

    bob.go("approvals")
    expect_pending_approval(bob)
    bob.keep_picture(f"approvals-{language}")
    approve_by_hand(bob, comment)

    ann.sees_outcome("SUCCEEDED")
    expect_results(ann)
    expect_editable_copy(ann, body)
    assert ann.page.title() != "stolen"
    assert bob.page.title() != "stolen"
    ann.keep_picture(f"job-{language}")
    bob.go("jobs")
    bob.page.locator("main table a").first.click()
    bob.sees_outcome("SUCCEEDED")

    rerun_by_hand(ann)
    bob.go("approvals")
    bob.press("reject")
    bob.confirm_danger()
    not_run = ann.page.locator(
        ".graph .task",
        has_text=ann.say("=not run"),
    )
    expect(not_run).to_have_count(2)
    ann.sees(ann.say("nothing was started"))

    audit = host.get("/api/v1/audit")["audit"]
    approvals = []
    for entry in audit:
        if entry["action"].endswith("/approve"):
            approvals.append(entry)
    approval = approvals[0]
    assert approval["who"] == "operator"
    assert approval["detail"]["reason"] == comment


def expect_refused_jobs(
    ann: Person,
    body: dict[str, Any],
) -> None:
    """Submit text that is no JSON, a job with errors, and a job that a node would refuse."""
    ann.json.fill("{")
    ann.press("submit")
    expect(ann.alert).to_contain_text(ann.say("not JSON"))

    without_config = body | {"config": {}}
    ann.json.fill(json.dumps(without_config))
    ann.press("submit")
    expect(ann.alert).to_contain_text("config.initiator")

    without_dataset = json.dumps(body).replace(
        "testspace#test_guest",
        "testspace#none",
    )
    not_submitted = ann.say("not submitted", count=1)
    ann.json.fill(without_dataset)
    expect(ann.alert).to_contain_text(WOULD_FAIL)  # without a click
    expect(ann.alert).not_to_contain_text(not_submitted)
    ann.press("submit")
    expect(ann.alert).to_contain_text(not_submitted)


def submit_by_hand(
    ann: Person,
    body: dict[str, Any],
) -> None:
    """Submit a job; wait until its page shows the markup of its flow id as text."""
    ann.json.fill(json.dumps(body))
    expect(ann.page.locator(".box[role=status]")).to_contain_text(NO_OBSTACLE)
    ann.press("submit")
    expect(ann.heading).to_contain_text("job-")
    flow = ann.page.get_by_text(HOSTILE, exact=True)
    expect(flow).to_be_visible()
    first_wait = ann.page.locator(".box.wait").first
    expect(first_wait).to_contain_text("APPROVAL")


def expect_pending_approval(bob: Person) -> None:
    """Wait for the dataset that a job would read, its image and its parameters."""
    bob.sees_first(HOSTILE)
    dataset = bob.page.get_by_role("link", name="testspace#test_host")
    expect(dataset.first).to_be_visible()
    bob.sees_first("unionpay:2.0.0")
    pattern = re.compile('rsa_params: .*"key_length":1024')
    parameters = bob.page.get_by_text(pattern)
    expect(parameters.first).to_be_visible()


def approve_by_hand(bob: Person, comment: str) -> None:
    """Approve the only pending job with a comment."""
    bob.press("approve")
    expect(bob.dialog.locator("p")).to_contain_text("job-")
    bob.dialog.locator("input").fill(comment)
    bob.confirm()
    expect(bob.notices.locator(".good")).to_contain_text("job-")
    bob.sees_first(bob.say("nothing waits"))


def expect_results(ann: Person) -> None:
    """Wait for the graph and the curve of a job, and look at its log and its table."""
    successful_tasks = ann.page.locator(".graph .task.good")
    expect(successful_tasks).to_have_count(2)
    expect_curve(ann.page)

    ann.button("log").first.click()
    expect(ann.page.locator("pre.log")).not_to_be_empty()
    ann.button("look").first.click()
    table = ann.page.get_by_role("region", name="id, y")
    expect(table).to_be_visible()

    link = ann.page.get_by_role(
        "link",
        name=ann.say("download"),
        exact=True,
    )
    with ann.page.expect_download() as download:
        link.first.click()
    content = download.value.path().read_bytes()
    assert content.startswith(b"id,y,")


def expect_curve(page: Page) -> None:
    """Wait for the curve of the training's loss."""
    expect(page.locator(f"{CHART} canvas")).to_be_visible()


def expect_editable_copy(
    ann: Person,
    body: dict[str, Any],
) -> None:
    """Open the copy of a job, have it keep what does not change, and return to the job."""
    job_id = ann.heading.inner_text()
    ann.follow("edit as new job")
    expect(ann.heading).to_have_text(ann.say("page submit"))
    flow = ann.field("flow")
    expect(flow).to_have_value(HOSTILE)
    ann.field("take over unchanged").check()
    with_old_job = re.compile("old_job_id")
    expect(ann.json).to_have_value(with_old_job)

    text = ann.json.input_value()
    copied_job = json.loads(text)
    assert copied_job["old_job_id"] == job_id
    assert copied_job["dag"] == body["dag"]
    config = copied_job["config"]
    parameters = body["config"]["task_params"]
    assert config["task_params"] == parameters
    expect_good_plan(ann)

    ann.page.go_back()
    expect(ann.heading).to_have_text(job_id)


def expect_good_plan(person: Person) -> None:
    """Wait for a plan without problems."""
    verdict = person.page.locator("aside .box[role=status]")
    expect(verdict).to_be_visible()


def rerun_by_hand(ann: Person) -> None:
    """Run a job again from its second task with fewer trees; wait for the page of the new job."""
    job_id = ann.heading.inner_text()
    ann.follow("run again")
    task = ann.page.locator("select[name=from]")
    expect(task).to_have_value("intersect_rsa_1")
    task.select_option("hetero_secureboost_1")
    kept_tasks = ann.page.locator(".graph .task.good")
    expect(kept_tasks).to_have_count(1)
    trees = ann.page.get_by_label("(num_trees)")
    ann.enter(trees, "1")
    ann.sees_cell("num_trees")
    expect_good_plan(ann)
    ann.keep_picture("rerun")
    with ann.page.expect_request("**/rerun") as request:
        ann.press("run again")
    changes = {"hetero_secureboost_1": {"num_trees": 1}}
    assert request.value.post_data_json == {
        "from": "hetero_secureboost_1",
        "parameters": {"common": changes},
    }

    expect(ann.heading).to_contain_text("job-")
    expect(ann.heading).not_to_have_text(job_id)
    first_job = ann.page.get_by_role("link", name=f"{job_id[:16]}…")
    expect(first_job).to_be_visible()


# ---------------------------------------------------------------- drawing a job


def test_a_job_is_drawn_from_the_registered_components(guest, browser, language, tmp_path):
    """Both nodes accept the drawn job; keys of its JSON that the drawing lacks stay unchanged."""
    person = log_in(browser, guest, language)
    person.go("submit")
    draw_job(person)
    person.keep_picture(f"composer-{language}")

    person.unfold("job as JSON")
    job = json.loads(person.json.input_value())
    assert job["config"]["task_params"] == {
        "common": {
            "intersection_1": {
                "id": "id",
                "only_output_key": False,
            },
            "trees": {
                "num_trees": 2,
                "tree_param": '{"max_depth": 2}',
            },
        },
        "guest": {"0": {"intersection_1": dataset_of("guest")}},
        "host": {"0": {"intersection_1": dataset_of("host")}},
    }

    parameters = job["config"]["task_params"]["common"]
    parameters["trees"] |= {
        "id": "id",
        "encrypt_param": {
            "method": "Paillier",
            "key_length": 1024,
        },
    }
    job["tags"] = ["kept"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    person.choose_file(file)
    expect(person.json).to_have_value(re.compile('"kept"'))
    person.field("flow").fill("drawn again")
    with person.page.expect_download() as download:
        person.press("save as JSON")
    saved = download.value.path().read_text()
    job["flow_id"] = "drawn again"
    assert json.loads(saved) == job

    person.press("plan")
    expect(person.page.locator(".box[role=status]")).to_contain_text(NO_OBSTACLE)


def dataset_of(role: str) -> dict[str, str]:
    """Return the parameter that names the dataset of a role."""
    return {"dataset_id": f"testspace#test_{role}"}


def draw_job(person: Person) -> None:
    """Draw a job of two parties and two tasks, and rename the second task."""
    page = person.page
    node_of_host = f"{person.say('node')} host.0"
    person.field("flow").fill("drawn")
    person.press("add a party")
    node = page.get_by_label(node_of_host)
    expect(node).to_have_value(jobs.HOST)
    person.sees(person.say("no tasks yet"))

    add_task(person, "Intersection")
    person.sees_heading("Intersection")
    for role in ("guest", "host"):
        dataset = page.get_by_label(f"{person.say('dataset')} {role}.0")
        person.enter(dataset, f"testspace#test_{role}")
    page.get_by_label("(id)").fill("id")

    add_task(person, "HeteroSecureBoost")
    person.sees_heading("HeteroSecureBoost")
    name = page.get_by_label(
        person.say("name"),
        exact=True,
    )
    person.enter(name, "trees")
    train_data = page.get_by_role(
        "combobox",
        name=f"{person.say('input')} train_data",
    )
    expect(train_data).to_have_value("intersection_1.train_data")
    page.get_by_label("(num_trees)").fill("2")
    person.enter(page.get_by_label("(tree_param)"), '{"max_depth": 2}')

    # By the keyboard back to the first task, which has its parameter still.
    first_task = page.locator("[data-name=intersection_1]")
    first_task.press("Enter")
    person.sees_heading("Intersection unionpay")
    expect(page.get_by_label("(id)")).to_have_value("id")


def part(person: Person, component: str) -> Locator:
    """Return a component in the list of the composer."""
    add = person.say("add a task")
    return person.page.get_by_role(
        "button",
        name=f"{add}: {component} · {PROVIDER}",
    )


def add_task(person: Person, component: str) -> None:
    part(person, component).click()


def test_tasks_are_connected_by_mouse_and_keyboard_and_show_their_errors(guest, browser, language):
    person = log_in(browser, guest, language)
    page = person.page
    person.go("submit")
    person.field("search components").fill("boost guest")
    expect(page.locator(".part")).to_have_count(1)
    person.field("search components").fill("")
    canvas = page.locator(".canvas")
    part(person, "Intersection").drag_to(canvas)
    first_task = page.locator("[data-name=intersection_1]")
    part(person, "HeteroSecureBoost").drag_to(first_task)
    connection = page.locator(".connection")
    expect(connection).to_have_count(1)

    connection.press("Delete")
    expect(connection).to_have_count(0)
    outputs = page.locator("[data-task=intersection_1]")
    table = outputs.and_(page.locator("[data-output=train_data]"))
    report = outputs.and_(page.locator("[data-output=train-intersection]"))
    table.press("Enter")
    expect(page.locator(".port.open")).to_have_count(1)  # neither a model's nor its own input
    page.keyboard.press("Enter")  # the focus is at the input
    expect(connection).to_have_count(1)

    connection.press("Delete")
    expect(connection).to_have_count(0)
    reading_task = page.locator("[data-task=hetero_secure_boost_1][data-input]")
    report.drag_to(reading_task)  # a report is no table
    expect(connection).to_have_count(0)
    table.drag_to(reading_task)
    expect(connection).to_have_count(1)

    expect_error_at_its_task(person)
    assert serious_violations(page) == []


def expect_error_at_its_task(person: Person) -> None:
    """Name a dataset that does not exist; wait for the error at the task that reads it."""
    page = person.page
    first_task = page.locator("[data-name=intersection_1]")
    first_task.click()
    dataset = page.get_by_label(f"{person.say('dataset')} guest.0")
    person.enter(dataset, "testspace#none")
    erroneous_task = page.locator(
        ".canvas .task.bad",
        has=first_task,
    )
    expect(erroneous_task).to_have_count(1)
    field = page.locator("label", has=dataset)
    expect(field.locator(".field-error")).to_contain_text("DATASET_UNKNOWN")
    expect(page.locator(".field-error.bad")).to_have_count(1)
    expect(dataset).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".canvas .task.bad")).to_have_count(1)
    person.keep_picture("errors")


# ---------------------------------------------------------------- watching a training


def a_training(**parameters: Any) -> dict[str, Any]:
    """Build a job with further parameters of its training."""
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    common = body["config"]["task_params"]["common"]
    common["hetero_secureboost_1"] |= parameters
    return body


def submit_approved(
    guest: Node,
    host: Node,
    body: dict[str, Any],
) -> str:
    """Submit a job, have the host approve it, and return its id."""
    job_id = guest.submit(body)
    wait_for(lambda: host.get("/api/v1/approvals")["approvals"])
    approval = {"reason": "agreed"}
    host.post(f"/api/v1/jobs/{job_id}/approve", approval)
    return job_id


def test_curves_grow_while_training_runs(guest, host, browser, language):
    body = a_training(num_trees=1000, tol=0)
    resources = {"resources": {"cpu": 1}}
    body["config"]["job_params"]["guest"] = {"0": resources}
    job_id = submit_approved(guest, host, body)
    person = log_in(browser, guest, language)
    open_job(person, guest, job_id)

    expect_growing_curve(person)
    person.sees_outcome("RUNNING")
    person.keep_picture(f"training-{language}")
    assert serious_violations(person.page) == []
    person.page.emulate_media(color_scheme="dark")
    expect_curve(person.page)
    assert serious_violations(person.page) == []
    person.keep_picture(f"training-{language}-dark")

    stop_by_hand(person, job_id)
    expect_stopped_job(person, job_id)

    show_failed_job(person, job_id)
    expect_failed_job(person, job_id)
    person.keep_picture(f"failed-{language}")


def expect_growing_curve(person: Person) -> None:
    """Wait for further points of the curve; look at the first point with the mouse."""
    page = person.page
    points = page.locator("summary", has_text="loss (")
    text_before = points.text_content()
    assert text_before is not None
    points.click()
    expect(points).not_to_have_text(text_before)
    open_points = page.locator("details[open] summary", has_text="loss (")
    expect(open_points).to_be_visible()
    expect_curve(page)

    position = page.locator(".chart .u-series .u-value").first
    expect(position).not_to_have_text(re.compile("^[01]?$"))  # the legend shows the last point
    left_edge = {
        "x": 1,
        "y": 50,
    }
    page.locator(f"{CHART} .u-over").hover(position=left_edge)
    expect(position).to_have_text(re.compile("^[01]$"))


def stop_by_hand(person: Person, job_id: str) -> None:
    """Stop a job that holds resources of the node."""
    person.go("node")
    # The table of the jobs that hold resources.
    row = person.page.get_by_role("row", name=job_id)
    expect(row).to_be_visible()
    person.page.get_by_role("link", name=job_id).click()
    person.press("stop")
    person.confirm_danger()


def expect_stopped_job(person: Person, job_id: str) -> None:
    """Wait for the author of the stop and the stopped run; a stopped job has no model."""
    page = person.page
    person.sees_outcome("STOPPED")
    by = person.say("by")
    expect(page.locator("main .box.bad")).to_contain_text(f"{by} operator")
    stopped_runs = person.section("runs here").locator(
        ".badge",
        has_text=person.say("=STOPPED"),
    )
    # The page updates without a reload, after the job.
    expect(stopped_runs).to_have_count(1)
    models = page.locator(
        "dt",
        has_text=person.say("model"),
    )
    expect(models).to_have_count(0)

    # The link leads to the job's own content, not to the page of all jobs.
    page.locator("#skip").press("Enter")
    expect(person.heading).to_have_text(job_id)


def show_failed_job(person: Person, job_id: str) -> None:
    """Show a stopped job as if a failure at the partner had ended it."""

    def respond_with_failure(route: Route) -> None:
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

    person.page.route(f"**/api/v1/jobs/{job_id}", respond_with_failure)
    person.page.reload()


def expect_failed_job(person: Person, job_id: str) -> None:
    """Wait for the command that shows the failed run's log, and for the times of the tasks."""
    runs = person.section("runs here")
    stopped_with_the_job = runs.get_by_text(person.say("stopped with the job"))
    expect(stopped_with_the_job).to_have_count(1)
    command = f"""job logs {job_id} --task 'it'"'"'s' --party host.0"""
    advice = person.page.locator("main .box.bad")
    expect(advice).to_contain_text(command)

    lanes = person.section("over time")
    label = re.compile(r"^(guest|host)\.0$")
    parties = lanes.locator("td", has_text=label)
    expect(parties).to_have_count(4)
    expect(lanes.locator(".lane .wait")).to_have_count(1)
    expect(lanes.locator(".lane .busy")).to_have_count(0)


def test_the_pictures_show_the_overview_a_training_and_the_composer(guest, host, browser):
    """README's pictures, written into the folder that BFIA_SCREENSHOTS names."""
    body = a_training(num_trees=12, tol=0)
    job_id = submit_approved(guest, host, body)
    person = log_in(
        browser,
        guest,
        "en-GB",
        viewport=README_PICTURE,
    )

    answer = person.page.locator(".badge", has_text="answers")
    expect(answer).to_be_visible()
    keep_readme_picture(person, "overview")

    open_job(person, guest, job_id)
    badge = person.page.locator("main .row .badge").first
    expect(badge).to_have_text("SUCCEEDED")
    expect_curve(person.page)
    keep_readme_picture(person, "console")

    person.follow("edit as new job")
    findings = person.page.locator(".canvas .count")
    expect(findings.first).to_be_visible()
    keep_readme_picture(person, "composer")


def keep_readme_picture(person: Person, name: str) -> None:
    """Write the top of the page into the folder that BFIA_SCREENSHOTS names."""
    folder = os.environ.get("BFIA_SCREENSHOTS")
    if folder:
        person.page.evaluate("scrollTo(0, 0)")
        height = person.page.evaluate(VISIBLE_HEIGHT)
        shown = {
            "x": 0,
            "y": 0,
            "width": README_PICTURE["width"],
            "height": height,
        }
        person.page.screenshot(
            path=f"{folder}/{name}.png",
            clip=shown,
        )


# ---------------------------------------------------------------- datasets


def test_a_table_is_uploaded_granted_and_revoked(guest, browser, language, tmp_path):
    person = log_in(browser, guest, language)
    table = tmp_path / "t.csv"
    table.write_text("id;y\n1;0\n1;1\n")  # an id twice
    person.go("data")
    person.fill("namespace", "bank")
    person.fill("name", language)
    person.fill("id column", "id")
    person.fill("label column", "y")
    person.choose_file(table)
    upload = person.page.locator("form button.main")
    with person.page.expect_request("**/upload/file") as request:
        upload.click()
    requested_language = request.value.header_value("accept-language")
    assert requested_language == language[:2]
    problem = person.page.locator("form .field-error")
    expect(problem).to_contain_text("file:3")

    table.write_text("id;y\n1;0\n2;1\n")
    person.choose_file(table)
    upload.click()
    dataset = f"bank#{language}"
    uploaded = person.say(
        "uploaded",
        id=dataset,
        rows=2,
        columns=2,
    )
    expect(person.notices).to_contain_text(uploaded)

    person.page.get_by_role("link", name=dataset).click()
    states = {
        "grant": "=in force",
        "revoke": "=revoked",
    }
    for action, state in states.items():
        person.press(action)
        person.dialog.locator("button").first.click()
        badge = person.page.locator(
            "main .badge",
            has_text=person.say(state),
        )
        expect(badge).to_be_visible()
    (grant,) = guest.get(f"/api/v1/datasets/bank/{language}")["grants"]
    assert grant["node"] == jobs.HOST
    assert grant["state"] == "revoked"


# ---------------------------------------------------------------- routes


def is_enabled(node: Node) -> bool:
    """Return whether the first route of a node is enabled."""
    routes = node.get("/api/v1/routes")["routes"]
    return bool(routes[0]["enabled"])


def test_a_route_is_tested_disabled_and_rolled_back(guest, browser, language):
    person = log_in(browser, guest, language)
    person.go("partners")
    person.press("test")
    last_step = person.say("=step way back").removeprefix("step ")
    step = person.cell(last_step, exact=False)
    expect(step).to_be_visible()
    version = guest.get("/api/v1/routes")["version"]

    expect_refused_changes(person)
    person.press("edit")
    person.confirm(institution="BANK-B")
    in_force = person.say("version in force", version=version + 1)
    expect(person.notices).to_contain_text(in_force)
    person.sees_cell("BANK-B")
    person.sees_cell(person.say("=enabled"))

    reason = f"maintenance {language}"
    person.press("disable")
    person.dialog.locator("input").fill(reason)
    person.confirm_danger()
    person.sees(reason)
    assert is_enabled(guest) is False

    roll_back(person, version)
    expect(person.cell("BANK-B")).to_have_count(0)
    assert is_enabled(guest) is True

    add_route_by_hand(person, guest)


def expect_refused_changes(person: Person) -> None:
    """Change a route to a wrong address, then to a missing certificate, each refused."""
    person.press("edit")
    person.confirm(
        institution="BANK-B",
        url="ftp://x",
    )
    errors = person.dialog.locator(".field-error")
    expect(errors).to_have_count(1)
    problem = person.error_at("url")
    expect(problem).to_contain_text("必须以下列之一开头")
    address = person.dialog.locator("[name=url]")
    expect(address).to_be_focused()

    address.fill("http://127.0.0.1:9")
    expect(errors).to_have_count(0)
    person.confirm(ca="/none.pem")
    problem = person.error_at("ca")
    expect(problem).to_be_visible()
    person.press("cancel")
    expect(person.dialog).to_have_count(0)


def roll_back(person: Person, version: int) -> None:
    """Put a version of the routes in force again."""
    row_of_version = re.compile(rf"^{version} ")
    row = person.page.get_by_role("row", name=row_of_version)
    button = row.get_by_role(
        "button",
        name=person.say("back to this"),
        exact=True,
    )
    button.click()
    person.confirm()
    expect(person.button("disable")).to_be_visible()


def add_route_by_hand(person: Person, node: Node) -> None:
    """Add a route through an unknown node, which is refused, and one to the host."""
    person.unfold("new partner")
    person.press("add a route")
    person.confirm(node=STRANGER, via=UNKNOWN_NODE)
    problem = person.error_at("via")
    expect(problem).to_be_visible()
    person.press("cancel")

    (route,) = node.get("/api/v1/routes")["routes"]
    person.press("add a route")
    person.confirm(node=jobs.HOST, institution="BANK-C")
    person.sees_cell("BANK-C")
    changed_route = route | {"institution": "BANK-C"}
    assert node.get("/api/v1/routes")["routes"] == [changed_route]


# ---------------------------------------------------------------- the node


@pytest.mark.parametrize(
    ("language", "upload_words", "isolation", "running"),
    [
        ("en-GB", "Upload", "keeps nothing apart", "the node is running"),
        ("zh-CN", "上传", "process 引擎不做任何隔离", "节点正在运行"),
    ],
)
def test_the_node_is_checked_and_its_audit_log_is_searched(
    guest, browser, language, upload_words, isolation, running
):
    person = log_in(browser, guest, language)
    person.go("node")
    person.press("look at all")
    isolation_cells = person.cell(isolation, exact=False)
    expect(isolation_cells).to_have_count(2)  # of the node, of the engine
    running_cell = person.cell(running, exact=False)
    expect(running_cell).to_be_visible()

    uploads = person.cell(UPLOAD, exact=False)
    registrations = person.cell(REGISTRATION, exact=False)
    person.search("action", upload_words)
    rows = person.page.get_by_role("row")
    last_upload = rows.filter(has=uploads).last
    expect(last_upload).to_contain_text(person.say("=done"))
    expect(registrations).to_have_count(0)

    person.search("action", "provider/register")
    expect(registrations).to_have_count(1)
    expect(uploads).to_have_count(0)

    person.search("who", "nobody")
    person.sees(person.say("no audit"))


@pytest.mark.parametrize(
    ("language", "scheme"),
    [
        ("en-GB", "light"),
        ("zh-CN", "dark"),
    ],
)
def test_every_page_is_usable_without_eyes_or_mouse_and_on_a_telephone(
    guest, browser, language, scheme
):
    person = log_in(
        browser,
        guest,
        language,
        color_scheme=scheme,
        viewport=TELEPHONE,
    )
    page = person.page
    for name in PAGES:
        person.go(name)
        if name not in ("overview", "jobs"):  # which follow a stream
            page.wait_for_load_state("networkidle")
        assert serious_violations(page) == [], name
        assert page.evaluate(FITS_THE_SCREEN), f"{name} is too wide"
        assert not page.evaluate(HAS_BUTTONS_OUT_OF_SIGHT), f"{name} has buttons out of sight"
        if name == "providers":
            last_cell = page.locator("tbody td").last
            expect(last_cell).to_have_text(person.say("=admins"))
        person.keep_picture(f"{name}-{language}-{scheme}")
