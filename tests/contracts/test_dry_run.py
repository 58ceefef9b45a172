"""A dry run reports from every node what would happen to a job, and creates nothing."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia.commands import OPTIONAL
from adapter.bfia.paths import SCHEDULE
from adapter.bfia.views import read_plan, redact_plan
from adapter.bfia.wire import PlanData
from engines.base import EngineDown, SignatureMissing
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.dry_run import CHECKS, Item, JobPlan, Standing
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import Invalid, NotFound, Refused, StorageFailed
from gateway.jobs.fingerprint import MAX_JOB_SIZE
from tests.adapter.bfia.scripted import says, text
from tests.adapter.bfia.site import SPEC, a_job_with, by_path, serving_site
from tests.builders import a_dag, a_spec, raising
from tests.contracts.apis import IMAGE, THIRD, World, a_provider_of, two_nodes
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("dry_run")
ROLES = {
    "guest": (ME,),
    "host": (PEER,),
}

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
    "me": {
        "resources": {"cpu": 2},
        "approval": {
            "mode": "rules",
            "rules": [{"decide": "ask", "role": "arbiter"}, {"decide": "approve"}],
        },
    },
    "peer": {
        "resources": {"cpu": 2},
        "approval": {
            "mode": "rules",
            "rules": RULES,
        },
        "data": {"grants": "listed"},
    },
}

# Checks of every node, and further ones of the partners of the planning node.
CHECKS_OF_EVERY_NODE = {
    "components",
    "image",
    "resources",
    "approval",
    "engine",
    "storage",
    "transport",
    "routes",
}
CHECKS_OF_PARTNERS = {"route", "profile", "way back"}

_job_numbers = count()


def a_job(
    dag: Dag | None = None,
    roles: dict[str, tuple[str, ...]] = ROLES,
    scheduler: str = ME,
    **fields: Any,
) -> JobSpec:
    """Return a new job, which `ME` schedules by default."""
    job_id = f"job-plan-{next(_job_numbers)}"
    spec = a_spec("a", roles, job_id=job_id, scheduler=scheduler, **fields)
    if dag is not None:
        spec = replace(spec, dag=dag)
    return spec


def a_job_of_component(component: ComponentRef) -> JobSpec:
    """Return a job with one task of a component."""
    (node,) = a_dag("a").nodes
    return a_job(Dag((replace(node, component=component),)))


def cores(count: int) -> dict[str, Any]:
    """Return job parameters that request ``count`` cores for each party."""
    resources = {"resources": {"cpu": count}}
    return {role: {"0": resources} for role in ROLES}


def reading(dataset: str) -> dict[str, Any]:
    """Return task parameters by which only the guest reads a dataset."""
    return {
        "guest": {"0": {"a": {"dataset_id": dataset}}},
        "host": {"0": {"a": {"dataset_id": ""}}},
    }


def items_at(
    plan: JobPlan,
    node_id: str,
) -> dict[str, list[Item]]:
    """Return the items of a node by their check; every problem has a cause and a remedy."""
    (node,) = [node for node in plan.nodes if node.node == node_id]
    items: dict[str, list[Item]] = {}
    for item in node.items:
        assert item.check in CHECKS
        if item.standing is Standing.PROBLEM:
            assert item.cause
            assert item.remedy
        items.setdefault(item.check, []).append(item)
    return items


def first_item(
    plan: JobPlan,
    node_id: str,
    check: str,
) -> Item:
    """Return the first item of a check at a node."""
    return items_at(plan, node_id)[check][0]


def problems(plan: JobPlan) -> set[tuple[str, str]]:
    """Return node and check of each problem."""
    return {
        (node.node, item.check)
        for node in plan.nodes
        for item in node.items
        if item.standing is Standing.PROBLEM
    }


def register(
    world: World,
    *node_ids: str,
    component: str,
    image: str = IMAGE,
) -> ComponentRef:
    """Register a provider with one component at some of the nodes."""
    nodes = {
        ME: world.me,
        PEER: world.peer,
    }
    for node_id in node_ids:
        nodes[node_id].registry.register(a_provider_of(component, image))
    return ComponentRef(component, "1.0.0", component)


def write_table(world: World, name: str) -> None:
    """Write a table at `ME` that `PEER` may use."""
    folder = world.me.storage.root / "space" / name
    folder.mkdir(parents=True)
    (folder / "data_0").write_text("id,x\na,1\n")
    world.me.sharing.grant(
        Address("space", name),
        PEER,
        "ann",
    )


def test_a_job_without_problems_gets_a_good_plan(world):
    spec = a_job(job_params=cores(1))

    plan = world.me.dry_run.plan(spec)

    assert plan.good
    assert not plan.count(Standing.UNKNOWN)
    assert not plan.count(Standing.WAITS)
    assert set(items_at(plan, ME)) == CHECKS_OF_EVERY_NODE
    assert set(items_at(plan, PEER)) == CHECKS_OF_EVERY_NODE | CHECKS_OF_PARTNERS
    image = first_item(plan, ME, "image")
    assert image.found == world.me.engine.image_digest(image.about)
    resources = first_item(plan, PEER, "resources")
    assert resources.found == "cpu 1, free now"


def test_a_dry_run_creates_nothing(world):
    spec = a_job(job_params=cores(1))

    world.me.dry_run.plan(spec)

    for node in (world.me, world.peer):
        assert node.store.jobs.find(spec.job_id) is None
        assert node.store.local_jobs.find(spec.job_id) is None
        assert not node.resources.view()["holders"]
        assert not node.resources.view()["waiting"]


def test_a_job_that_is_far_too_large_is_a_problem_at_every_node(world):
    spec = a_job(job_params={"common": {"blob": "x" * MAX_JOB_SIZE}})

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {
        (ME, "job"),
        (ME, "reported"),
        (PEER, "reported"),
    }
    cause = f"must not have more than {MAX_JOB_SIZE} characters"
    job = first_item(plan, ME, "job")
    assert cause in job.cause
    reported = first_item(plan, PEER, "reported")
    assert cause in reported.cause


def test_an_image_that_the_nodes_lack_is_a_problem(world):
    component = register(
        world,
        ME,
        PEER,
        component="Absent",
        image="no:1",
    )
    spec = a_job_of_component(component)

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {
        (ME, "image"),
        (PEER, "image"),
    }
    image = first_item(plan, PEER, "image")
    assert image.cause.startswith("IMAGE_NOT_FOUND")


def test_a_job_without_its_image_is_refused_if_the_node_requires_images(tmp_path):
    with two_nodes(tmp_path, peer={"providers": {"image": "require"}}) as world:
        component = register(
            world,
            ME,
            PEER,
            component="Absent",
            image="no:1",
        )

        with pytest.raises(Invalid, match="IMAGE_NOT_FOUND") as caught:
            world.peer.participant.create_job(a_job_of_component(component), ME)

    assert caught.value.reason == "IMAGE_NOT_FOUND"


def test_an_image_with_another_digest_than_the_registered_one_is_a_problem(world):
    component = register(
        world,
        ME,
        PEER,
        component="Moved",
    )
    provider, _ = world.peer.registry.find(
        "Moved",
        "1.0.0",
        "Moved",
    )
    world.peer.registry.register(replace(provider, digests={IMAGE: "sha256:another"}))
    spec = a_job_of_component(component)

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {(PEER, "image")}
    image = first_item(plan, PEER, "image")
    assert "DIGEST_CHANGED" in image.cause


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
    ref = register(world, *nodes, component=component)
    spec = a_job_of_component(ref)

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {(PEER, check)}
    item = first_item(plan, PEER, check)
    assert cause in item.cause


def test_a_readable_dataset_is_reported_with_its_size(world):
    write_table(world, "mine")
    spec = a_job(task_params=reading("space#mine"))

    plan = world.me.dry_run.plan(spec)

    data = first_item(plan, ME, "data")
    assert data.standing == Standing.OK
    assert data.found == "readable, 9 bytes"
    assert data.about == "space#mine for guest.0 of a"


def test_an_unknown_dataset_is_named_with_its_path(world):
    spec = a_job(task_params=reading("no#such"))

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {(ME, "datasets")}
    (item,) = items_at(plan, ME)["datasets"]
    assert item.about == "config.task_params.guest.0.a.dataset_id"
    assert item.cause.startswith("DATASET_UNKNOWN: ")
    # the other checks are done all the same
    image = first_item(plan, ME, "image")
    assert image.standing is Standing.OK


def test_a_mistake_of_the_flow_is_reported_once_at_each_node(world):
    spec = a_job(a_dag("a -> b -> a"))

    plan = world.me.dry_run.plan(spec)

    for node_id in (ME, PEER):
        (item,) = items_at(plan, node_id)["job"]
        assert item.standing is Standing.PROBLEM
        assert item.remedy == "correct the job"


def test_a_node_that_cannot_check_a_job_reports_why(world, monkeypatch):
    monkeypatch.setattr(
        world.me.participant,
        "dry_run",
        raising(StorageFailed("no folder")),
    )
    spec = a_job()

    plan = world.me.dry_run.plan(spec)

    (item,) = items_at(plan, ME)["reported"]
    assert item.cause.endswith("no folder")
    assert item.remedy == "bfia-gateway doctor"


def test_a_missing_signature_of_an_image_is_a_problem(world, monkeypatch):
    unsigned = SignatureMissing("signed by nobody")
    monkeypatch.setattr(
        world.peer.image_signatures,
        "check",
        raising(unsigned),
    )
    spec = a_job()

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {(PEER, "image")}
    image = first_item(plan, PEER, "image")
    assert image.cause == "SIGNATURE_ABSENT: signed by nobody"


def test_checks_that_need_a_failed_engine_or_storage_are_unknown(tmp_path, monkeypatch):
    down = EngineDown("no daemon answers")
    away = StorageFailed("storage lake cannot be reached")
    # nodes of its own, as a node checks its storage only once in a while
    with two_nodes(tmp_path) as world:
        monkeypatch.setattr(
            world.peer.engine,
            "check",
            raising(down),
        )
        monkeypatch.setattr(
            world.peer.resources,
            "pool_for",
            raising(down),
        )
        monkeypatch.setattr(
            world.peer.storage,
            "check",
            raising(away),
        )

        spec = a_job()

        plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {
        (PEER, "engine"),
        (PEER, "image"),
    }
    engine = first_item(plan, PEER, "engine")
    assert engine.cause == "ENGINE_DOWN: no daemon answers"
    resources = first_item(plan, PEER, "resources")
    assert resources.standing == Standing.UNKNOWN
    assert resources.cause == "no daemon answers"
    storage = first_item(plan, PEER, "storage")
    assert storage.standing == Standing.UNKNOWN
    assert storage.cause == "storage lake cannot be reached"


def test_a_damaged_table_is_a_problem(world, monkeypatch):
    write_table(world, "broken")
    damage = NotFound("space#broken: data_0 is gone")
    monkeypatch.setattr(
        type(world.me.storage),
        "stamp",
        raising(damage),
    )
    spec = a_job(task_params=reading("space#broken"))

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {(ME, "data")}
    data = first_item(plan, ME, "data")
    assert data.cause == "space#broken: data_0 is gone"


def a_job_for_a_person(
    arbiter: str,
    scheduler: str,
) -> JobSpec:
    """Return a job on which a person at the arbiter's node has to decide."""
    dag = a_dag("a; judged")
    judged = replace(
        dag["judged"],
        component=ComponentRef("vendor", "1.0.0", "Judge"),
    )
    roles = {**ROLES, "arbiter": (arbiter,)}
    return a_job(Dag((dag["a"], judged)), roles, scheduler)


def test_an_approval_for_which_the_scheduler_cannot_wait_is_a_problem(world, monkeypatch):
    monkeypatch.setattr(world.peer.peer_table, "waits_for_decision", lambda node: False)

    plan = world.me.dry_run.plan(a_job_for_a_person(PEER, scheduler=ME))

    assert (PEER, "approval") in problems(plan)
    cause = first_item(plan, PEER, "approval").cause
    assert cause.startswith("APPROVAL_UNSUPPORTED: a person has to agree")


def test_an_approval_here_needs_a_scheduler_that_can_wait(world, monkeypatch):
    monkeypatch.setattr(world.me.peer_table, "waits_for_decision", lambda node: False)

    plan = world.me.dry_run.plan(a_job_for_a_person(ME, scheduler=PEER))

    assert (ME, "approval") in problems(plan)


def test_an_unreachable_node_is_a_problem_and_reports_nothing(world):
    spec = a_job(roles={**ROLES, "arbiter": (THIRD,)})

    plan = world.me.dry_run.plan(spec)

    assert (THIRD, "route") in problems(plan)
    assert "reported" not in items_at(plan, THIRD)


def test_a_node_without_a_party_plans_a_job_that_its_only_party_refuses(world, monkeypatch):
    monkeypatch.setattr(
        world.peer.admission,
        "dry_run",
        raising(Refused("not today")),
    )
    spec = a_job(
        roles={"guest": (PEER,)},
        scheduler=PEER,
    )

    plan = world.me.dry_run.plan(spec)

    reported = first_item(plan, PEER, "reported")
    assert reported.cause.endswith("REFUSED: not today")
    assert plan.nodes[0].node == ME
    assert plan.nodes[0].parties == ()


def test_the_latest_version_of_an_unknown_provider_is_a_problem(world):
    spec = a_job_of_component(ComponentRef("nobody", "*", "Thing"))

    with pytest.raises(Invalid) as caught:
        world.me.new_jobs.check(spec)

    text = "the scheduling node has in use, but here no provider nobody is registered"
    assert text in str(caught.value.problems[0])
    assert world.me.planner.placements(spec) == {}


@pytest.fixture
def busy_world(world: World) -> Iterator[tuple[World, str]]:
    """Nodes on which a job holds all cores, and its id."""
    job = a_job(job_params=cores(2))
    world.me.coordinator.submit_job(job, ME)
    world.wait_status(job.job_id, JobStatus.RUNNING)
    yield world, job.job_id
    world.stop(job)


def test_resources_of_another_job_make_a_job_wait(busy_world):
    world, holding_job_id = busy_world

    spec = a_job(job_params=cores(1))

    plan = world.me.dry_run.plan(spec)

    resources = first_item(plan, PEER, "resources")
    assert plan.good
    assert resources.standing is Standing.WAITS
    assert holding_job_id in resources.cause


def test_a_job_that_exceeds_the_resources_of_a_node_is_a_problem(busy_world):
    world, _ = busy_world

    spec = a_job(job_params=cores(9))

    plan = world.me.dry_run.plan(spec)

    assert problems(plan) == {
        (ME, "resources"),
        (PEER, "resources"),
    }
    resources = first_item(plan, ME, "resources")
    assert "RESOURCES_NEVER" in resources.cause


def test_a_dry_run_at_a_peer_with_only_the_standard_creates_nothing(tmp_path):
    secrets = {
        "guest": {"0": {"a": {"secret": "guests-own"}}},
        "host": {"0": {"a": {"secret": "hosts-own"}}},
    }
    unknown_task = says(
        code=1001,
        msg="no such task",
    )
    no_such_path = text(b"<html>not found</html>", 404)
    with serving_site(tmp_path) as site:
        site.peer.will(by_path(task_poll=unknown_task, other=no_such_path))

        plan = site.node.dry_run.plan(replace(a_job_with(SPEC), task_params=secrets))

        requests = list(site.peer.requests)

    assert plan.good
    route = first_item(plan, SPEC, "route")
    assert route.standing is Standing.OK
    way_back = first_item(plan, SPEC, "way back")
    assert way_back.standing is Standing.UNKNOWN
    report = first_item(plan, SPEC, "reported")
    assert report.standing is Standing.UNKNOWN
    assert "not reported by this node" in report.cause
    assert OPTIONAL["/job/plan"] in report.cause

    assert not [request for request in requests if request.target.endswith("/job/create")]
    (plan_request,) = [request for request in requests if request.target == SCHEDULE + "/job/plan"]
    assert b"hosts-own" in plan_request.raw
    assert b"guests-own" not in plan_request.raw


def test_a_report_survives_the_wire():
    items = [
        Item(
            "image",
            Standing.WAITS,
            "f",
            "c",
            "r",
            "a",
        ),
        Item("data", Standing.OK),
    ]

    body = PlanData(checks=redact_plan(items)).model_dump_json()

    assert list(read_plan(json.loads(body))) == items


def test_an_unknown_check_or_standing_of_a_report_is_unknown_and_cut():
    check = {
        "check": 7,
        "standing": "perhaps",
        "cause": "x" * 9000,
    }

    (item,) = read_plan({"checks": [check]})

    assert item.check == "reported"
    assert item.standing == Standing.UNKNOWN
    assert len(item.cause) == 2000


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"checks": 3},
        {"checks": [1, "x", None]},
    ],
    ids=str,
)
def test_a_report_without_checks_has_no_items(report):
    assert read_plan(report) == ()


def test_a_report_is_cut_after_500_checks():
    assert len(read_plan({"checks": [{}] * 10_000})) == 500
