"""Contract, dataset and project by commands alone, at two nodes without knowledge of each other."""

import copy

import pytest
import yaml

from adapter.bfia.examples import A_JOB
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.cli import call_node, json_from_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, uploaded
from tests.trust.agreeing import two_nodes


def partner(node, *words):
    """Run a command of ``partner`` that must succeed, and return its output."""
    result = call_node("partner", node, *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def applications(node):
    """Return the applications of a node, the oldest first."""
    page = json_from_node("partner", node, "applications")
    return page["applications"]


def waiting_application(node):
    """Return the only application that waits for a decision."""
    page = json_from_node("partner", node, "applications", "--waiting")
    (application,) = page["applications"]
    return application


def test_two_admins_agree_on_a_contract_and_a_dataset(tmp_path):
    project = tmp_path / "project.yml"
    project.write_text(yaml.safe_dump({"name": "scoring"}))
    with two_nodes(tmp_path) as (me, peer):
        agree_on_a_contract(me, peer)
        agree_on_a_dataset(me, peer)
        agree_on_a_project(me, peer, project)
        check_refused_parties(me)
        reject_a_project(me, peer, project)

        assert call_node("data", peer, "unpublish", "bank#credit").exit_code == 0
        contract = applications(me)[0]
        printed = partner(me, "terminate", str(contract["number"]))
        assert f"the route to {PEER} is disabled" in printed
        assert not me.routes.table.routes[PEER].enabled
        entries = peer.audit.list(
            action="/applications/",
            limit=9,
        )
        changes = [entry.detail for entry in entries if "after" in entry.detail]
        decisions = [change["after"]["status"] for change in changes]
        assert decisions == ["REJECTED", "APPROVED", "REJECTED", "APPROVED", "APPROVED"]
        refused = call_node("partner", me, "apply", "dataset", PEER, "bank#credit")
        assert refused.exit_code == 1
        assert "NO_CONTRACT" in refused.stderr


def test_the_reports_of_a_contract_are_shown_to_both_admins(tmp_path):
    policy = tmp_path / "tee.yml"
    policy.write_text(yaml.safe_dump({"platform": "SGX_DCAP", "measurements": ["ab" * 32]}))
    narrower = tmp_path / "narrower.yml"
    narrower.write_text(policy.read_text() + "max_age: 60\n")
    with two_nodes(tmp_path) as (me, peer):
        url = peer.addresses()["peer"]
        to_peer = ("--to", url, "--key", peer.card.key().id)
        partner(me, "apply", "contract", PEER, *to_peer, "--tee", str(policy))
        assert "SGX_DCAP abababababab…, 300 s" in partner(peer, "applications")

        number = str(waiting_application(peer)["number"])
        approval = partner(peer, "approve", number, "--tee", str(narrower))

        assert "prove their TEE: SGX_DCAP (no platform was verified on hardware yet)" in approval
        wait_for(lambda: applications(me)[0]["status"] == "APPROVED")
        assert "SGX_DCAP abababababab…, 60 s" in partner(me, "applications")


def agree_on_a_contract(me, peer):
    """Apply for a contract at the peer, which approves it."""
    url = peer.addresses()["peer"]
    wildcard = (PEER, "--to", url, "--address", "https://0.0.0.0:7380")
    refused = call_node("partner", me, "apply", "contract", *wildcard)
    assert refused.exit_code == 2
    assert "give --address, or set listen.peer.advertise" in refused.stderr

    to_peer = ("--to", url, "--key", peer.card.key().id)
    partner(me, "apply", "contract", PEER, *to_peer, "--days", "30")
    assert me.addresses()["peer"] in partner(peer, "applications", "--waiting")
    contract = waiting_application(peer)
    assert contract["key"] == me.card.key().id
    assert contract["expires_at"]
    approval = partner(
        peer,
        "approve",
        str(contract["number"]),
        "--reason",
        "contract 17",
    )
    assert f"contract with {ME} approved until" in approval
    wait_for(lambda: applications(me)[0]["status"] == "APPROVED")


def agree_on_a_dataset(me, peer):
    """Apply for 10 jobs of a project with a dataset of the peer, which approves 5."""
    uploaded(peer, "bank", "credit", b"id,x\na,1\n")
    assert call_node("data", peer, "publish", "bank#credit", "--to", ME).exit_code == 0
    assert "bank#credit" in partner(me, "offers", PEER)
    apply = ("apply", "dataset", PEER, "bank#credit", "--jobs", "10")
    refused = call_node("partner", me, *apply, "--scope", "project-1")
    assert refused.exit_code == 2
    assert "--scope project-1: must be PROJECT=id" in refused.stderr
    partner(
        me,
        *apply,
        "--scope",
        "project=project-1",
        "--scope",
        "COMPONENT=unionpay/psi",
    )
    dataset = waiting_application(peer)
    assert dataset["most_jobs"] == 10
    assert dataset["scope"] == {
        "PROJECT": ["project-1"],
        "COMPONENT": ["unionpay/psi"],
    }
    assert dataset["signed"] is None
    listed = partner(peer, "applications", "--waiting")
    assert "PROJECT project-1, COMPONENT unionpay/psi" in " ".join(listed.split())
    approve = ("approve", str(dataset["number"]), "--jobs", "5", "--scope")
    wider = call_node("partner", peer, *approve, "project=project-2")
    assert wider.exit_code == 2
    assert "scope: must be within the scope that was applied for: PROJECT project-1" in wider.stderr
    unknown = call_node("partner", peer, *approve, "day=monday")
    assert unknown.exit_code == 2
    assert "scope.DAY" in unknown.stderr
    approved = partner(peer, *approve, "project=project-1")
    assert "the permit is only for PROJECT project-1, COMPONENT unionpay/psi" in approved
    wait_for(lambda: applications(me)[-1]["most_jobs"] == 5)
    grants = json_from_node("data", peer, "grants")["grants"]
    assert [grant["node"] for grant in grants] == [ME]

    partner(me, *apply, "--scope", "project=project-9")
    rejected = partner(peer, "reject", str(waiting_application(peer)["number"]))
    assert "REJECTED" in rejected
    assert "the permit is only for" not in rejected


def agree_on_a_project(me, peer, project):
    """Apply for a project, whose approval makes the peer one of ALL_SITES."""
    refused = call_node("partner", me, "apply", "project", PEER, "project-1")
    assert refused.exit_code == 2
    assert "name: is missing: give it in a JSON or YAML file, --fields FILE" in refused.stderr
    partner(
        me,
        "apply",
        "project",
        PEER,
        "project-1",
        "--fields",
        str(project),
    )
    spec = a_spec(
        roles={
            "guest": (ME,),
            "host": ("ALL_SITES",),
        },
        flow_id="project-1",
    )
    with pytest.raises(Invalid, match="needs an approved project"):
        me.offers.expanded(spec)
    application = waiting_application(peer)
    partner(peer, "approve", str(application["number"]))
    wait_for(lambda: applications(me)[-1]["status"] == "APPROVED")
    parties = [(party.label, party.node) for party in me.offers.expanded(spec).parties]
    assert parties == [
        ("guest.0", ME),
        ("host.0", PEER),
    ]


def check_refused_parties(me):
    """Check that ALL_SITES needs a project, and is the only entry of its role."""
    for hosts, flow_id, reason in (
        (["ALL_SITES"], "project-2", "PROJECT_UNKNOWN"),
        (["ALL_SITES", "ALL_SITES"], "project-1", "INVALID"),
        (["ALL_SITES", "ALL_SITES"], "project-2", "INVALID"),
        ([PEER, "ALL_SITES"], "project-1", "INVALID"),
    ):
        job = copy.deepcopy(A_JOB)
        job["flow_id"] = flow_id
        job["config"]["role"] = {
            "guest": [ME],
            "host": hosts,
        }
        for path in ("/v1/platform/schedule/job/create_all", "/api/v1/jobs/plan"):
            refusal = me.post(path, job).text
            assert reason in refusal
            assert f"config.role.host[{len(hosts) - 1}]" in refusal


def reject_a_project(me, peer, project):
    """Apply for a second project, which the peer rejects."""
    partner(
        me,
        "apply",
        "project",
        PEER,
        "project-2",
        "--fields",
        str(project),
    )
    application = waiting_application(peer)
    partner(peer, "reject", str(application["number"]))
    number = str(applications(me)[-1]["number"])
    wait_for(lambda: "REJECTED" in partner(me, "refresh", number))


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        ("open", "TASK_UNKNOWN"),
        ("known", "NOT_AUTHORISED"),
    ],
)
def test_a_node_without_a_route_is_known_at_level_open_only(world, level, reason):
    node = world.node(settings={"trust": {"level": level}})
    headers = {"x-source-node-id": STRANGER}
    body = {"task_id": "t", "role": "guest"}
    path = "/v1/interconn/schedule/task/poll"
    response = node.post(path, body, listener="peer", headers=headers).json()
    assert response["data"]["reason"] == reason
    if reason == "NOT_AUTHORISED":
        assert f"ask the admin of {ME} for one" in response["msg"]
