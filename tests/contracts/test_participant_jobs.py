"""The common behaviour of every `ParticipantApi`: creating jobs and changing their parameters.

The node under test plays one guest and two hosts of jobs that `PEER` schedules.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.spec import Amendment, JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError, NotServed
from gateway.jobs.fingerprint import MAX_JOB_SIZE
from gateway.ports import ParticipantApi
from tests.builders import a_dag, parties
from tests.contracts.apis import THIRD, Apis, World, catch_refusal
from tests.contracts.participant import (
    JOB_ID_CONFLICT,
    JOB_UNKNOWN,
    NOT_AUTHORISED,
    PARTIES,
    ROLES,
    TASK_UNKNOWN,
    a_job_of,
    end_parties,
    start,
    task_id_of,
)
from tests.inprocess import ME, PEER, STRANGER

pytestmark = pytest.mark.xdist_group("participant_jobs")


@pytest.fixture
def api(apis: Apis) -> ParticipantApi:
    """The interface as the scheduling node sees it."""
    return apis.participant(PEER)


@pytest.fixture
def job(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


# ---------------------------------------------------------------- creation


def test_a_repeated_creation_and_start_change_nothing(api, world, job):
    api.create_job(job, PEER)
    created = world.local(job.job_id)
    assert created.status is JobStatus.READY
    assert created.runs == ()
    assert replace(created.spec, trace_id="") == replace(
        job,
        trace_id="",
    )

    for _ in range(3):
        api.create_job(job, PEER)
        api.start_job(job.job_id, PEER)
    parties_of_no_job = [f"host.{number}" for number in range(5, 1000)]
    api.start_job(job.job_id, PEER, parties_of_no_job)

    assert world.local(job.job_id) == replace(
        created,
        status=JobStatus.RUNNING,
    )
    events = [entry.event for entry in world.me.store.timeline(job.job_id)]
    assert events == ["job READY here", "job RUNNING here"]


@pytest.mark.parametrize(
    "changes",
    [
        {"flow_id": "another"},
        {"task_params": {"common": {"a": {"x": 1}}}},
        {"dag": a_dag("a; b")},
    ],
    ids=["flow", "parameters", "dag"],
)
def test_a_different_job_with_the_same_id_is_refused(api, job, changes):
    api.create_job(job, PEER)

    refusal = catch_refusal(api.create_job, replace(job, **changes), PEER)
    assert refusal == JOB_ID_CONFLICT


ROLES_WITH_THIRD = {
    "arbiter": (PEER,),
    "guest": (ME,),
    "host": (THIRD, ME),
}


@pytest.mark.parametrize(
    ("min_parties", "label"),
    [
        ({}, "arbiter.0"),
        ({}, "host.0"),
        ({"host": 1}, "host.1"),
        ({"host": 1}, "guest.0"),
    ],
)
def test_a_party_that_others_rely_on_cannot_be_excluded(api, world, scratch, min_parties, label):
    """Attack: after a job is agreed to, its scheduling node starts it without a needed party."""
    spec = a_job_of(
        scratch,
        job_params={"common": {"min_parties": min_parties}},
    )
    spec = replace(
        spec,
        parties=parties(ROLES_WITH_THIRD),
    )
    api.create_job(spec, PEER)

    refusal = catch_refusal(
        api.start_job,
        spec.job_id,
        PEER,
        [label],
    )
    assert refusal == NOT_AUTHORISED
    local = world.local(spec.job_id)
    assert local.excluded == ()


def test_a_party_cannot_be_excluded_after_the_start(api, scratch):
    spec = replace(
        a_job_of(scratch),
        parties=parties(ROLES_WITH_THIRD),
    )
    api.create_job(spec, PEER)
    api.start_job(spec.job_id, PEER)

    refusal = catch_refusal(
        api.start_job,
        spec.job_id,
        PEER,
        ["host.0"],
    )
    assert refusal == NOT_AUTHORISED


def test_an_optional_party_can_be_excluded_by_the_start(api, world, scratch):
    spec = a_job_of(
        scratch,
        job_params={"common": {"min_parties": {"host": 1}}},
    )
    spec = replace(
        spec,
        parties=parties(ROLES_WITH_THIRD),
    )
    api.create_job(spec, PEER)

    for _ in range(2):
        api.start_job(spec.job_id, PEER, ["host.0"])

    local = world.local(spec.job_id)
    assert local.excluded == ("host.0",)


def test_all_problems_are_reported_together(api, world, scratch):
    task_a, task_b, task_c = a_dag("a -> b; c").nodes
    unknown = replace(
        task_c,
        component=ComponentRef("vendor", "9", "Thing"),
    )
    task_params = {
        "guest": {"0": {"a": {"dataset_id": "no#such"}}},
        "host": {"1": {"a": {"dataset_id": "no"}}},
    }
    spec = a_job_of(
        scratch,
        Dag((task_a, task_b, unknown)),
        task_params=task_params,
    )

    with pytest.raises(GatewayError) as caught:
        api.create_job(spec, PEER)

    # A partner must not learn whether a dataset without a grant for it exists.
    assert caught.value.reason == "NOT_AUTHORISED"
    assert caught.value.code == 403
    message = caught.value.message
    assert "dag.components[2]: VERSION_UNKNOWN: provider vendor" in message
    assert "config.task_params.guest.0.a.dataset_id" in message
    assert "no#such" in message
    assert "config.task_params.host.1.a.dataset_id" in message
    stored_job = world.me.store.local_jobs.find(spec.job_id)
    assert stored_job is None


def check_too_large(
    create_job: Callable[..., Any],
    spec: JobSpec,
) -> None:
    """Fail unless a creation is refused for the size of the job."""
    refusal = f"must not have more than {MAX_JOB_SIZE} characters"
    with pytest.raises(GatewayError, match=refusal) as caught:
        create_job(spec, PEER)
    assert caught.value.reason == "TOO_LARGE"
    assert caught.value.code == 400


def test_a_job_that_is_far_too_large_is_refused(api, world, job):
    """Attack: a partner fills the database with large jobs, which stay after their end."""
    blob = "x" * MAX_JOB_SIZE

    check_too_large(
        api.create_job,
        replace(
            job,
            job_params={"common": {"blob": blob}},
        ),
    )
    # only the use case itself gets signed bundles of any content
    signed = replace(
        job,
        bundles={ME: {"payload": blob}},
    )
    check_too_large(world.me.participant.create_job, signed)

    stored_job = world.me.store.local_jobs.find(job.job_id)
    assert stored_job is None


def test_a_job_of_other_nodes_or_of_a_sender_without_a_route_is_refused(apis, api, world, job):
    others_job = replace(
        job,
        parties=parties({"arbiter": (PEER,), "guest": (THIRD,)}),
    )
    strangers_api = apis.participant(STRANGER)

    refusal = catch_refusal(api.create_job, others_job, PEER)
    assert refusal == ("NOT_A_PARTY", 409)
    refusal = catch_refusal(strangers_api.create_job, job, STRANGER)
    assert refusal == NOT_AUTHORISED
    stored_job = world.me.store.local_jobs.find(job.job_id)
    assert stored_job is None


# ---------------------------------------------------------------- permissions


def requests_about(
    job_id: str,
    task_id: str,
    sender: str,
) -> dict[str, tuple[Any, ...]]:
    """Return the requests about a job and its task: a method's name and its arguments."""
    return {
        "start job": ("start_job", job_id, sender),
        "start task": ("start_task", job_id, "task-new", "a", sender),
        "poll": ("poll_task", task_id, "", sender),
        "stop job": ("stop_job", job_id, "", None, sender),
        "stop task by job": ("stop_job", job_id, "a", None, sender),
        "stop task by name": ("stop_task", job_id, task_id, "a", sender),
        "stop task by id": ("stop_task", "", task_id, "", sender),
    }


@pytest.mark.parametrize("sender", [STRANGER, THIRD])
def test_a_node_without_a_part_in_a_job_learns_nothing_of_it(apis, api, world, job, sender):
    """Its requests get the same refusals as for an unknown job."""
    task_id = start(api, world, job)
    foreign_api = apis.participant(sender)
    unknown_requests = requests_about("job-none", "task-none", sender)

    for name, (method, *args) in requests_about(job.job_id, task_id, sender).items():
        _, *unknown_args = unknown_requests[name]
        request = getattr(foreign_api, method)
        assert catch_refusal(request, *args) == catch_refusal(request, *unknown_args), name

    statuses = [run.status.value for run in world.local(job.job_id).runs]
    assert statuses == ["RUNNING"] * 3


def test_a_party_that_does_not_schedule_a_job_cannot_stop_it(apis, api, scratch):
    roles = {**ROLES, "host": (ME, ME, THIRD)}
    spec = replace(
        a_job_of(scratch),
        parties=parties(roles),
    )
    api.create_job(spec, PEER)

    stop = (spec.job_id, "", None, THIRD)
    refusal = catch_refusal(apis.participant(THIRD).stop_job, *stop)
    assert refusal == NOT_AUTHORISED


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (("start_job", "job-nowhere", PEER), JOB_UNKNOWN),
        (("start_task", "job-nowhere", "task-x", "a", PEER), JOB_UNKNOWN),
        (("stop_job", "job-nowhere", "", None, PEER), JOB_UNKNOWN),
        (("stop_job", "job-nowhere", "a", None, PEER), JOB_UNKNOWN),
        (("stop_task", "job-nowhere", "task-x", "a", PEER), JOB_UNKNOWN),
        (("stop_task", "", "task-nowhere", "", PEER), TASK_UNKNOWN),
        (("poll_task", "task-nowhere", "", PEER), TASK_UNKNOWN),
        (("poll_task", "task-nowhere", "guest", PEER), TASK_UNKNOWN),
        (("poll_task", "task-nowhere", "guest.0", PEER), TASK_UNKNOWN),
    ],
    ids=str,
)
def test_unknown_ids(api, request_, refusal):
    method, *args = request_

    assert catch_refusal(getattr(api, method), *args) == refusal


# ---------------------------------------------------------------- amended parameters


def an_amendment(
    name: str,
    values: dict[str, Any],
) -> Amendment:
    """Return an amendment of the parameters that all parties have in common."""
    return Amendment(
        name,
        {"common": values},
        PEER,
        "sooner",
        datetime.now(UTC),
    )


# FATE's protocol has no amendments.
with_amendments = pytest.mark.parametrize(
    "apis",
    ["local", "bfia"],
    indirect=True,
)
by_fate = pytest.mark.parametrize(
    "apis",
    ["fate"],
    indirect=True,
)


@pytest.fixture
def begun_job(
    api: ParticipantApi,
    world: World,
    scratch: list[str],
) -> JobSpec:
    """A job whose task ``a`` runs, and whose task ``b`` has not begun."""
    values = {
        "a": {"x": 1},
        "b": {"x": 1},
    }
    spec = a_job_of(
        scratch,
        "a; b",
        task_params={"common": values},
    )
    start(api, world, spec)
    return spec


@pytest.fixture
def amendable(api: ParticipantApi, begun_job: JobSpec) -> JobSpec:
    """The begun job with the amendment ``one`` for task ``b``, which was offered twice."""
    amendment = an_amendment(
        "one",
        {"b": {"x": 2}},
    )
    for _ in range(2):
        api.offer_parameters(begun_job.job_id, amendment, [], PEER)
    return begun_job


@by_fate
def test_an_offer_by_fates_protocol_is_not_served(api, world, begun_job):
    amendment = an_amendment(
        "one",
        {"b": {"x": 2}},
    )

    with pytest.raises(NotServed):
        api.offer_parameters(begun_job.job_id, amendment, [], PEER)

    local = world.local(begun_job.job_id)
    assert local.offered == ()


@with_amendments
def test_offered_parameters_get_warnings_of_their_own(api, world, amendable):
    api.offer_parameters(
        amendable.job_id,
        an_amendment("two", {"b": {"x": 3}}),
        [],
        PEER,
    )

    warnings = world.local(amendable.job_id).warnings
    about_x = [text for text in warnings if ".b.x: is not a parameter" in text]
    for value in ("2", "3"):
        assert [text for text in about_x if f"(got {value})" in text]


@with_amendments
@pytest.mark.parametrize(
    "values",
    [
        {"a": {"x": 2}},
        {"z": {}},
    ],
    ids=["begun", "unknown"],
)
def test_parameters_of_a_begun_or_unknown_task_are_refused(api, world, amendable, values):
    offer = (
        amendable.job_id,
        an_amendment("three", values),
        [],
        PEER,
    )

    refusal = catch_refusal(api.offer_parameters, *offer)
    assert refusal == ("INVALID", 400)
    assert [amendment.id for amendment in world.local(amendable.job_id).offered] == ["one"]


@with_amendments
def test_the_total_size_of_offered_parameters_is_limited(api, world, amendable):
    """Each offer is a bit more than half of the limit."""
    half = {str(number): "x" * 100_000 for number in range(MAX_JOB_SIZE // 160_000)}
    api.offer_parameters(
        amendable.job_id,
        an_amendment("long", {"b": half}),
        [],
        PEER,
    )

    too_much = (
        amendable.job_id,
        an_amendment("longer", {"b": half}),
        [],
        PEER,
    )

    refusal = catch_refusal(api.offer_parameters, *too_much)
    assert refusal == ("TOO_LARGE", 400)
    offered = [amendment.id for amendment in world.local(amendable.job_id).offered]
    assert offered == ["one", "long"]


@with_amendments
@pytest.mark.parametrize("sender", [STRANGER, THIRD])
def test_an_offer_of_a_node_without_a_part_in_the_job_is_refused(apis, amendable, sender):
    offer_parameters = apis.participant(sender).offer_parameters
    amendment = an_amendment(
        "foreign",
        {"b": {"x": 2}},
    )

    refusal = catch_refusal(
        offer_parameters,
        amendable.job_id,
        amendment,
        [],
        sender,
    )

    assert refusal == catch_refusal(
        offer_parameters,
        "job-none",
        amendment,
        [],
        sender,
    )


@with_amendments
def test_new_parameters_hold_once_a_start_names_them(api, world, amendable):
    api.offer_parameters(
        amendable.job_id,
        an_amendment("two", {"b": {"x": 3}}),
        [],
        PEER,
    )
    start_b = (
        amendable.job_id,
        task_id_of(amendable, "b"),
        "b",
        PEER,
    )
    refusal = catch_refusal(api.start_task, *start_b, ["one", "four"])
    assert refusal == ("REFUSED", 409)

    api.start_task(*start_b, ["one"])

    runs = [run for run in world.local(amendable.job_id).runs if run.task_name == "b"]
    assert [run.data.parameters["x"] for run in runs] == [2] * len(PARTIES)


def test_the_attempts_of_a_task_have_the_same_parameters(world, scratch):
    """Attack: amendments are offered before a task begins, and each attempt names other ones."""
    api = world.me.participant
    spec = a_job_of(
        scratch,
        "a; b",
        task_params={"common": {"a": {"x": 1}, "b": {"x": 1}}},
        job_params={"common": {"auto_retries": 9}},
    )
    api.create_job(spec, PEER)
    for name, task in (("one", "a"), ("two", "a"), ("three", "b")):
        api.offer_parameters(
            spec.job_id,
            an_amendment(name, {task: {"x": name}}),
            [],
            PEER,
        )
    first = task_id_of(spec)
    api.start_task(
        spec.job_id,
        first,
        "a",
        PEER,
        ["one"],
    )
    end_parties(world, spec, code=3)

    retry = (spec.job_id, f"{first}-again", "a", PEER)
    for amendments in ([], ["two"], ["one", "two"], ["three"]):
        refusal = catch_refusal(api.start_task, *retry, amendments)
        assert refusal == ("PARAMETERS_CHANGED", 409), amendments

    # A start that was delayed does not name the amendments accepted since.
    api.start_task(
        spec.job_id,
        task_id_of(spec, "b"),
        "b",
        PEER,
        ["one", "three"],
    )
    api.start_task(*retry, ["one"])
    runs = [run for run in world.local(spec.job_id).runs if run.task_name == "a"]
    assert {run.data.parameters["x"] for run in runs} == {"one"}
