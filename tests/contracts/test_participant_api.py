"""What every `ParticipantApi` has to do alike: the use cases themselves, and each protocol's client and router.

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
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, NotServed
from gateway.jobs.digest import MAX_JOB_SIZE
from gateway.ports import Callback, ParticipantApi, TaskNews
from tests.builders import a_dag, a_spec, parties
from tests.contracts.apis import THIRD, Apis, World, catch_refusal, run_in_threads
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER

pytestmark = pytest.mark.xdist_group("participant_api")
RUNNING, SUCCESS, FAILED = TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
ROLES = {
    "arbiter": (PEER,),
    "guest": (ME,),
    "host": (ME, ME),
}
PARTIES = ("guest.0", "host.0", "host.1")
_numbers = count()


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
    **changes: Any,
) -> JobSpec:
    spec = a_spec(dag, ROLES, job_id=f"job-participant-{next(_numbers)}", **changes)
    scratch.append(spec.job_id)
    return spec


def started(
    api: ParticipantApi,
    world: World,
    spec: JobSpec,
    task: str = "a",
) -> str:
    """Create the job, start one of its tasks, and wait until all its containers are up; return the task's id."""
    api.create_job(spec, PEER)
    api.start_job(spec.job_id, PEER)
    task_id = f"task-{spec.job_id}-{task}"
    api.start_task(spec.job_id, task_id, task, PEER)
    for label in PARTIES:
        world.run(spec.job_id, task, label)
    return task_id


def test_creating_is_accepting_and_once(api, world, job):
    api.create_job(job, PEER)
    first = world.local(job.job_id)
    assert first.status is JobStatus.READY
    assert first.runs == ()
    assert replace(first.spec, trace_id="") == replace(job, trace_id="")
    for other in (
        replace(job, flow_id="another"),
        replace(job, task_params={"common": {"a": {"x": 1}}}),
        replace(job, dag=a_dag("a; b")),
    ):
        assert catch_refusal(api.create_job, other, PEER) == ("JOB_ID_CONFLICT", 409)
    for _ in range(3):
        api.create_job(job, PEER)
        api.start_job(job.job_id, PEER)
    api.start_job(
        job.job_id, PEER, [f"host.{n}" for n in range(5, 1000)]
    )  # no party of it is left out
    assert world.local(job.job_id) == replace(first, status=JobStatus.RUNNING)
    events = [e.event for e in world.me.store.timeline(job.job_id)]
    assert events == ["job READY here", "job RUNNING here"]


def test_a_job_runs_without_those_parties_only_that_it_can_spare(api, world, scratch):
    """Attack: who schedules a job leaves out, once it is agreed to, whom the others rely on."""
    roles = {
        "arbiter": (PEER,),
        "guest": (ME,),
        "host": (THIRD, ME),
    }
    needed = replace(a_job_of(scratch), parties=parties(roles))
    spared = replace(
        a_job_of(scratch, job_params={"common": {"min_parties": {"host": 1}}}),
        parties=parties(roles),
    )
    for spec in (needed, spared):
        api.create_job(spec, PEER)
    for spec, label in (
        (needed, "arbiter.0"),
        (needed, "host.0"),
        (spared, "host.1"),
        (spared, "guest.0"),
    ):
        assert catch_refusal(api.start_job, spec.job_id, PEER, [label]) == (
            "NOT_AUTHORISED",
            403,
        ), label
        assert world.local(spec.job_id).excluded == ()
    api.start_job(needed.job_id, PEER)
    assert catch_refusal(api.start_job, needed.job_id, PEER, ["host.0"]) == ("NOT_AUTHORISED", 403)
    for _ in range(2):
        api.start_job(spared.job_id, PEER, ["host.0"])
    assert world.local(spared.job_id).excluded == ("host.0",)


def test_all_problems_are_reported_together(api, world, scratch):
    flow = a_dag("a -> b; c")
    unknown = replace(flow.nodes[2], component=ComponentRef("vendor", "9", "Thing"))
    spec = a_job_of(
        scratch,
        Dag((flow.nodes[0], flow.nodes[1], unknown)),
        task_params={
            "guest": {"0": {"a": {"dataset_id": "no#such"}}},
            "host": {"1": {"a": {"dataset_id": "no"}}},
        },
    )
    with pytest.raises(GatewayError) as caught:
        api.create_job(spec, PEER)
    # a peer is not told whether a dataset that it was not granted exists
    assert caught.value.reason == "NOT_AUTHORISED"
    assert caught.value.code == 403
    for found in (
        "dag.components[2]: VERSION_UNKNOWN: provider vendor",
        "config.task_params.guest.0.a.dataset_id",
        "no#such",
        "config.task_params.host.1.a.dataset_id",
    ):
        assert found in caught.value.message
    assert world.me.store.local_jobs.find(spec.job_id) is None


def test_a_job_that_is_far_too_large_is_refused(api, world, job):
    """However often a partner makes and ends such jobs, each would stay."""
    blob = "x" * MAX_JOB_SIZE
    signed = replace(job, bundles={ME: {"payload": blob}})
    large = replace(job, job_params={"common": {"blob": blob}})
    for create, spec in ((api.create_job, large), (world.me.participant.create_job, signed)):
        with pytest.raises(
            GatewayError, match=f"must not have more than {MAX_JOB_SIZE} characters"
        ) as caught:
            create(spec, PEER)
        assert caught.value.reason == "TOO_LARGE"
        assert caught.value.code == 400
    assert world.me.store.local_jobs.find(job.job_id) is None


def test_a_job_of_other_nodes_or_of_a_sender_without_a_route_is_refused(apis, api, world, job):
    others = replace(job, parties=a_spec("a", {"arbiter": (PEER,), "guest": (THIRD,)}).parties)
    assert catch_refusal(api.create_job, others, PEER) == ("NOT_A_PARTY", 409)
    assert catch_refusal(apis.participant(STRANGER).create_job, job, STRANGER) == (
        "NOT_AUTHORISED",
        403,
    )
    assert world.me.store.local_jobs.find(job.job_id) is None


def test_only_the_scheduling_node_may_go_on(apis, api, world, job, scratch):
    task_id = started(api, world, job)
    for sender in (STRANGER, THIRD):
        other = apis.participant(sender)
        unknown = map(
            catch_refusal, _calls(other, "job-none", "task-none", sender)
        )  # who has no part learns nothing
        assert [catch_refusal(call) for call in _calls(other, job.job_id, task_id, sender)] == list(
            unknown
        )
    inside = replace(a_job_of(scratch), parties=parties({**ROLES, "host": (*ROLES["host"], THIRD)}))
    api.create_job(inside, PEER)
    assert catch_refusal(other.stop_job, inside.job_id, "", None, THIRD) == ("NOT_AUTHORISED", 403)
    assert [str(r.status) for r in world.local(job.job_id).runs] == ["RUNNING"] * 3


def _calls(
    api: ParticipantApi,
    job_id: str,
    task_id: str,
    sender: NodeId,
) -> list[Any]:
    return [
        lambda: api.start_job(job_id, sender),
        lambda: api.start_task(job_id, "task-new", "a", sender),
        lambda: api.poll_task(task_id, "", sender),
        lambda: api.stop_job(job_id, "", None, sender),
        lambda: api.stop_job(job_id, "a", None, sender),
        lambda: api.stop_task(job_id, task_id, "a", sender),
        lambda: api.stop_task("", task_id, "", sender),
    ]


def test_new_parameters_hold_once_a_start_names_them(apis, api, world, scratch):
    job = a_job_of(scratch, "a; b", task_params={"common": {"a": {"x": 1}, "b": {"x": 1}}})
    started(api, world, job)

    def offer(name: str, values: Any) -> tuple[str, Amendment, list[str], NodeId]:
        return (
            job.job_id,
            Amendment(name, {"common": values}, PEER, "sooner", datetime.now(UTC)),
            [],
            PEER,
        )

    one, two = offer("one", {"b": {"x": 2}}), offer("two", {"b": {"x": 3}})
    try:
        api.offer_parameters(*one)
    except NotServed:  # FATE's protocol has none
        assert world.local(job.job_id).offered == ()
        return
    api.offer_parameters(*one)
    api.offer_parameters(*two)  # and never recorded
    for value in ("2", "3"):  # the warnings at its creation were about 1
        assert any(
            ".b.x: is not a parameter" in w and f"(got {value})" in w
            for w in world.local(job.job_id).warnings
        )
    for wrong in ({"a": {"x": 2}}, {"z": {}}):
        assert catch_refusal(api.offer_parameters, *offer("three", wrong)) == ("INVALID", 400)
    half = {str(i): "x" * 100_000 for i in range(MAX_JOB_SIZE // 160_000)}
    api.offer_parameters(*offer("long", {"b": half}))
    assert catch_refusal(api.offer_parameters, *offer("longer", {"b": half})) == ("TOO_LARGE", 400)
    for sender in (THIRD, STRANGER):
        offers = apis.participant(sender).offer_parameters
        assert catch_refusal(offers, *one[:3], sender) == catch_refusal(
            offers, "job-none", *one[1:3], sender
        )
    assert [known.id for known in world.local(job.job_id).offered] == ["one", "two", "long"]
    start = (job.job_id, f"task-{job.job_id}-b", "b", PEER)
    assert catch_refusal(api.start_task, *start, ["one", "four"]) == ("REFUSED", 409)
    api.start_task(*start, ["one"])
    of_b = [run for run in world.local(job.job_id).runs if run.task_name == "b"]
    assert len(of_b) == len(PARTIES)
    assert [run.parameters["x"] for run in of_b] == [2] * 3


def test_unknown_ids(api):
    nowhere = "job-nowhere"
    for refused in (
        catch_refusal(api.start_job, nowhere, PEER),
        catch_refusal(api.start_task, nowhere, "task-x", "a", PEER),
        catch_refusal(api.stop_job, nowhere, "", None, PEER),
        catch_refusal(api.stop_job, nowhere, "a", None, PEER),
        catch_refusal(api.stop_task, nowhere, "task-x", "a", PEER),
    ):
        assert refused == ("JOB_UNKNOWN", 404)
    assert catch_refusal(api.stop_task, "", "task-nowhere", "", PEER) == ("TASK_UNKNOWN", 404)
    for role in ("", "guest", "guest.0"):
        assert catch_refusal(api.poll_task, "task-nowhere", role, PEER) == ("TASK_UNKNOWN", 404)


def test_an_id_of_another_task_and_foreign_components_are_refused(api, world, scratch):
    first, second = a_job_of(scratch), a_job_of(scratch, "a; judged")
    judge = replace(second.dag["judged"], component=ComponentRef("vendor", "1.0.0", "Judge"))
    second = replace(second, dag=Dag((second.dag["a"], judge)))
    task_id = started(api, world, first)
    api.create_job(second, PEER)
    api.start_job(second.job_id, PEER)
    assert catch_refusal(api.start_task, second.job_id, task_id, "a", PEER) == (
        "TASK_ID_CONFLICT",
        409,
    )
    api.start_task(second.job_id, f"task-{second.job_id}-a", "a", PEER)
    repeated = (
        second.job_id,
        f"task-{second.job_id}-a",
        "judged",
        PEER,
    )  # as if it had begun under that id
    assert catch_refusal(api.start_task, *repeated) == ("TASK_ID_CONFLICT", 409)
    start = (second.job_id, f"task-{second.job_id}", "judged", PEER)
    assert catch_refusal(api.start_task, *start) == ("NO_ROLE_HERE", 409)
    assert {run.task_name for run in world.local(second.job_id).runs} == {"a"}


def test_reports_of_absent_runs_and_undescribed_codes_are_handled(world, job):
    started(world.me.participant, world, job)
    callback = world.me.participant.callback
    assert catch_refusal(callback, Callback(SUCCESS, run_id="0" * 64)) == ("RUN_UNKNOWN", 404)
    callback(Callback(FAILED, result_code="7", run_id=world.local(job.job_id).runs[0].run_id))
    failure = wait_for(lambda: world.local(job.job_id).runs[0].failure, 20, 0.01)
    assert "7" in failure.message


def test_a_task_starts_once_however_often_it_is_asked_for(api, world, scratch):
    for _ in range(4):  # what happens between two of the calls differs from time to time
        job = a_job_of(scratch)
        api.create_job(job, PEER)
        task_id = f"task-{job.job_id}"
        assert (
            run_in_threads(
                6, lambda job=job, task_id=task_id: api.start_task(job.job_id, task_id, "a", PEER)
            )
            == []
        )
        runs = [world.run(job.job_id, "a", label) for label in PARTIES]
        api.start_task(job.job_id, task_id, "a", PEER)
        assert [r.party.label for r in world.local(job.job_id).runs] == list(PARTIES)
        launched = [
            spec.name for spec in world.engine().launches if spec.labels["bfia.job"] == job.job_id
        ]
        assert sorted(launched) == sorted(run.name for run in runs)


def test_a_task_may_start_before_its_job_and_runs_under_one_id(api, world, job):
    """The two calls may overtake each other."""
    api.create_job(job, PEER)
    for bad in ("../x", "a/b", "a\\b", ".."):
        assert catch_refusal(api.start_task, job.job_id, bad, "a", PEER) == ("INVALID", 400)
    for call in (api.start_task, api.stop_task):
        assert catch_refusal(call, job.job_id, "task-x", "nothing", PEER) == ("TASK_UNKNOWN", 404)
    assert catch_refusal(api.stop_job, job.job_id, "nothing", None, PEER) == ("TASK_UNKNOWN", 404)
    assert world.local(job.job_id).runs == ()
    api.start_task(job.job_id, f"task-{job.job_id}", "a", PEER)
    api.start_job(job.job_id, PEER)
    assert world.local(job.job_id).status is JobStatus.RUNNING
    assert catch_refusal(api.start_task, job.job_id, "task-other", "a", PEER) == (
        "TASK_ID_CONFLICT",
        409,
    )
    assert len(world.local(job.job_id).runs) == len(PARTIES)


def test_a_task_that_is_over_runs_again_under_another_id(api, world, scratch):
    """The next task gets what the newest attempt wrote; a late stop of the first one reaches nothing."""
    spec = a_job_of(scratch, "a -> b", job_params={"common": {"auto_retries": 1}})
    first = started(api, world, spec)
    world.end(spec.job_id, "a", "guest.0", code=3)
    for label in PARTIES[1:]:
        assert catch_refusal(api.start_task, spec.job_id, first + "-again", "a", PEER) == (
            "TASK_ID_CONFLICT",
            409,
        )
        world.end(spec.job_id, "a", label)
    second = first + "-again"
    api.start_task(spec.job_id, second, "a", PEER)
    runs = wait_for(lambda: world.local(spec.job_id).runs[3:], 20, 0.01, "three more runs")
    assert [(run.attempt, run.task_id) for run in world.local(spec.job_id).runs] == [
        (0, first)
    ] * 3 + [(1, second)] * 3
    assert len({run.name for run in world.local(spec.job_id).runs}) == 6
    assert api.poll_task(first, "", PEER).status is FAILED
    assert api.poll_task(second, "", PEER).status is not FAILED
    world.me.participant.stop_task("", first, "", PEER)
    for run in runs:
        table = (
            world.me.settings.storage.path / run.outputs["out"].namespace / run.outputs["out"].name
        )
        table.mkdir(parents=True)
        (table / "data_0").write_text("id\n1\n")
        wait_for(
            lambda run=run: run.name in {s.name for s in world.engine().launches},
            20,
            0.01,
            "it is up",
        )
        world.me.participant.callback(Callback(SUCCESS, run_id=run.run_id))
        world.engine().finish(run.name, 0)
    wait_for(
        lambda: api.poll_task(second, "", PEER).status is SUCCESS,
        20,
        0.01,
        "the second attempt succeeds",
    )
    api.stop_job(spec.job_id, "a", None, PEER)  # as some peers tidy up: what follows is not touched
    api.start_task(spec.job_id, f"task-b-{spec.job_id}", "b", PEER)
    assert world.run(spec.job_id, "b", "guest.0").inputs["out"].name == f"{second}-out"


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        ({}, [3]),
        ({}, [0]),
        ({"auto_retries": 2}, [3, 3, 3]),
        ({"auto_retries": 2}, [3, 0]),
        ({"auto_retries": 2, "tasks": {"a": {"auto_retries": 0}}}, [3]),
    ],
)
def test_a_task_runs_as_often_as_its_job_allows_and_never_after_a_success(
    api, world, scratch, settings, codes
):
    """Attack: who schedules one approved job has a table read once more by each start of a task."""
    spec = a_job_of(scratch, job_params={"common": settings})
    api.create_job(spec, PEER)
    for attempt, code in enumerate(codes):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        end_attempt(world, spec, task_id, code)
    before = [run.run_id for run in world.local(spec.job_id).runs]
    for number in range(3):
        start = (spec.job_id, f"task-{spec.job_id}-more-{number}", "a", PEER)
        assert catch_refusal(api.start_task, *start) == ("ATTEMPTS_USED_UP", 409)
    api.start_task(spec.job_id, task_id, "a", PEER)  # a repetition is none of the attempts
    assert [run.run_id for run in world.local(spec.job_id).runs] == before


def end_attempt(
    world: World,
    spec: JobSpec,
    task_id: str,
    code: int = 0,
) -> None:
    """Let the containers of an attempt end; return once the node knows it."""

    def runs() -> tuple[Run, ...]:
        return world.local(spec.job_id).runs_of(task_id)

    wait_for(lambda: all(run.started_at for run in runs()), 20, 0.01, f"{task_id} is up")
    for run in runs():
        if code == 0:
            world.me.participant.callback(Callback(SUCCESS, run_id=run.run_id))
        world.engine().finish(run.name, code)
    wait_for(lambda: all(run.over for run in runs()), 20, 0.01, f"{task_id} is over")


def test_a_task_of_several_nodes_runs_again_until_a_later_one_has_begun(api, world, scratch):
    """It may have failed at another node, which this one cannot see."""
    spec = a_job_of(scratch, "a -> b", job_params={"common": {"auto_retries": 9}})
    spec = replace(spec, parties=parties({"guest": (PEER,), "host": (ME,)}), initiator_role="guest")
    api.create_job(spec, PEER)
    for attempt in range(2):
        task_id = f"task-{spec.job_id}-{attempt}"
        api.start_task(spec.job_id, task_id, "a", PEER)
        end_attempt(world, spec, task_id)
    api.start_task(spec.job_id, f"task-{spec.job_id}-b", "b", PEER)
    start = (spec.job_id, f"task-{spec.job_id}-late", "a", PEER)
    assert catch_refusal(api.start_task, *start) == ("ATTEMPTS_USED_UP", 409)


def test_the_attempts_of_a_task_have_the_same_parameters(world, scratch):
    """Attack: parameters are offered before a task begins, and each attempt names others of them."""
    api = world.me.participant
    values = {"a": {"x": 1}, "b": {"x": 1}}
    spec = a_job_of(
        scratch, "a; b", task_params={"common": values}, job_params={"common": {"auto_retries": 9}}
    )
    api.create_job(spec, PEER)
    for name, task in (("one", "a"), ("two", "a"), ("three", "b")):
        offered = Amendment(
            name, {"common": {task: {"x": name}}}, PEER, "sooner", datetime.now(UTC)
        )
        api.offer_parameters(spec.job_id, offered, [], PEER)
    first = f"task-{spec.job_id}-a"
    api.start_task(spec.job_id, first, "a", PEER, ["one"])
    for label in PARTIES:
        world.end(spec.job_id, "a", label, code=3)
    for holding in ([], ["two"], ["one", "two"], ["three"]):
        start = (spec.job_id, f"{first}-again", "a", PEER, holding)
        assert catch_refusal(api.start_task, *start) == ("PARAMETERS_CHANGED", 409), holding
    api.start_task(spec.job_id, f"task-{spec.job_id}-b", "b", PEER, ["one", "three"])
    api.start_task(
        spec.job_id, f"{first}-again", "a", PEER, ["one"]
    )  # a slow start: what it names is of before
    assert {
        run.parameters["x"] for run in world.local(spec.job_id).runs if run.task_name == "a"
    } == {"one"}


def test_a_task_whose_input_was_never_written_starts_with_a_warning(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    started(api, world, spec)
    for label in PARTIES:
        world.end(spec.job_id, "a", label)
    api.start_task(spec.job_id, f"task-b-{spec.job_id}", "b", PEER)
    for label in PARTIES:
        (warning,) = world.run(spec.job_id, "b", label).warnings
        assert f"{label} has no output out of task a" in warning


def test_each_role_and_index_answers_for_itself(api, world, job):
    task_id = started(api, world, job)

    def said(*roles: str) -> list[TaskStatus]:
        return [api.poll_task(task_id, role, PEER).status for role in roles]

    assert said("guest", "guest.0", "host", "host.0", "host.1", "") == [RUNNING] * 6
    world.end(job.job_id, "a", "guest.0")
    assert said("guest", "guest.0") == [SUCCESS] * 2
    assert said("host", "") == [RUNNING] * 2
    world.end(job.job_id, "a", "host.1")
    assert said("host.0", "host.1", "host", "") == [RUNNING, SUCCESS, RUNNING, RUNNING]
    world.end(job.job_id, "a", "host.0")
    assert said("host.0", "host", "", "guest") == [SUCCESS] * 4


def test_a_failure_is_reported_with_its_cause(api, world, job):
    task_id = started(api, world, job)
    for role in ("arbiter", "arbiter.0", "guest.1", "host.2", "nobody"):
        assert catch_refusal(api.poll_task, task_id, role, PEER) == ("ROLE_UNKNOWN", 404)
    world.end(job.job_id, "a", "host.1", code=3)
    why = Failure("EXIT_3", "exit code 3", ME, "host", "a", 3)
    for role, news in (
        *((role, TaskNews(FAILED, why)) for role in ("host.1", "host", "")),
        *((role, TaskNews(RUNNING)) for role in ("host.0", "guest")),
    ):
        assert api.poll_task(task_id, role, PEER) == news


WAYS: dict[str, Callable[[ParticipantApi, str, str, str], None]] = {
    "by job": lambda api, job_id, task_id, name: api.stop_job(job_id, name, None, PEER),
    "by name": lambda api, job_id, task_id, name: api.stop_task(job_id, task_id, name, PEER),
    "by id": lambda api, job_id, task_id, name: api.stop_task("", task_id, "", PEER),
}
"""the ways in which a scheduling node may ask for the end of one task"""


def test_stopping_a_task_that_succeeded_only_tidies_up(api, world, scratch):
    """Some peers send this after every task that went well."""
    spec = a_job_of(scratch, "a; b")
    task_id = started(api, world, spec)
    for label in PARTIES:
        world.end(spec.job_id, "a", label)
    for stop in (*WAYS.values(), *WAYS.values()):
        stop(api, spec.job_id, task_id, "a")
        assert api.poll_task(task_id, "", PEER) == TaskNews(SUCCESS)
    assert world.local(spec.job_id).status is JobStatus.RUNNING
    api.start_task(spec.job_id, f"task-b-{spec.job_id}", "b", PEER)
    assert world.run(spec.job_id, "b", "guest.0").stop_at is None


@pytest.mark.parametrize("way", WAYS)
def test_stopping_a_task_that_runs_ends_it_and_what_follows_it(api, world, scratch, way):
    spec = a_job_of(scratch, "a -> b; c")
    tasks = {
        name: f"task-{spec.job_id}-{name}" for name in "bac"
    }  # whoever schedules answers for the order
    api.create_job(spec, PEER)
    for name, task_id in tasks.items():
        api.start_task(spec.job_id, task_id, name, PEER)
        world.run(spec.job_id, name, "host.1")
    for _ in range(2):
        WAYS[way](api, spec.job_id, tasks["a"], "a")
    for name in "ab":
        news = wait_for(lambda name=name: _over(api, tasks[name]), 20, 0.01)
        assert news.failure.reason == "STOPPED"
        assert news.failure.task == name
    assert api.poll_task(tasks["c"], "host.1", PEER) == TaskNews(RUNNING)
    assert world.local(spec.job_id).status is JobStatus.RUNNING


def _over(api: ParticipantApi, task_id: str) -> TaskNews | None:
    news = api.poll_task(task_id, "", PEER)
    return news if news.status is FAILED else None


def test_stopping_the_job_ends_everything_and_keeps_the_ending(api, world, job):
    task_id = started(api, world, job)
    why = Failure("EXIT_1", "exit code 1", PEER, "arbiter", "a", 1)
    for _ in range(2):
        api.stop_job(job.job_id, "", Ending(Outcome.FAILED, datetime.now(UTC), why, PEER), PEER)
    wait_for(lambda: _over(api, task_id), 20, 0.01)
    local = world.local(job.job_id)
    assert local.status is JobStatus.FINISHED
    assert local.ending is not None
    assert local.ending.outcome == Outcome.FAILED
    assert local.ending.failure == why
    assert local.ending.by == PEER
    assert catch_refusal(api.start_job, job.job_id, PEER) == ("JOB_ENDED", 409)
    assert catch_refusal(api.start_task, job.job_id, "task-late", "a", PEER) == ("JOB_ENDED", 409)
    api.create_job(job, PEER)  # a late repetition of the first call is still no conflict
    assert world.local(job.job_id).status is JobStatus.FINISHED
    api.start_task(job.job_id, task_id, "a", PEER)  # and of a start neither
    assert api.poll_task(task_id, "", PEER).status is FAILED
