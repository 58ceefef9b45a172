"""A permit for one project or component opens nothing else, at the creation and at each start."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.domain.permit_scope import Scope
from gateway.errors import GatewayError
from gateway.language.catalogue import translate
from tests.builders import a_dag
from tests.inprocess import ME, PEER, STRANGER
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    change_application,
    newest_waiting,
    status_of,
    wait_for_status,
)
from tests.trust.permits import (
    ADDRESS,
    DATASET,
    a_job,
    create_at_me,
    end_permit,
    flow_of,
    get_permit,
    world_with_contract,
)

PROJECT = {"PROJECT": ["project-1"]}
COMPONENT = {"COMPONENT": ["vendor/Thing"]}
OUT_OF_SCOPE = "PERMIT_OUT_OF_SCOPE"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Nodes with a contract; `ME` requires a permit for its dataset."""
    with world_with_contract(tmp_path_factory.mktemp("nodes"), "permit") as world:
        yield world


def start_at_me(world, spec):
    """Start a task of a job of `PEER` at `ME`; return the refusal's reason, or ""."""
    try:
        world.peer.peers.participant(ME, "bfia").start_task(
            spec.job_id,
            f"{spec.job_id}-task",
            "a",
            PEER,
        )
    except GatewayError as error:
        return error.reason
    return ""


@pytest.mark.parametrize(
    ("scope", "flow", "reason"),
    [
        ({"NODE": [PEER]}, "any", ""),
        ({"NODE": [STRANGER]}, "any", OUT_OF_SCOPE),
        (PROJECT, "project-1", ""),
        (PROJECT, "project-2", OUT_OF_SCOPE),
        (PROJECT, "project-1 ", OUT_OF_SCOPE),
        (COMPONENT, "any", ""),
        ({"COMPONENT": ["vendor/Judge"]}, "any", OUT_OF_SCOPE),
        (PROJECT | COMPONENT, "project-1", ""),
        (PROJECT | COMPONENT, "project-2", OUT_OF_SCOPE),
        (PROJECT | {"COMPONENT": ["other/Thing"]}, "project-1", OUT_OF_SCOPE),
    ],
)
def test_a_permit_opens_only_what_its_scope_names(world, scope, flow, reason):
    mine, theirs = get_permit(world, scope=scope)

    assert create_at_me(world, a_job(flow_id=flow)) == reason

    end_permit(world, mine, theirs)


def test_an_approval_may_narrow_the_scope_as_both_nodes_show(world):
    mine = apply_for(world.peer, "dataset", world.me, DATASET)
    theirs = newest_waiting(world.me)

    approve(world.me, theirs, scope=PROJECT)

    wait_for_status(world.peer, mine, "APPROVED")
    assert create_at_me(world, a_job(flow_id="project-1")) == ""
    assert create_at_me(world, a_job(flow_id="project-2")) == OUT_OF_SCOPE
    for node, number in ((world.me, theirs), (world.peer, mine)):
        listed = call_api(node, "GET", "/applications?limit=1000")["applications"]
        [scope] = [each["scope"] for each in listed if each["number"] == number]
        assert scope == PROJECT
    end_permit(world, mine, theirs)


def test_a_refusal_names_the_dataset_the_scope_and_what_is_needed(world):
    mine, theirs = get_permit(world, scope=PROJECT | COMPONENT)

    with pytest.raises(GatewayError) as refusal:
        world.peer.peers.participant(ME, "bfia").create_job(a_job(flow_id="project-2"), PEER)

    message = refusal.value.message
    assert DATASET in message
    assert "its permit is only for PROJECT project-1, COMPONENT vendor/Thing" in message
    assert "this job needs one for PROJECT project-2" in message
    assert "本作业需要" in translate(message, "zh")
    end_permit(world, mine, theirs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"scope": Scope(projects=("project-2",))}, OUT_OF_SCOPE),
        ({"scope": Scope(components=("vendor/Judge",))}, OUT_OF_SCOPE),
        ({"expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, "PERMIT_MISSING"),
    ],
    ids=["unchanged", "another project", "another component", "expired"],
)
def test_a_start_checks_the_permit_again(world, change, reason):
    mine, theirs = get_permit(world, scope=PROJECT)
    spec = a_job(flow_id="project-1")
    assert create_at_me(world, spec) == ""
    world.me.sharing.grant(ADDRESS, PEER, "ann")  # outlasts the permit

    change_application(world.me, theirs, **change)

    assert start_at_me(world, spec) == reason
    if status_of(world.me, theirs) == "APPROVED":
        end_permit(world, mine, theirs)
    world.me.sharing.revoke(ADDRESS, PEER, "ann")


def test_permits_for_two_projects_exist_side_by_side(world):
    first = get_permit(world, scope=PROJECT)
    second = get_permit(world, scope={"PROJECT": ["project-2"]})
    jobs = [a_job(flow_id="project-1"), a_job(flow_id="project-2")]
    assert [create_at_me(world, spec) for spec in jobs] == ["", ""]
    assert create_at_me(world, a_job(flow_id="project-3")) == OUT_OF_SCOPE

    end_permit(world, *second)

    assert [start_at_me(world, spec) for spec in jobs] == ["", OUT_OF_SCOPE]
    assert create_at_me(world, a_job(flow_id="project-1")) == ""
    end_permit(world, *first)
    assert create_at_me(world, a_job(flow_id="project-1")) == "NOT_AUTHORISED"


def apply_for_flow_of(world, spec):
    """Apply for the flow of a job, in project-1; return the number at `PEER`."""
    fields = {
        "name": "flow",
        "dag": flow_of(spec),
        "project_id": "project-1",
    }
    return apply_for(
        world.peer,
        "flow",
        world.me,
        spec.flow_id,
        fields=fields,
    )


def with_another_task(spec):
    """Return another job under the same flow id, with a task more."""
    return replace(spec, job_id=f"{spec.job_id}-more", dag=a_dag("a -> extra"))


def test_a_flow_belongs_to_the_project_that_its_approval_names(world):
    mine, theirs = get_permit(world, scope=PROJECT)
    spec = a_job(flow_id="flow-of-1")
    assert create_at_me(world, spec) == OUT_OF_SCOPE

    flow = apply_for_flow_of(world, spec)
    assert create_at_me(world, spec) == "PERMIT_MISSING", "the flow now needs a permit, too"
    approve(world.me, newest_waiting(world.me))
    wait_for_status(world.peer, flow, "APPROVED")

    assert create_at_me(world, spec) == ""
    assert create_at_me(world, with_another_task(spec)) == "FLOW_DIFFERS"
    end_permit(world, mine, theirs)


def test_a_scope_holds_at_every_level(tmp_path):
    with world_with_contract(tmp_path, "known") as world:
        get_permit(world, scope=PROJECT)

        assert create_at_me(world, a_job(flow_id="project-1")) == ""
        assert create_at_me(world, a_job(flow_id="project-2")) == OUT_OF_SCOPE


def test_jobs_with_tasks_that_were_not_approved_are_not_of_the_project(tmp_path):
    with world_with_contract(tmp_path, "known") as world:
        get_permit(world, scope=PROJECT)
        spec = a_job(flow_id="flow-of-1")
        flow = apply_for_flow_of(world, spec)
        approve(world.me, newest_waiting(world.me))
        wait_for_status(world.peer, flow, "APPROVED")

        assert create_at_me(world, spec) == ""
        assert create_at_me(world, with_another_task(spec)) == OUT_OF_SCOPE


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"JOB": ["job-1"]}, "auth_scope.JOB"),
        ({"project": ["project-1"]}, "auth_scope.project"),
        ({"COMPONENT": ["Thing"]}, "auth_scope.COMPONENT[0]"),
        ({"PROJECT": [""]}, "auth_scope.PROJECT[0]"),
    ],
)
def test_a_scope_that_would_not_be_enforced_is_refused(world, scope, path):
    body = {
        "kind": "dataset",
        "partner": ME,
        "subject": DATASET,
    }
    refusal = call_api(world.peer, "POST", "/applications", body | {"scope": scope}, 400)
    assert path in refusal["msg"]

    # A product that does not check it gets the same answer from the owner.
    mine = apply_for(world.peer, "dataset", world.me, DATASET)
    application = world.peer.stored_applications.get(mine)
    request = {**application.request, "auth_scope": scope}
    with pytest.raises(GatewayError, match=path.partition("[")[0]):
        world.peer.management.apply(replace(application, id="foreign", request=request))


def test_only_applications_for_datasets_have_a_scope(world):
    body = {
        "kind": "project",
        "partner": ME,
        "subject": "project-1",
        "scope": PROJECT,
        "fields": {"name": "scoring"},
    }

    refusal = call_api(world.peer, "POST", "/applications", body, 400)

    assert "scope" in refusal["msg"]


def test_both_sides_see_the_scope_before_and_after_the_approval(world):
    mine = apply_for(world.peer, "dataset", world.me, DATASET, scope=PROJECT)
    theirs = newest_waiting(world.me)
    scopes = [scope_of(world.peer, mine), scope_of(world.me, theirs)]
    approve(world.me, theirs)
    wait_for_status(world.peer, mine, "APPROVED")
    scopes += [scope_of(world.peer, mine), scope_of(world.me, theirs)]

    assert scopes == [PROJECT] * 4
    end_permit(world, mine, theirs)


def scope_of(node, number):
    """Return the scope of an application as a node shows it."""
    return call_api(node, "GET", f"/applications/{number}")["scope"]
