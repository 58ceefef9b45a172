"""The shells around the rules, where the rules cannot help: bugs, races, several gateways."""

import copy
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from adapter.bfia.examples import A_JOB
from engines.base import ImageMetadata, Missing
from engines.process.engine import ProcessEngine
from gateway.bootstrap import parts
from gateway.bootstrap.parts import Pace
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Confirm, Done, OwnerLost, QueryScheduler
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.messages import CreateAt, StopRequested, TaskReported
from gateway.domain.spec import CallState
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import DatabaseAway, EngineFailed, NotFound, Refused, Unreadable
from gateway.jobs.executor import SchedulerCalls
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.scheduler import Scheduler
from gateway.runtime.context import NodeContext, Peers
from gateway.runtime.lanes import Lanes
from gateway.runtime.shell import STUCK, Shell
from gateway.store import schema
from gateway.store.database import connect, migrate
from gateway.store.store import Store
from tests.builders import T0, a_job, a_local_job, a_run, at, raising, returning
from tests.core.example_jobs import (
    LASTING_COMMANDS,
    PLATFORM,
    submit_job,
    wait_for_end,
    wait_for_status,
)
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, Node, running, serving, settings
from tests.world import UNREACHABLE, NodeSetup

NODE = NodeSetup()


def entries(node, job_id, event):
    """Return the entries of a job's timeline about an event."""
    return [entry for entry in node.store.timeline(job_id) if entry.event == event]


def utc_now():
    return datetime.now(UTC)


# ------------------------------------------------------------ bugs


def test_a_bug_in_an_engine_fails_the_run_by_name(node, monkeypatch):
    monkeypatch.setattr(
        ProcessEngine,
        "launch",
        raising(RuntimeError("a bug")),
    )
    monkeypatch.setattr(ProcessEngine, "image_digest", returning("x"))
    monkeypatch.setattr(ProcessEngine, "image_metadata", returning(ImageMetadata()))

    ending = wait_for_end(node, submit_job(node)).ending

    assert ending is not None
    assert ending.failure is not None
    assert ending.failure.reason == "INTERNAL"


def test_a_job_whose_step_raises_is_counted_and_shown_and_delays_no_other(world, monkeypatch):
    node = world.node(
        commands=LASTING_COMMANDS,
        pace=Pace(lost_call=1.0),
    )
    broken_jobs = set()
    usual_step = scheduling_machine.step

    def step(job, *args, **kwargs):
        if job.id in broken_jobs:
            raise ZeroDivisionError("of ours")
        return usual_step(job, *args, **kwargs)

    monkeypatch.setattr(scheduling_machine, "step", step)
    broken = submit_job(node)
    wait_for_status(node, broken, JobStatus.RUNNING)
    broken_jobs.add(broken)
    healthy = submit_job(node)

    def are_counted():
        node.scheduler.loop.wake(broken)
        return failure_count(node) >= 3

    wait_for(are_counted, 30, 0.02, "the failures are counted")
    node.job_requests.stop(healthy)
    wait_for_end(node, healthy)
    [entry] = entries(node, broken, STUCK)
    assert entry.side == "scheduler"
    assert entry.detail["reason"] == "INTERNAL"
    assert "ZeroDivisionError" in entry.detail["message"]
    assert "of ours" not in entry.detail["message"]
    assert entries(node, healthy, STUCK) == []

    broken_jobs.clear()
    node.job_requests.stop(broken)
    wait_for_end(node, broken)


def failure_count(node):
    """Return the failures of steps of the scheduler according to the metrics."""
    name = 'bfia_advance_failures_total{side="scheduler"} '
    for line in node.get("/metrics").text.splitlines():
        if line.startswith(name):
            return float(line.removeprefix(name))
    return 0.0


class NotedJobs:
    """Stands for a store without jobs; notes the jobs with a new entry in their timeline."""

    decide = None

    def __init__(self):
        self.job_ids = []

    def due(self, now):
        return []

    def note(self, job_id, side, notes):
        self.job_ids.append(job_id)


class ScriptedShell(Shell):
    """Advances a job by its next result: None for a success, or an error."""

    def __init__(self, results, *args):
        super().__init__("test", "scheduler", *args)
        self.results = results

    def advance(self, job_id):
        result = self.results[job_id].pop(0)
        if result is not None:
            raise result

    def _not_used(self, *_):
        raise AssertionError("`advance` replaces these steps")

    _apply = _begin = _decide = _mark_reached = _not_used


def test_of_consecutive_internal_errors_only_the_first_is_noted():
    """An outage of the database is no error of the job and does not end a series of errors."""
    outage = DatabaseAway("away")
    bug = ValueError()
    results = {
        "a": [outage, bug, outage, bug, bug, None, bug],
        "b": [bug],
    }
    store = NotedJobs()
    counted = []
    context = NodeContext("n1", store, lambda: at(0))
    shell = ScriptedShell(results, context, store, counted.append)

    shell.loop.start()
    try:
        for job_id in "aaaabaaa":
            remaining = len(results[job_id]) - 1
            shell.loop.wake(job_id)

            def is_advanced(job_id=job_id, remaining=remaining):
                return len(results[job_id]) == remaining

            wait_for(is_advanced, every=0.005)
    finally:
        shell.loop.stop()

    assert store.job_ids == ["a", "b", "a"]
    assert len(counted) == 5


def test_a_deleted_job_cannot_be_continued(node):
    assert node.scheduler.advance("job-gone") is None
    assert node.executor.advance("job-gone") is None


def test_other_missing_things_than_the_job_are_an_error(world, monkeypatch):
    node = world.node()
    node.store.jobs.add(a_job("a"), "flow")
    node.store.local_jobs.add(
        a_local_job(a_run()),
        "flow",
    )
    missing = raising(NotFound("something else is not here"))
    for rules in (scheduling_machine, machine):
        monkeypatch.setattr(rules, "step", missing)

    with pytest.raises(NotFound, match="something else"):
        node.scheduler.advance(a_job("a").id)
    with pytest.raises(NotFound, match="something else"):
        node.executor.advance(a_local_job().id)


def test_a_job_that_cannot_be_read_ends_and_the_node_goes_on(tmp_path):
    engine = NodeSetup(commands=LASTING_COMMANDS).all_settings()
    with serving(Node(settings(tmp_path, **engine))) as node:  # its containers outlive it
        broken = submit_job(node)
        intact = submit_job(node)
        for job_id in (broken, intact):
            wait_until_started(node, job_id)
        container = node.store.local_jobs.get(broken).runs[0].name
    make_unreadable(tmp_path / "gateway.db", broken)

    with running(tmp_path, **engine) as node:
        with pytest.raises(Unreadable) as error:
            node.store.local_jobs.get(broken)
        assert error.value.reason == "ABNORMAL"

        def is_over():
            return stored_outcome(node, broken) == ("FINISHED", "FAILED")

        def is_removed():
            return node.engine.probe(container) == Missing()

        wait_for(is_over, 30, 0.05, "it has ended")
        wait_for(is_removed, 30, 0.05, "its container is removed")
        entry = entries(node, broken, "job ABNORMAL")[-1]
        assert entry.detail["reason"] == "ABNORMAL"
        assert broken in entry.detail["message"]
        assert node.store.jobs.get(intact).status is JobStatus.RUNNING

        response = node.get(
            f"{PLATFORM}/status_all",
            params={"job_id": broken},
        )
        assert response.status_code == 200
        assert response.json()["code"] in (404, 409)
        assert node.get(f"{PLATFORM}/query_job_list").json()["code"] == 0
        assert node.get("/api/v1/gc").status_code == 200

        node.coordinator.stop_job(intact, "", "")
        wait_for(lambda: node.store.local_jobs.get(intact).closed, 30, 0.05)


def wait_until_started(node, job_id):
    def is_started():
        runs = node.store.local_jobs.get(job_id).runs
        return bool(runs) and all(run.started_at for run in runs)

    wait_for(is_started, 20, 0.02, f"the containers of {job_id} are up")


def make_unreadable(database_file, job_id):
    """Spoil both records of a job."""
    with sa.create_engine(f"sqlite:///{database_file}").begin() as connection:
        for table in (schema.job, schema.local_job):
            update = table.update().where(table.c.job_id == job_id)
            connection.execute(update.values(state='{"status": "NOWHERE"}'))


def stored_outcome(node, job_id):
    """Return (status, outcome) in the columns of the scheduler's record."""
    c = schema.job.c
    row = node.store.first(sa.select(c.status, c.outcome).where(c.job_id == job_id))
    return row.status, row.outcome


# ------------------------------------------------------------ several gateways


def test_runs_given_up_while_this_gateway_was_frozen_do_not_start(world, monkeypatch):
    """It freezes after its claim of the launch; when it goes on, the run is over."""
    node = world.node()
    launches = []

    def launch(engine, spec):
        launches.append(spec)

    def freeze(engine, image):
        for job_id in node.store.local_jobs.unfinished():
            runs = node.store.local_jobs.get(job_id).runs
            if any(run.status is RunStatus.LAUNCHING for run in runs):
                node.executor.record(
                    job_id,
                    OwnerLost(node.owner, "other", utc_now()),
                )
        return "x"

    monkeypatch.setattr(ProcessEngine, "launch", launch)
    monkeypatch.setattr(ProcessEngine, "image_digest", freeze)
    job_id = submit_job(node)
    wait_for_end(node, job_id)

    def are_collected():
        runs = node.store.local_jobs.get(job_id).runs
        return all(run.collect.completed for run in runs)

    wait_for(are_collected)
    assert launches == []


def test_a_task_starts_while_another_gateway_starts_one_of_the_same_job(node, monkeypatch):
    plan = TaskPlanner.runs

    def plan_and_freeze(planner, local, task, task_id):
        def start_elsewhere(job):
            started = a_run(
                "z",
                status=RunStatus.RUNNING,
                owner="other",
            )
            return replace(
                job,
                home="other",
                runs=(started,),
            )

        runs = plan(planner, local, task, task_id)
        node.store.local_jobs.update(local.id, start_elsewhere)
        return runs

    monkeypatch.setattr(TaskPlanner, "runs", plan_and_freeze)
    job_id = submit_job(node)
    wait_for(lambda: len(node.store.local_jobs.get(job_id).runs) > 1)

    local = node.store.local_jobs.get(job_id)
    assert local.home == "other"
    assert {run.owner for run in local.runs} == {"other"}


class StopCounter:
    """The participants of a job, as a protocol offers them; counts the stops at each node."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stops = Counter()

    def participant(self, node):
        return StoppedParticipant(self, node)


class StoppedParticipant:
    """Accepts stops only; every other call is an error."""

    def __init__(self, counter, node):
        self._counter = counter
        self._node = node

    def stop_job(self, *request):
        with self._counter.lock:
            self._counter.stops[self._node] += 1

    def __getattr__(self, name):
        raise AssertionError(f"{self._node} is asked to {name}")


class TwoGateways:
    """Two schedulers of one node on one database; their calls only stop jobs."""

    def __init__(self, database_url):
        engine = connect(database_url)
        migrate(engine)
        engine.dispose()
        self.participants = StopCounter()
        self.stores = []
        self.schedulers = []
        self._lanes = []
        peers = Peers(
            "none",
            {"bfia": self.participants},
            lambda node, protocol: protocol,
            tuple,
        )
        for _ in range(2):
            store = Store(connect(database_url))
            lanes = Lanes()
            scheduler = Scheduler(
                NodeContext("n0", store, utc_now),
                peers,
                lanes,
            )
            self.stores.append(store)
            self.schedulers.append(scheduler)
            self._lanes.append(lanes)

    def close(self):
        for scheduler in self.schedulers:
            scheduler.loop.stop()
        for lanes in self._lanes:
            lanes.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def gateways(database_url):
    gateways = TwoGateways(database_url)
    yield gateways
    gateways.close()


@pytest.mark.parametrize(
    "statuses",
    [
        (TaskStatus.SUCCESS,),
        (TaskStatus.SUCCESS, TaskStatus.FAILED),
    ],
    ids=["equal", "contrary"],
)
def test_a_job_is_ended_by_one_of_many_threads(gateways, statuses):
    """The threads belong to two gateways on one database; the consequences happen once."""
    threads = 32
    gate = threading.Barrier(threads)
    store = gateways.stores[0]
    job = a_job(
        "a",
        JobStatus.RUNNING,
        a={
            "n1": TaskStatus.SUCCESS,
            "n2": TaskStatus.RUNNING,
        },
    )
    assert store.jobs.add(job, "flow")

    def report(number):
        status = statuses[number % len(statuses)]
        reported = TaskReported(
            "task_a",
            "n2",
            "host",
            status,
            utc_now(),
        )
        gate.wait(30)
        gateways.schedulers[number % 2].record(
            job.id,
            reported,
        )

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(report, range(threads)))
    for scheduler in gateways.schedulers:
        scheduler.loop.start()  # writes the changes that were deferred

    def is_finished():
        return gateways.stores[1].jobs.get(job.id).status is JobStatus.FINISHED

    wait_for(is_finished, 60, 0.02, "the job has ended")
    ended = gateways.stores[1].jobs.get(job.id)
    events = Counter(entry.event for entry in store.timeline(job.id))
    endings = [event for event in events.elements() if event.startswith("ending as")]
    assert events["job FINISHED"] == 1
    assert endings == [f"ending as {ended.outcome}"]
    assert events["status reported"] == 1, "one of all the reports counts"
    assert events["task SUCCESS"] + events["task FAILED"] == 1
    assert gateways.participants.stops == {
        "n1": 1,
        "n2": 1,
    }
    if ended.tasks["a"].status is TaskStatus.SUCCESS:
        assert ended.outcome is Outcome.SUCCEEDED
        assert ended.progress == 100
    else:
        assert ended.outcome is Outcome.FAILED
        assert ended.progress != 100


def test_a_frozen_gateway_sends_no_creation_after_the_jobs_end(gateways):
    frozen, active = gateways.schedulers
    store = gateways.stores[0]
    job, _ = scheduling_machine.step(
        a_job("a", JobStatus.PENDING),
        T0,
    )
    assert job.nodes["n2"].create.state is CallState.SENT
    assert store.jobs.add(job, "flow")

    active.record(job.id, StopRequested("n1", T0))
    frozen._perform(job, CreateAt("n2"), T0)

    # A creation that was sent would raise, and so be refused.
    assert store.jobs.get(job.id).nodes["n2"].create.state is not CallState.REFUSED


# ------------------------------------------------------------ other nodes


def test_a_job_that_the_scheduling_node_refuses_is_not_listed(world):
    coordinator = world.node(NodeSetup(PEER))
    node = world.node(
        routes={STRANGER: UNREACHABLE},
        settings={"node": {"id": ME, "coordinator": PEER}},
    )
    world.connect(node, coordinator)
    body = copy.deepcopy(A_JOB)
    body["config"]["role"]["host"] = [STRANGER]

    refusal = node.post(f"{PLATFORM}/create_all", body).json()

    assert refusal["code"] != 0
    jobs = node.get(f"{PLATFORM}/query_job_list").json()["data"]["job_list"]
    assert jobs == {}


def test_containers_that_could_not_reach_the_gateway_are_not_started(world, monkeypatch):
    usual_timing = parts.run_timing

    def impatient_timing(settings):
        return replace(
            usual_timing(settings),
            engine_timeout=2.0,
        )

    monkeypatch.setattr(parts, "run_timing", impatient_timing)
    engine = {
        "kind": "docker",
        "docker": {"base_url": "tcp://127.0.0.1:1"},
    }
    node = world.node(settings={"engine": engine})

    with pytest.raises(EngineFailed, match="does not answer"):
        node.services.sockets.for_containers.base_url()
    ending = wait_for_end(node, submit_job(node)).ending
    assert ending is not None
    assert ending.failure is not None
    assert ending.failure.reason == "ENGINE_DOWN"


class RefusingScheduler:
    """A scheduling node that refuses every request; stands for the protocol as well."""

    def __init__(self, reason):
        self.reason = reason

    def scheduler(self, *node):
        return self

    def confirm_job(self, *request):
        raise Refused(
            "no",
            reason=self.reason,
        )

    def job_status(self, *request):
        raise Refused(
            "no",
            reason=self.reason,
        )


@pytest.mark.parametrize(
    ("reason", "is_final"),
    [
        ("NO_ENVELOPE", False),
        ("INTERNAL", False),
        ("NODE_UNKNOWN", False),
        ("JOB_BUSY", True),
    ],
)
def test_a_response_that_decides_nothing_is_asked_for_again(reason, is_final):
    """A page of something else at the node's address neither decides nor knows a job.

    Nor does the absence of a route, which the admin may add.
    """
    refusing = RefusingScheduler(reason)
    calls = SchedulerCalls(refusing, lambda: at(0), returning(None), returning(None))

    [confirmed] = calls.confirm(
        a_local_job(),
        Confirm(),
    )
    assert (isinstance(confirmed, Done) and confirmed.final) is is_final
    [queried] = calls.ask(
        a_local_job(),
        QueryScheduler(),
    )
    assert (isinstance(queried, Done) and queried.final) is is_final
