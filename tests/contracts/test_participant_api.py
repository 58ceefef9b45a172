"""The common behaviour of every `ParticipantApi`: the use cases and each protocol.

The node under test plays one guest and two hosts of jobs that `PEER` schedules.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.run import Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, NotServed
from gateway.jobs.fingerprint import MAX_JOB_SIZE
from gateway.ports import Callback, ParticipantApi, TaskNews
from tests.builders import a_dag, a_spec, parties
from tests.contracts.apis import THIRD, Apis, World, catch_refusal, run_in_threads
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER

pytestmark = pytest.mark.xdist_group("participant_api")
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED
ROLES = {
    "arbiter": (PEER,),
    "guest": (ME,),
    "host": (ME, ME),
}
# The parties of the node under test.
PARTIES = ("guest.0", "host.0", "host.1")
NOT_AUTHORISED = ("NOT_AUTHORISED", 403)
JOB_ENDED = ("JOB_ENDED", 409)
JOB_ID_CONFLICT = ("JOB_ID_CONFLICT", 409)
JOB_UNKNOWN = ("JOB_UNKNOWN", 404)
TASK_UNKNOWN = ("TASK_UNKNOWN", 404)
TASK_ID_CONFLICT = ("TASK_ID_CONFLICT", 409)
ATTEMPTS_USED_UP = ("ATTEMPTS_USED_UP", 409)
_job_numbers = count()


@pytest.fixture
def api(apis: Apis) -> ParticipantApi:
    """The interface as the scheduling node sees it."""
    return apis.participant(PEER)


@pytest.fixture
def job(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def a_job_of(
    scratch: list[str],
    dag: str | Dag = "a",
    **fields: Any,
) -> JobSpec:
    """Return a new job, which is stopped after the test."""
    job_id = f"job-participant-{next(_job_numbers)}"
    spec = a_spec(dag, ROLES, job_id=job_id, **fields)
    scratch.append(spec.job_id)
    return spec


def task_id_of(
    spec: JobSpec,
    task: str = "a",
) -> str:
    """Return the id under which the tests start a task first."""
    return f"task-{spec.job_id}-{task}"


def start(
    api: ParticipantApi,
    world: World,
    spec: JobSpec,
    task: str = "a",
) -> str:
    """Start a task of a new job; return the task's id once all its containers are up."""
    task_id = task_id_of(spec, task)
    api.create_job(spec, PEER)
    api.start_job(spec.job_id, PEER)
    api.start_task(spec.job_id, task_id, task, PEER)
    for label in PARTIES:
        world.run(spec.job_id, task, label)
    return task_id


def start_task_b(api: ParticipantApi, spec: JobSpec) -> None:
    """Start the second task of a job."""
    task_id = task_id_of(spec, "b")
    api.start_task(spec.job_id, task_id, "b", PEER)


def end_parties(
    world: World, spec: JobSpec, labels: tuple[str, ...] = PARTIES, code: int = 0
) -> None:
    """Let the containers of task ``a`` exit at some parties."""
    for label in labels:
        world.end(
            spec.job_id,
            "a",
            label,
            code=code,
        )


def end_attempt(
    world: World,
    spec: JobSpec,
    task_id: str,
    code: int = 0,
) -> None:
    """Let the containers of an attempt exit; return once the node knows it."""

    def runs() -> tuple[Run, ...]:
        return world.local(spec.job_id).runs_of(task_id)

    wait_for(lambda: all(run.started_at for run in runs()), 20, 0.01, f"{task_id} is up")
    for run in runs():
        if code == 0:
            world.me.participant.callback(Callback(SUCCESS, run_id=run.run_id))
        world.engine().finish(run.name, code)
    wait_for(lambda: all(run.over for run in runs()), 20, 0.01, f"{task_id} is over")


def wait_for_failed_task(api: ParticipantApi, task_id: str) -> TaskNews:
    """Return the news of a task once it has failed."""

    def failed_news() -> TaskNews | None:
        news = api.poll_task(task_id, "", PEER)
        if news.status is not FAILED:
            return None
        return news

    news: TaskNews = wait_for(failed_news, 20, 0.01, f"{task_id} has failed")
    return news


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
    assert [run.parameters["x"] for run in runs] == [2] * len(PARTIES)


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
    assert {run.parameters["x"] for run in runs} == {"one"}


# ---------------------------------------------------------------- starts of tasks


def test_a_task_id_of_another_job_is_refused(api, world, scratch):
    first = a_job_of(scratch)
    second = a_job_of(scratch)
    task_id = start(api, world, first)
    api.create_job(second, PEER)
    api.start_job(second.job_id, PEER)

    refusal = catch_refusal(
        api.start_task,
        second.job_id,
        task_id,
        "a",
        PEER,
    )

    assert refusal == TASK_ID_CONFLICT
    local = world.local(second.job_id)
    assert local.runs == ()


def test_a_task_without_a_party_of_this_node_is_refused(api, world, scratch):
    dag = a_dag("a; judged")
    judge = replace(
        dag["judged"],
        component=ComponentRef("vendor", "1.0.0", "Judge"),
    )
    spec = a_job_of(
        scratch,
        Dag((dag["a"], judge)),
    )
    id_of_a = start(api, world, spec)

    id_conflict = catch_refusal(
        api.start_task,
        spec.job_id,
        id_of_a,
        "judged",
        PEER,
    )
    no_role = catch_refusal(
        api.start_task,
        spec.job_id,
        f"task-{spec.job_id}",
        "judged",
        PEER,
    )

    assert id_conflict == TASK_ID_CONFLICT
    assert no_role == ("NO_ROLE_HERE", 409)
    assert {run.task_name for run in world.local(spec.job_id).runs} == {"a"}


def test_reports_of_absent_runs_and_undescribed_codes_are_handled(world, job):
    start(world.me.participant, world, job)
    callback = world.me.participant.callback
    run_id = world.local(job.job_id).runs[0].run_id

    unknown = Callback(SUCCESS, run_id="0" * 64)
    refusal = catch_refusal(callback, unknown)
    assert refusal == ("RUN_UNKNOWN", 404)
    callback(Callback(FAILED, result_code="7", run_id=run_id))

    failure = wait_for(lambda: world.local(job.job_id).runs[0].failure, 20, 0.01)
    assert "7" in failure.message


# The requests of one start overlap differently from time to time.
@pytest.mark.parametrize("round_", range(4))
def test_a_task_starts_once_however_often_it_is_asked_for(api, world, job, round_):
    api.create_job(job, PEER)
    task_id = task_id_of(job)

    def start_task() -> None:
        api.start_task(job.job_id, task_id, "a", PEER)

    assert run_in_threads(6, start_task) == []
    runs = [world.run(job.job_id, "a", label) for label in PARTIES]
    start_task()

    labels = [run.party.label for run in world.local(job.job_id).runs]
    assert labels == list(PARTIES)
    launches = world.engine().launches
    launched = [launch.name for launch in launches if launch.labels["bfia.job"] == job.job_id]
    assert sorted(launched) == sorted(run.name for run in runs)


@pytest.mark.parametrize(
    "task_id",
    ["../x", "a/b", "a\\b", ".."],
)
def test_a_task_id_that_names_a_path_is_refused(api, world, job, task_id):
    api.create_job(job, PEER)

    refusal = catch_refusal(
        api.start_task,
        job.job_id,
        task_id,
        "a",
        PEER,
    )
    assert refusal == ("INVALID", 400)
    local = world.local(job.job_id)
    assert local.runs == ()


def test_an_unknown_task_of_a_job_is_refused(api, world, job):
    api.create_job(job, PEER)

    unknown_task = (job.job_id, "task-x", "nothing", PEER)
    refusal = catch_refusal(api.start_task, *unknown_task)
    assert refusal == TASK_UNKNOWN
    refusal = catch_refusal(api.stop_task, *unknown_task)
    assert refusal == TASK_UNKNOWN
    refusal = catch_refusal(
        api.stop_job,
        job.job_id,
        "nothing",
        None,
        PEER,
    )
    assert refusal == TASK_UNKNOWN
    local = world.local(job.job_id)
    assert local.runs == ()


def test_a_task_may_start_before_its_job_and_runs_under_one_id(api, world, job):
    """The start of a task may overtake the start of its job."""
    api.create_job(job, PEER)

    api.start_task(
        job.job_id,
        task_id_of(job),
        "a",
        PEER,
    )
    api.start_job(job.job_id, PEER)

    local = world.local(job.job_id)
    assert local.status is JobStatus.RUNNING
    second_id = (job.job_id, "task-other", "a", PEER)
    refusal = catch_refusal(api.start_task, *second_id)
    assert refusal == TASK_ID_CONFLICT
    assert len(world.local(job.job_id).runs) == len(PARTIES)


# ---------------------------------------------------------------- attempts


def write_output(world: World, run: Run) -> None:
    """Write the output table of a run."""
    address = run.outputs["out"]
    table = world.me.settings.storage.path / address.namespace / address.name
    table.mkdir(parents=True)
    (table / "data_0").write_text("id\n1\n")


def test_a_task_that_is_over_runs_again_under_another_id(api, world, scratch):
    """The next task gets the output of the latest attempt; a late stop of the first has no effect.

    A stop of the successful task, which some partners send to clean up, does not affect the next.
    """
    spec = a_job_of(
        scratch,
        "a -> b",
        job_params={"common": {"auto_retries": 1}},
    )
    first = start(api, world, spec)
    second = f"{first}-again"
    world.end(
        spec.job_id,
        "a",
        "guest.0",
        code=3,
    )
    for label in ("host.0", "host.1"):
        refusal = catch_refusal(
            api.start_task,
            spec.job_id,
            second,
            "a",
            PEER,
        )
        assert refusal == TASK_ID_CONFLICT, "the first attempt still runs"
        world.end(spec.job_id, "a", label)

    api.start_task(spec.job_id, second, "a", PEER)
    second_runs = wait_for(lambda: world.local(spec.job_id).runs[3:], 20, 0.01, "three more runs")
    runs = world.local(spec.job_id).runs
    attempts = [(run.attempt, run.task_id) for run in runs]
    assert attempts == 3 * [(0, first)] + 3 * [(1, second)]
    assert len({run.name for run in runs}) == 6
    news = api.poll_task(first, "", PEER)
    assert news.status is FAILED
    news = api.poll_task(second, "", PEER)
    assert news.status is not FAILED

    world.me.participant.stop_task(
        "",
        first,
        "",
        PEER,
    )
    for run in second_runs:
        write_output(world, run)
    end_attempt(world, spec, second)
    wait_for(lambda: api.poll_task(second, "", PEER).status is SUCCESS, 20, 0.01, "it succeeds")

    api.stop_job(spec.job_id, "a", None, PEER)
    start_task_b(api, spec)
    assert world.run(spec.job_id, "b", "guest.0").inputs["out"].name == f"{second}-out"


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        ({}, [3]),
        ({}, [0]),
        ({"auto_retries": 2}, [3, 3, 3]),
        ({"auto_retries": 2}, [3, 0]),
        (
            {
                "auto_retries": 2,
                "tasks": {"a": {"auto_retries": 0}},
            },
            [3],
        ),
    ],
)
def test_a_task_runs_as_often_as_its_job_allows_and_never_after_a_success(
    api, world, scratch, settings, codes
):
    """Attack: the scheduling node of an approved job reads a table again with each new start."""
    spec = a_job_of(
        scratch,
        job_params={"common": settings},
    )
    api.create_job(spec, PEER)
    for attempt, code in enumerate(codes):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        end_attempt(world, spec, task_id, code)
    run_ids = [run.run_id for run in world.local(spec.job_id).runs]

    for number in range(3):
        further_start = (spec.job_id, f"task-{spec.job_id}-more-{number}", "a", PEER)
        refusal = catch_refusal(api.start_task, *further_start)
        assert refusal == ATTEMPTS_USED_UP
    api.start_task(spec.job_id, task_id, "a", PEER)  # a repetition is no further attempt

    assert [run.run_id for run in world.local(spec.job_id).runs] == run_ids


def test_a_task_of_several_nodes_runs_again_until_a_later_one_has_begun(api, world, scratch):
    """It may have failed at another node, which this node cannot see."""
    spec = a_job_of(
        scratch,
        "a -> b",
        job_params={"common": {"auto_retries": 9}},
    )
    spec = replace(
        spec,
        parties=parties({"guest": (PEER,), "host": (ME,)}),
        initiator_role="guest",
    )
    api.create_job(spec, PEER)
    for attempt in range(2):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        end_attempt(world, spec, task_id)

    start_task_b(api, spec)

    late_start = (spec.job_id, f"task-{spec.job_id}-late", "a", PEER)
    refusal = catch_refusal(api.start_task, *late_start)
    assert refusal == ATTEMPTS_USED_UP


def test_a_task_whose_input_was_never_written_starts_with_a_warning(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    start(api, world, spec)
    end_parties(world, spec)

    start_task_b(api, spec)

    for label in PARTIES:
        (warning,) = world.run(spec.job_id, "b", label).warnings
        assert f"{label} has no output out of task a" in warning


# ---------------------------------------------------------------- polls


def test_each_role_and_index_answers_for_itself(api, world, job):
    task_id = start(api, world, job)

    def check_statuses(expected: dict[str, TaskStatus]) -> None:
        """Compare the status of each role; "" is the whole task at this node."""
        for role, status in expected.items():
            news = api.poll_task(task_id, role, PEER)
            assert news.status is status, role

    check_statuses(
        {
            "guest": RUNNING,
            "guest.0": RUNNING,
            "host": RUNNING,
            "host.0": RUNNING,
            "host.1": RUNNING,
            "": RUNNING,
        }
    )

    world.end(job.job_id, "a", "guest.0")
    check_statuses({"guest": SUCCESS, "guest.0": SUCCESS, "host": RUNNING, "": RUNNING})

    world.end(job.job_id, "a", "host.1")
    check_statuses({"host.0": RUNNING, "host.1": SUCCESS, "host": RUNNING, "": RUNNING})

    world.end(job.job_id, "a", "host.0")
    check_statuses({"host.0": SUCCESS, "host": SUCCESS, "": SUCCESS, "guest": SUCCESS})


def test_a_failure_is_reported_with_its_cause(api, world, job):
    task_id = start(api, world, job)

    world.end(
        job.job_id,
        "a",
        "host.1",
        code=3,
    )

    failure = Failure(
        "EXIT_3",
        "exit code 3",
        ME,
        "host",
        "a",
        3,
    )
    for role in ("host.1", "host", ""):
        news = api.poll_task(task_id, role, PEER)
        assert news == TaskNews(FAILED, failure)
    for role in ("host.0", "guest"):
        news = api.poll_task(task_id, role, PEER)
        assert news == TaskNews(RUNNING)


def test_a_role_that_this_node_does_not_play_is_unknown(api, world, job):
    task_id = start(api, world, job)

    for role in ("arbiter", "arbiter.0", "guest.1", "host.2", "nobody"):
        refusal = catch_refusal(api.poll_task, task_id, role, PEER)
        assert refusal == ("ROLE_UNKNOWN", 404)


# ---------------------------------------------------------------- stops

# The ways to stop one task, by the API and the ids of job and task.
STOP_TASK: dict[str, Callable[[ParticipantApi, str, str], None]] = {
    "by job": lambda api, job_id, task_id: api.stop_job(job_id, "a", None, PEER),
    "by name": lambda api, job_id, task_id: api.stop_task(job_id, task_id, "a", PEER),
    "by id": lambda api, job_id, task_id: api.stop_task("", task_id, "", PEER),
}


def test_stopping_a_task_that_succeeded_only_tidies_up(api, world, scratch):
    """Some partners stop every task after its success."""
    spec = a_job_of(scratch, "a; b")
    task_id = start(api, world, spec)
    end_parties(world, spec)

    for stop in 2 * list(STOP_TASK.values()):
        stop(api, spec.job_id, task_id)
        news = api.poll_task(task_id, "", PEER)
        assert news == TaskNews(SUCCESS)

    local = world.local(spec.job_id)
    assert local.status is JobStatus.RUNNING
    start_task_b(api, spec)
    assert world.run(spec.job_id, "b", "guest.0").stop_at is None


@pytest.mark.parametrize("way", STOP_TASK)
def test_stopping_a_task_that_runs_ends_it_and_its_successors(api, world, scratch, way):
    spec = a_job_of(scratch, "a -> b; c")
    api.create_job(spec, PEER)
    for name in ("b", "a", "c"):  # the scheduling node is responsible for the order
        api.start_task(
            spec.job_id,
            task_id_of(spec, name),
            name,
            PEER,
        )
        world.run(spec.job_id, name, "host.1")

    for _ in range(2):
        STOP_TASK[way](
            api,
            spec.job_id,
            task_id_of(spec, "a"),
        )

    for name in ("a", "b"):
        news = wait_for_failed_task(api, task_id_of(spec, name))
        assert news.failure.reason == "STOPPED"
        assert news.failure.task == name
    assert api.poll_task(task_id_of(spec, "c"), "host.1", PEER) == TaskNews(RUNNING)
    local = world.local(spec.job_id)
    assert local.status is JobStatus.RUNNING


def test_stopping_the_job_ends_everything_and_keeps_the_ending(api, world, job):
    task_id = start(api, world, job)
    failure = Failure(
        "EXIT_1",
        "exit code 1",
        PEER,
        "arbiter",
        "a",
        1,
    )

    for _ in range(2):
        ending = Ending(
            Outcome.FAILED,
            datetime.now(UTC),
            failure,
            PEER,
        )
        api.stop_job(job.job_id, "", ending, PEER)

    wait_for_failed_task(api, task_id)
    local = world.local(job.job_id)
    assert local.status is JobStatus.FINISHED
    assert local.ending is not None
    assert local.ending.outcome == Outcome.FAILED
    assert local.ending.failure == failure
    assert local.ending.by == PEER


def test_an_ended_job_starts_nothing_and_accepts_late_repetitions(api, world, job):
    task_id = start(api, world, job)
    failure = Failure(
        "EXIT_1",
        "exit code 1",
        PEER,
        "arbiter",
        "a",
        1,
    )
    api.stop_job(
        job.job_id,
        "",
        Ending(
            Outcome.FAILED,
            datetime.now(UTC),
            failure,
            PEER,
        ),
        PEER,
    )
    wait_for_failed_task(api, task_id)

    refusal = catch_refusal(api.start_job, job.job_id, PEER)
    assert refusal == JOB_ENDED
    refusal = catch_refusal(
        api.start_task,
        job.job_id,
        "task-late",
        "a",
        PEER,
    )
    assert refusal == JOB_ENDED

    # The first requests of the job may arrive again.
    api.create_job(job, PEER)
    local = world.local(job.job_id)
    assert local.status is JobStatus.FINISHED
    api.start_task(job.job_id, task_id, "a", PEER)
    news = api.poll_task(task_id, "", PEER)
    assert news.status is FAILED
