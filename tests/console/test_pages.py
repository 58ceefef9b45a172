"""Pages in the browser over nodes in this process: foreign text, invitations, YAML, templates."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from gateway.auth import Role
from gateway.domain.applications import APPROVED, Kind, Side, new_application
from gateway.domain.attestation import AttestationPolicy
from gateway.domain.models import Kept, ModelPart, PartyModel
from gateway.store.models import SqlModels
from tests.cleaning.ended import left_behind, logs_of, store_running_job
from tests.conformance.platforms.reports import report_content, signed_report
from tests.console.opening import address_of, browser, close_pages, make_key, open_page
from tests.console.person import Person, open_tab
from tests.domain.test_applications import an_application
from tests.e2e import jobs
from tests.inprocess import ME, PEER, STRANGER, Node, token_of
from tests.registry.builders import a_description, a_request
from tests.trust.contract_sender import APPLY, Sender
from tests.world import UNREACHABLE, NodeSetup, World

__all__ = ["browser", "close_pages"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.browser]
SCRIPT = (
    "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>{{7*7}}"
)
JOB = "job-00000000000000000000000000000051"
# The pages that the navigation names.
PAGES = (
    "overview",
    "approvals",
    "data",
    "models",
    "providers",
    "partners",
    "node",
    "submit",
    "jobs",
)


@pytest.fixture(scope="module")
def nodes(shared_world: World) -> tuple[Node, Node]:
    """Two nodes with keys, `ME` and `PEER`, without routes to each other."""
    me = shared_world.node(prepare=make_key)
    peer = shared_world.node(
        NodeSetup(PEER),
        prepare=make_key,
    )
    return me, peer


# ---------------------------------------------------------------- text from others


def write_hostile_job(node: Node) -> None:
    """Have a finished job with a script in its log and its report."""
    job = left_behind(node, JOB, 60.0)
    (run,) = job.runs
    (logs_of(node, run) / "stdout.log").write_text(f"begins {SCRIPT}\n")
    folder = node.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-report"
    report = json.dumps(hostile_report())
    (folder / "data_0").write_text(report)


def hostile_report() -> dict[str, Any]:
    """Build a report of a value, a text, two curves and bars, with a script in each name."""
    losses = []
    for number in range(3):
        point = {
            SCRIPT: number,
            "loss": 1 / (number + 1),
        }
        losses.append(point)
    vast = [
        {"at": 0, "value": 1e-150},
        {"at": 1, "value": 1e-50},
        {"at": 2, "value": 1e50},
        {"at": 3, "value": 1e150},
    ]
    bars = [
        {
            "name": SCRIPT,
            "value": -1.5,
        },
        {
            "name": "b",
            "value": None,
        },
    ]
    return {
        SCRIPT: 0.5,
        "remark": SCRIPT,
        "loss": losses,
        "vast": vast,
        "bars": bars,
    }


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

    expect_hostile_job(open_page(browser, me, f"jobs/{JOB}"))
    person = open_page(browser, me, "providers/acme:1.0.0@docker")
    page = person.page
    description = page.locator("summary", has_text="<img")
    expect(description).to_be_visible()
    page.get_by_role("button", name="Difference").first.click()
    changes = person.cell("<img", exact=False)
    expect(changes.first).to_be_visible()

    for path, text in (
        ("data/bank/loans", "<b>x"),
        ("partners", "<img"),
        ("submit", "<img"),
        ("node", "/api/v1/routes/"),
    ):
        page.goto(address_of(me, path))
        content = page.locator("main", has_text=text)
        expect(content).to_be_visible()

    page.goto(address_of(me, "data/bank/loans"))
    page.get_by_role("button", name="Statistics").click()
    person.sees("Of the first 1 of 1 rows.")
    expect_no_markup(person)


def expect_no_markup(person: Person) -> None:
    """Fail if a page took the script for markup."""
    assert person.page.title() != "stolen"
    assert person.page.locator("img[src=x]").count() == 0


def expect_hostile_job(person: Person) -> None:
    """Wait for the scripts, as text, in the values, the curves, the bars and the log of a job."""
    page = person.page
    values = page.locator("dd", has_text="<img")
    expect(values.first).to_be_visible()
    losses = page.get_by_role("img", name=SCRIPT)
    expect(losses.locator("canvas")).to_be_visible()
    label = page.locator(".chart .u-label", has_text="<img")
    expect(label).to_be_visible()
    vast = page.get_by_role("img", name="vast")
    expect(vast.locator("canvas")).to_be_visible()
    bars = page.locator(".bars", has_text="<img")
    expect(bars).to_contain_text("-1.5")

    page.locator("summary", has_text="loss (").click()
    person.press("log")
    expect(page.locator("pre.log")).to_contain_text("begins <img")
    expect_no_markup(person)


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

    person = open_page(browser, me, "approvals")

    for text in (sender.pair.id, address, STRANGER):
        expect(person.cell(text).first).to_be_visible()


def test_an_application_shows_the_scope_that_its_approval_would_have(nodes, browser):
    me, _ = nodes
    request = {
        "dataset_id": "bank#credit",
        "auth_scope": {"PROJECT": ["project-1"]},
    }
    application = new_application(
        Kind.DATASET,
        "audit-1",
        PEER,
        Side.THEIRS,
        "bank#credit",
        request,
        datetime.now(UTC),
    )
    me.stored_applications.add(application)

    person = open_page(browser, me, "approvals")

    expect(person.cell("PROJECT project-1").first).to_be_visible()


def test_a_contract_shows_the_reports_that_it_demands(nodes, browser):
    me, _ = nodes
    policy = AttestationPolicy("SGX_DCAP", ("ab" * 32,))
    contract = an_application(Side.MINE, id="contract-1", kind=Kind.CONTRACT, tee=policy)
    me.stored_applications.add(contract)

    person = open_page(browser, me, "approvals")

    for text in ("SGX_DCAP, 300 s", "ab" * 32, "no platform verified on hardware yet"):
        person.sees_first(text)


# ---------------------------------------------------------------- overview


def test_the_first_page_shows_what_waits_and_whether_partners_answer(browser, world):
    routes = {STRANGER: UNREACHABLE}
    node = world.node(routes=routes)
    peer = world.node(node_id=PEER)
    world.connect(node, peer)
    application = an_application()
    node.stored_applications.add(application)

    person = open_page(browser, node, "")

    expect(person.heading).to_have_text("Overview")
    page = person.page
    count = page.locator("nav .count")
    expect(count).to_have_text("1")
    states = {
        STRANGER: "does not answer",
        PEER: "answers",
    }
    for partner, state in states.items():
        row = page.get_by_role("row", name=partner)
        expect(row).to_contain_text(state)
    link = page.get_by_text("Applications to decide: 1")
    link.click()
    expect(person.heading).to_have_text("Approvals")


def test_an_unknown_address_leads_to_the_pages(browser, nodes):
    me, _ = nodes
    person = open_page(browser, me, "nosuch")

    expect(person.heading).to_have_text("No such page")
    main = person.page.locator("main")
    link = main.get_by_text("Jobs")
    link.click()
    expect(person.heading).to_have_text("Jobs")


# ---------------------------------------------------------------- finding jobs

OTHER_JOB = "job-00000000000000000000000000000052"
RUNNING_JOB = "job-00000000000000000000000000000053"


def test_jobs_are_found_sorted_and_deleted_together(browser, world):
    node = world.node()
    for job_id in (JOB, OTHER_JOB):
        left_behind(node, job_id, 60.0, host=ME)
    store_running_job(node, RUNNING_JOB)
    address = "jobs?text=job-&sort=-job"
    person = open_page(browser, node, address)
    page = person.page
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("RUNNING")

    header = page.get_by_role(
        "button",
        name="Sort the jobs shown by Job",
    )
    header.click()
    expect(rows.last).to_contain_text("RUNNING")
    assert page.url.endswith("?text=job-&sort=job")
    last_digits = OTHER_JOB[-2:]
    person.search("text", last_digits)
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    person.search("component", "other")
    person.sees(person.say("no jobs"))

    person.go("overview")
    person.go("jobs")
    all_jobs = page.get_by_label("Select all jobs shown")
    all_jobs.check()
    person.sees("3 selected")
    person.press("delete the selected")
    person.confirm_danger()
    person.sees_heading("Result (3/3)")
    refusal = person.cell("JOB_NOT_ENDED", exact=False)
    expect(refusal).to_be_visible()
    box = page.get_by_role("checkbox")
    remaining = rows.filter(has=box)
    expect(remaining).to_have_count(1)


# ---------------------------------------------------------------- tokens and registration


def test_an_admin_creates_a_token_and_revokes_it(browser, world):
    admin_token = "0123456789abcdef0123"
    node = world.node(token=admin_token)
    page = open_tab(browser, "en-GB")
    person = Person(page, "en-GB")
    address = node.addresses()["operator"]
    person.log_in(address, admin_token)
    person.go("node")
    person.follow("page tokens")

    person.press("create token")
    person.confirm(name="ann", days="1")
    text = page.locator("main pre")
    expect(text).to_contain_text("bfia_")
    secret = text.inner_text()
    jobs_of_ann = node.get("/api/v1/jobs", token=secret)
    assert jobs_of_ann.status_code == 200
    person.press("revoke")
    person.confirm_danger()
    person.sees_cell("revoked")
    expect(text).to_have_count(0)


def test_a_provider_is_registered_by_a_file_with_its_warnings(browser, world, tmp_path):
    node = world.node()
    person = open_page(browser, node, "providers")
    file = tmp_path / "acme.json"
    for title in ("first", "second"):
        description = a_description(title=title)
        request = a_request(
            description,
            metadata={"image": "acme:1.0.0"},
        )
        file.write_text(json.dumps(request))
        person.choose_file(file)
        person.press("register")
        person.sees_heading("Warnings")
    change = person.cell("second", exact=False)
    expect(change.first).to_be_visible()

    file.write_text("{}")
    person.choose_file(file)
    person.press("register")
    expect(person.alert).to_contain_text("name")


def test_a_partner_shows_its_permits_and_what_it_offers(browser, world):
    node = world.node()
    peer = world.node(node_id=PEER)
    world.connect(node, peer)
    permit = an_application(
        partner=PEER,
        status=APPROVED,
        most_jobs=5,
    )
    node.stored_applications.add(permit)
    person = open_page(browser, node, "partners")

    link = person.page.get_by_role("link", name=PEER)
    link.click()

    expect(person.heading).to_have_text(PEER)
    person.sees_cell("0 of 5 used (asked: any number)")
    person.press("offered datasets")
    refusal = person.notices.locator(".bad")
    expect(refusal).to_contain_text("contract")
    person.press("test")
    last_step = person.cell("way back", exact=False)
    expect(last_step).to_be_visible()


def test_a_partner_shows_when_it_was_checked_and_what_deviates(browser, world):
    node = world.node(NodeSetup(routes={PEER: UNREACHABLE}))
    person = open_page(browser, node, f"partners/{PEER}")
    expect(person.page.get_by_text("No report is stored.")).to_be_visible()
    envelope = signed_report(report_content(PEER))
    node.request("PUT", f"/api/v1/partner-reports/{PEER}", json=envelope)
    person.page.reload()

    expect(person.page.get_by_text("Checked on 2026-03-04, 2 deviations")).to_be_visible()
    person.press("show clauses")
    person.sees_cell("Answer 0; 200 is the code of version 1.0.")
    person.press("delete")
    person.dialog.get_by_role("button", name=person.say("yes")).click()
    expect(person.page.get_by_text("No report is stored.")).to_be_visible()


# ---------------------------------------------------------------- models


def store_training(node: Node, job_id: str, loss: float) -> None:
    """Have a finished training with a curve in its report, and the model that it left."""
    job = left_behind(node, job_id, 60.0, host=ME)
    (run,) = job.runs
    outputs = run.data.outputs
    points = []
    for step in (1, 2):
        point = {
            "step": step,
            "loss": loss / step,
        }
        points.append(point)
    report = {
        "final": loss,
        "loss": points,
    }
    folder = node.storage.path(outputs["report_name"])
    file = folder / "data_0"
    file.write_text(json.dumps(report))
    address = outputs["model_name"]
    task = job.spec.dag.nodes[0]
    part = ModelPart(
        task=task.name,
        component=task.component,
        key="model",
        output="model_name",
        address=address,
        files=node.storage.sums(address),
    )
    model = PartyModel(
        model_id="credit",
        version=job_id[-2:],
        party=job.spec.parties[0],
        parties=job.spec.parties,
        job_id=job_id,
        flow_id="flow",
        created_at=job.created_at,
        parts=(part,),
    )
    records = SqlModels(node.store)
    records.add([Kept(model)])


def test_two_versions_of_a_model_are_compared_and_one_is_deployed(browser, world):
    node = world.node()
    store_training(node, JOB, loss=1.0)
    store_training(node, OTHER_JOB, loss=0.5)
    person = open_page(browser, node, "models")
    page = person.page

    person.follow("compare side by side")
    person.sees_cell("+0.5")
    curves = page.get_by_role("img", name="loss A, loss B")
    expect(curves.locator("canvas")).to_be_visible()

    person.go("models")
    version = page.get_by_role("link", name="credit")
    version.first.click()
    person.press("deploy")
    person.confirm()
    badge = page.locator(".badge", has_text="deployed")
    expect(badge.first).to_have_text("deployed")
    with page.expect_popup() as document:
        person.follow("help")
    heading = document.value.locator("h1")
    expect(heading).to_contain_text("odel")


# ---------------------------------------------------------------- extra rights


HEADING = {
    "en-GB": "Extra rights",
    "zh-CN": "额外权限",
}
CAPABILITY = {
    "en-GB": "capability NET_RAW",
    "zh-CN": "Linux 能力 NET_RAW",
}


@pytest.fixture
def node_with_rights(world: World) -> Node:
    """A node whose admin allows the containers of a registered provider a capability."""
    rights = {"capabilities": ["NET_RAW"]}
    engine = {
        "kind": "process",
        "docker": {"allow": {"acme": rights}},
    }
    node = world.node(settings={"engine": engine})
    request = a_request(metadata={"image": "acme:1.0.0"})
    node.post("/api/v1/providers", request)
    return node


@pytest.mark.parametrize("language", HEADING)
def test_a_provider_shows_what_its_containers_may_do(browser, node_with_rights, language):
    person = open_page(
        browser,
        node_with_rights,
        "providers",
        language,
    )
    column = person.page.get_by_role(
        "columnheader",
        name=HEADING[language],
    )
    expect(column).to_be_visible()
    expect(person.cell(CAPABILITY[language])).to_be_visible()

    page = address_of(
        node_with_rights,
        "providers/acme:1.0.0@docker",
    )
    person.page.goto(page)
    main = person.page.locator("main")
    expect(main).to_contain_text(HEADING[language])
    expect(main).to_contain_text(CAPABILITY[language])


# ---------------------------------------------------------------- roles


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
    page = open_tab(browser, "en-GB")
    person = Person(page, "en-GB")
    refused = []

    def record_refusal(response):
        if response.status == 403:
            refused.append(response.url)

    page.on("response", record_refusal)
    address = node.addresses()["operator"]
    person.log_in(address, token_of(node, role))

    for name in PAGES:
        person.go(name)

    page.goto(address_of(node, f"jobs/{JOB}"))
    person.sees_heading("Outputs")
    assert person.button("log").count() == log_buttons
    for key in ("look", "stop"):
        assert person.button(key).count() == 0
    for key in ("run again", "edit as new job"):
        assert person.link(key).count() == 0

    page.goto(address_of(node, "submit"))
    first_box = page.locator("main .box.wait").first
    expect(first_box).to_contain_text(str(role))
    assert refused == []


# ---------------------------------------------------------------- invitations


class PartnerPage:
    """The page with partners, as a person of a node uses it."""

    def __init__(self, person: Person, node: Node) -> None:
        self.person = person
        self.page = person.page
        self.node = node

    def fill_address(self) -> None:
        """Unfold the form for a partner and enter the node's own address."""
        self.person.unfold("new partner")
        address = self.node.addresses()["peer"]
        self.person.fill("address", address)

    def invite(self) -> str:
        """Have an invitation shown and return it."""
        self.fill_address()
        self.person.press("show invitation")
        return self.page.locator("details pre").first.inner_text()

    def compare(self, invitation: str) -> str:
        """Enter the partner's invitation; return the words that both compare."""
        self.page.locator("textarea[name=invitation]").fill(invitation)
        self.person.press("compare")
        return self.page.locator("p.words").inner_text()

    def accept(self) -> None:
        """Accept the invitation; the dialog asks for no certificates without https."""
        dialog = self.person.dialog
        self.person.press("accept")
        expect(dialog.locator("input")).to_have_count(0)
        self.person.confirm()
        expect(dialog).to_have_count(0)

    def expect_partner(self, node_id: str) -> None:
        cells = self.person.cell(node_id, exact=False)
        expect(cells.first).to_be_visible()


def test_a_page_whose_module_is_lost_on_the_way_is_loaded_again(browser, world):
    node = world.node()
    person = open_page(browser, node, "jobs")
    losses = ["connectionreset", "connectionclosed"]

    def lose_then_pass_on(route):
        if losses:
            route.abort(losses.pop())
        else:
            route.continue_()

    person.page.route("**/pages/partners.js", lose_then_pass_on)
    person.page.locator("nav a[href='#/partners']").click()

    expect(person.heading).to_have_text(person.say("page partners"))
    expect(person.alert).to_have_count(0)
    assert losses == []


def test_two_people_become_partners_by_six_words(nodes, browser):
    me, peer = nodes
    page_of_ann = open_page(browser, me, "partners")
    page_of_bob = open_page(browser, peer, "partners", "zh-CN")
    ann = PartnerPage(page_of_ann, me)
    bob = PartnerPage(page_of_bob, peer)

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
    row = ann.page.get_by_role("row", name=PEER)
    row.get_by_role("button", name="Test").click()
    last_step = page_of_ann.cell("way back", exact=False)
    expect(last_step).to_be_visible()
    check_signed_route(me, peer)
    check_signed_route(peer, me)

    # With https the dialog asks for certificates; a file that does not exist is refused.
    ann.fill_address()
    ann.compare(invitation_of_bob.replace("http://", "https://"))
    ann.person.press("accept")
    ann.person.confirm(ca="/none/ca.pem")
    problem = ann.person.error_at("ca")
    expect(problem).to_be_visible()


def check_signed_route(node: Node, partner: Node) -> None:
    """Check that a node has a route to a partner, whose requests must be signed."""
    path = f"/api/v1/routes/{partner.settings.node.id}"
    route = node.get(path).json()["route"]
    assert route["signing"] == "required"
    assert route["url"] == partner.addresses()["peer"]


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


def expect_job(
    person: Person,
    job: dict[str, Any],
) -> None:
    """Wait until the text field has a job with the odd values; compare it."""
    expect(person.json).to_have_value(re.compile("2026-11-25"))
    assert json.loads(person.json.input_value()) == job


def template_field(person: Person) -> Locator:
    return person.page.get_by_label(
        person.say("template"),
        exact=True,
    )


def test_a_job_goes_through_yaml_and_a_template_without_loss(nodes, browser, tmp_path):
    me, _ = nodes
    job = jobs.quick_job(ME, PEER) | {
        "flow_id": "loans",
        "tags": [ODD_VALUES],
    }
    file = tmp_path / "job.yaml"
    ann = open_page(browser, me, "submit")
    ann.unfold("job as JSON")
    ann.json.fill(json.dumps(job))

    with ann.page.expect_download() as download:
        ann.press("save as YAML")
    download.value.save_as(file)
    ann.press("save as template")
    ann.confirm()
    expect(template_field(ann)).to_be_visible()

    ann.json.fill("{}")
    ann.choose_file(file)
    expect_job(ann, job)

    file.write_text("a: [")
    ann.choose_file(file)
    ann.sees("This is not YAML")

    # Another person, on another machine, uses the template and deletes it.
    bob = open_page(browser, me, "submit", "zh-CN")
    template_field(bob).select_option("loans")
    expect_job(bob, job)
    bob.press("delete the template")
    bob.confirm_danger()
    expect(template_field(bob)).to_have_count(0)
