"""What would happen to a job is told by every node of it, and nothing is created: over two real nodes."""

import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia.peer import INTERCONN, OPTIONAL
from adapter.bfia.views import read_plan, redact_plan
from adapter.bfia.wire import PlanData
from engines.base import EngineDown, SignatureMissing
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.dry_run import CHECKS, Item, JobPlan, Standing
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import Invalid, NotFound, Refused, StorageFailed
from gateway.jobs.digest import MAX_JOB_SIZE
from tests.adapter.bfia.scripted import says, text
from tests.adapter.bfia.site import SPEC, a_job_with, by_path, serving_site
from tests.builders import a_dag, a_spec, raising
from tests.contracts.apis import THIRD, World, a_provider_of
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("dry_run")
ROLES = {"guest": (ME,), "host": (PEER,)}

RULES = [
    {"decide": "ask", "role": "arbiter"},
    {"decide": "reject", "component": "*/Forbidden"},
    {
        "decide": "reject",
        "component": "*/Unstarted",
        "command": "start",
    },
    {"decide": "approve"},
]

SETTINGS = {
    "me": {"resources": {"cpu": 2}},
    "peer": {
        "resources": {"cpu": 2},
        "approval": {"mode": "rules", "rules": RULES},
        "data": {"grants": "listed"},
    },
}

_numbers = count()


def a_job(dag: Dag | None = None, **over: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "job_id": f"job-plan-{next(_numbers)}",
        "scheduler": ME,
        **over,
    }
    spec = a_spec("a", fields.pop("roles", ROLES), **fields)
    return replace(spec, dag=dag) if dag else spec


def cores(count: int) -> dict[str, Any]:
    """Return the settings of a job that asks for so many cores at each party."""
    return {role: {"0": {"resources": {"cpu": count}}} for role in ROLES}


def of(plan: JobPlan, node: str) -> dict[str, list[Item]]:
    """Return what is told of a node, by check."""
    found: dict[str, list[Item]] = {}
    for item in next(n.items for n in plan.nodes if n.node == node):
        assert item.check in CHECKS
        assert item.standing is not Standing.PROBLEM or (item.cause and item.remedy)
        found.setdefault(item.check, []).append(item)
    return found


def problems(plan: JobPlan) -> set[tuple[str, str]]:
    return {
        (n.node, i.check) for n in plan.nodes for i in n.items if i.standing is Standing.PROBLEM
    }


def registered(
    world: World,
    *nodes: str,
    component: str,
    image: str,
) -> ComponentRef:
    """Register one more provider at some of the nodes."""
    for node in nodes:
        (world.me if node == ME else world.peer).registry.register(a_provider_of(component, image))
    return ComponentRef(component, "1.0.0", component)


def with_component(ref: ComponentRef) -> JobSpec:
    dag = a_dag("a")
    return a_job(Dag((replace(dag.nodes[0], component=ref),)))


def test_a_job_that_would_go_well(world):
    spec = a_job(job_params=cores(1))
    plan = world.me.dry_run.plan(spec)
    assert plan.good
    assert not plan.count(Standing.UNKNOWN)
    assert not plan.count(Standing.WAITS)
    here, there = of(plan, ME), of(plan, PEER)
    everywhere = {
        "components",
        "image",
        "resources",
        "approval",
        "engine",
        "storage",
        "transport",
        "routes",
    }
    assert set(here) == everywhere
    assert set(there) == everywhere | {"route", "profile", "way back"}
    assert here["image"][0].found == world.me.engine.image_digest(here["image"][0].about)
    assert there["resources"][0].found == "cpu 1, free now"
    for node in (world.me, world.peer):
        assert node.store.jobs.find(spec.job_id) is None
        assert node.store.local_jobs.find(spec.job_id) is None
        assert not node.resources.view()["holders"]
        assert not node.resources.view()["waiting"]


def test_a_job_that_is_far_too_large_is_a_problem_at_every_node(world):
    spec = a_job(job_params={"common": {"blob": "x" * MAX_JOB_SIZE}})
    plan = world.me.dry_run.plan(spec)
    assert problems(plan) == {(ME, "job"), (ME, "reported"), (PEER, "reported")}
    for node, check in ((ME, "job"), (PEER, "reported")):
        assert (
            f"must not have more than {MAX_JOB_SIZE} characters" in of(plan, node)[check][0].cause
        )


def test_an_image_that_is_not_there_and_one_that_was_moved(world, monkeypatch):
    absent = with_component(registered(world, ME, PEER, component="Absent", image="no:1"))
    plan = world.me.dry_run.plan(absent)
    assert problems(plan) == {(ME, "image"), (PEER, "image")}
    assert of(plan, PEER)["image"][0].cause.startswith("IMAGE_NOT_FOUND")
    moved = with_component(registered(world, ME, PEER, component="Moved", image="vendor:1.0.0"))
    strict = replace(world.peer.admission._rules, require_images=True)
    monkeypatch.setattr(world.peer.admission, "_rules", strict)
    with pytest.raises(Invalid, match="IMAGE_NOT_FOUND") as caught:
        world.peer.participant.create_job(absent, ME)
    assert caught.value.reason == "IMAGE_NOT_FOUND"
    found, _ = world.peer.registry.find("Moved", "1.0.0", "Moved")
    world.peer.registry.register(replace(found, digests={"vendor:1.0.0": "sha256:another"}))
    plan = world.me.dry_run.plan(moved)
    assert problems(plan) == {(PEER, "image")}
    assert "DIGEST_CHANGED" in of(plan, PEER)["image"][0].cause


@pytest.mark.parametrize(
    ("component", "nodes", "check", "cause"),
    [
        ("Rare", (ME,), "components", ""),
        ("Forbidden", (ME, PEER), "approval", "approval.rules[1]"),
        ("Unstarted", (ME, PEER), "approval", "at its start: approval.rules[2]"),
    ],
)
def test_a_component_that_a_node_lacks_or_rejects_is_a_problem_there(
    world, component, nodes, check, cause
):
    ref = registered(world, *nodes, component=component, image="vendor:1.0.0")
    plan = world.me.dry_run.plan(with_component(ref))
    assert problems(plan) == {(PEER, check)}
    assert cause in of(plan, PEER)[check][0].cause


def reading(dataset: str) -> dict[str, Any]:
    return {
        role: {"0": {"a": {"dataset_id": of}}} for role, of in (("guest", dataset), ("host", ""))
    }


def test_data_is_found_or_named_with_its_path_beside_all_else(world):
    place = world.me.storage.root / "space" / "mine"
    place.mkdir(parents=True)
    (place / "data_0").write_text("id,x\na,1\n")
    world.me.sharing.grant(Address("space", "mine"), PEER, "ann")
    plan = world.me.dry_run.plan(a_job(task_params=reading("space#mine")))
    data = of(plan, ME)["data"][0]
    assert data.standing == Standing.OK
    assert data.found == "readable, 9 bytes"
    assert data.about == "space#mine for guest.0 of a"
    plan = world.me.dry_run.plan(a_job(task_params=reading("no#such")))
    assert problems(plan) == {(ME, "datasets")}
    (item,) = of(plan, ME)["datasets"]
    assert item.about == "config.task_params.guest.0.a.dataset_id"
    assert item.cause.startswith("DATASET_UNKNOWN: ")
    assert of(plan, ME)["image"][0].standing is Standing.OK
    plan = world.me.dry_run.plan(
        a_job(a_dag("a -> b -> a"))
    )  # a mistake of the flow: said once at each node
    for node in (ME, PEER):
        [told] = of(plan, node)["job"]
        assert told.standing is Standing.PROBLEM
        assert told.remedy == "correct the job"


def test_what_a_node_cannot_look_at_is_a_problem_or_unknown_there(world, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(world.me.participant, "dry_run", raising(StorageFailed("no folder")))
        (own,) = of(world.me.dry_run.plan(a_job()), ME)["reported"]
        assert own.cause.endswith("no folder")
        assert own.remedy == "bfia-gateway doctor"
    with monkeypatch.context() as patch:
        patch.setattr(
            world.peer.image_signatures, "check", raising(SignatureMissing("signed by nobody"))
        )
        plan = world.me.dry_run.plan(a_job())
    assert problems(plan) == {(PEER, "image")}
    assert of(plan, PEER)["image"][0].cause == "SIGNATURE_ABSENT: signed by nobody"
    down = EngineDown("no daemon answers")
    monkeypatch.setattr(world.peer.engine, "check", raising(down))
    monkeypatch.setattr(world.peer.resources, "pool_for", raising(down))
    away = raising(StorageFailed("storage lake cannot be reached"))
    monkeypatch.setattr(
        world.peer.readiness, "_checks", {"storage": away, "transport": lambda: None}
    )
    world.peer.readiness._fine_until.clear()
    plan = world.me.dry_run.plan(a_job())
    assert problems(plan) == {(PEER, "engine"), (PEER, "image")}
    there = of(plan, PEER)
    assert there["engine"][0].cause == "ENGINE_DOWN: no daemon answers"
    assert [
        (there[check][0].standing, there[check][0].cause) for check in ("resources", "storage")
    ] == [
        (Standing.UNKNOWN, "no daemon answers"),
        (Standing.UNKNOWN, "storage lake cannot be reached"),
    ]


def test_broken_data_and_unawaited_approvals_are_problems_of_the_plan(world, monkeypatch):
    place = world.me.storage.root / "space" / "broken"
    place.mkdir(parents=True)
    (place / "data_0").write_text("id,x\na,1\n")
    world.me.sharing.grant(Address("space", "broken"), PEER, "ann")
    monkeypatch.setattr(
        type(world.me.storage), "stamp", raising(NotFound("space#broken: data_0 is gone"))
    )
    monkeypatch.setattr(world.peer.peer_table, "takes_confirm", lambda node: False)
    spec = a_job(roles=ROLES | {"arbiter": (PEER,)}, task_params=reading("space#broken"))
    plan = world.me.dry_run.plan(spec)
    assert of(plan, ME)["data"][0].cause == "space#broken: data_0 is gone"
    assert problems(plan) == {(ME, "data")}
    dag = a_dag("a; judged")
    judged = replace(dag["judged"], component=ComponentRef("vendor", "1.0.0", "Judge"))
    plan = world.me.dry_run.plan(replace(spec, dag=Dag((dag["a"], judged))))
    assert (PEER, "approval") in problems(plan)
    assert of(plan, PEER)["approval"][0].cause.startswith(
        "APPROVAL_UNSUPPORTED: a person has to agree"
    )


def test_unreachable_nodes_and_unknown_versions_are_problems_of_the_plan(world, monkeypatch):
    plan = world.me.dry_run.plan(a_job(roles=ROLES | {"arbiter": (THIRD,)}))
    assert (THIRD, "route") in problems(plan)
    assert "reported" not in of(plan, THIRD)
    monkeypatch.setattr(world.peer.admission, "dry_run", raising(Refused("not today")))
    plan = world.me.dry_run.plan(a_job(roles={"guest": (PEER,)}, scheduler=PEER))
    assert of(plan, PEER)["reported"][0].cause.endswith("REFUSED: not today")
    assert plan.nodes[0].node == ME
    assert plan.nodes[0].parties == ()
    dag = a_dag("a")
    newest = replace(dag.nodes[0], component=ComponentRef("nobody", "*", "Thing"))
    with pytest.raises(Invalid) as caught:
        world.me.coordinator.check(a_job(Dag((newest,))))
    assert world.me.planner.placements(a_job(Dag((newest,)))) == {}
    assert "the scheduling node has in use, but here no provider nobody is registered" in str(
        caught.value.problems[0]
    )


def test_what_is_busy_is_waited_for_and_what_is_never_there_is_a_problem(world):
    busy = a_job(job_params=cores(2))
    world.me.coordinator.submit_job(busy, ME)
    world.wait_status(busy.job_id, JobStatus.RUNNING)
    try:
        plan = world.me.dry_run.plan(a_job(job_params=cores(1)))
        waits = of(plan, PEER)["resources"][0]
        assert plan.good
        assert waits.standing is Standing.WAITS
        assert busy.job_id in waits.cause
        never = world.me.dry_run.plan(a_job(job_params=cores(9)))
        assert problems(never) == {(ME, "resources"), (PEER, "resources")}
        assert "RESOURCES_NEVER" in of(never, ME)["resources"][0].cause
    finally:
        world.stop(busy)


def test_a_dry_run_at_a_peer_with_only_the_standard_creates_nothing(tmp_path):
    missing = text(b"<html>not found</html>", 404)
    own = {
        "guest": {"0": {"a": {"secret": "guests-own"}}},
        "host": {"0": {"a": {"secret": "hosts-own"}}},
    }
    with serving_site(tmp_path) as site:
        unknown = says(code=1001, msg="no such task")
        site.peer.will(lambda handler: by_path(task_poll=unknown, other=missing)(handler))
        plan = site.node.dry_run.plan(replace(a_job_with(SPEC), task_params=own))
        asked = [a for a in site.peer.asked if a.target == INTERCONN + "/job/plan"]
        assert not any(a.target.endswith("/job/create") for a in site.peer.asked)
    there = of(plan, SPEC)
    assert plan.good
    assert there["route"][0].standing is Standing.OK
    assert there["way back"][0].standing is Standing.UNKNOWN
    assert there["reported"][0].standing is Standing.UNKNOWN
    assert "not reported by this node" in there["reported"][0].cause
    assert OPTIONAL["/job/plan"] in there["reported"][0].cause
    (request,) = asked
    assert b"hosts-own" in request.raw
    assert b"guests-own" not in request.raw


def test_a_report_survives_the_wire_and_what_is_odd_in_one_is_unknown():
    told = [Item("image", Standing.WAITS, "f", "c", "r", "a"), Item("data", Standing.OK)]
    assert list(read_plan(json.loads(PlanData(checks=redact_plan(told)).model_dump_json()))) == told
    (odd,) = read_plan(
        {
            "checks": [
                {
                    "check": 7,
                    "standing": "perhaps",
                    "cause": "x" * 9000,
                }
            ]
        }
    )
    assert odd.check == "reported"
    assert odd.standing == Standing.UNKNOWN
    assert len(odd.cause) == 2000
    for nothing in ({}, {"checks": 3}, {"checks": [1, "x", None]}):
        assert read_plan(nothing) == ()
    assert len(read_plan({"checks": [{}] * 10_000})) == 500
