"""What the shells do where the rules cannot help: bugs, races, several gateways, a database that is away."""

import copy
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from adapter.bfia.examples import A_JOB, A_PROVIDER
from engines.base import ImageMetadata, LaunchSpec, Missing
from engines.process.engine import ProcessEngine
from gateway.bootstrap import parts
from gateway.bootstrap.node import Gateway
from gateway.domain.dag import DagNode
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Confirm, Done, Event, OwnerLost, QueryScheduler
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
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
from gateway.runtime.loop import wait_for_database
from gateway.runtime.shell import STUCK, Shell
from gateway.store import schema
from gateway.store.database import connect, migrate, open_database
from gateway.store.store import Store
from tests.builders import T0, a_job, a_local_job, a_run, at
from tests.contracts.apis import serving
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ME, PEER, STRANGER, Node, ask, pair, running, settings
from tests.memory_engine import MemoryEngine, Script

IMAGE = "example:1.0.0"
PLATFORM = "/v1/platform/schedule/job"


def submit(node: Gateway, disk: float | None = None) -> httpx.Response:
    assert ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER).is_success
    body = copy.deepcopy(A_JOB)
    if disk is not None:
        for role in ("guest", "host"):
            settings = (
                body["config"].setdefault("job_params", {}).setdefault(role, {}).setdefault("0", {})
            )
            settings["resources"] = {
                "cpu": -1,
                "memory": -1,
                "disk": disk,
            }
    return ask(node, "operator", "POST", f"{PLATFORM}/create_all", json=body)


def submitted(node: Gateway) -> str:
    return str(submit(node).json()["data"]["job_id"])


def lasting(seconds: int = 60) -> dict[str, Any]:
    """Return an engine whose containers last."""
    images = {IMAGE: {"command": ["/bin/sleep", str(seconds)]}}
    return {"kind": "process", "process": {"images": images}}


def until(
    node: Gateway,
    job_id: str,
    status: JobStatus,
) -> Job:
    wait_for(
        lambda: node.store.jobs.get(job_id).status is status, 30, 0.02, f"{job_id} is {status}"
    )
    return node.store.jobs.get(job_id)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as node:
        yield node


# ------------------------------------------------------------ bugs


def test_a_bug_in_an_engine_fails_the_run_by_name(node: Gateway, monkeypatch: pytest.MonkeyPatch):
    def broken(self: ProcessEngine, spec: LaunchSpec) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ProcessEngine, "launch", broken)
    monkeypatch.setattr(ProcessEngine, "image_digest", lambda self, image: "x")
    monkeypatch.setattr(ProcessEngine, "image_facts", lambda self, image: ImageMetadata())
    ending = until(node, submitted(node), JobStatus.FINISHED).ending
    assert ending and ending.failure and ending.failure.reason == "INTERNAL"


def test_a_job_whose_step_raises_is_counted_and_shown_and_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with running(tmp_path, engine=lasting(), pace=parts.Pace(lost_call=1.0)) as node:
        broken: set[str] = set()
        step = scheduling_machine.step

        def breaking(
            job: Job,
            *args: Any,
            **more: Any,
        ) -> Any:
            if job.id in broken:
                raise ZeroDivisionError("of ours")
            return step(job, *args, **more)

        def counted() -> float:
            node.scheduler.loop.wake(first)
            name = 'bfia_advance_failures_total{side="scheduler"} '
            lines = ask(node, "operator", "GET", "/metrics").text.splitlines()
            return float(
                next((line.removeprefix(name) for line in lines if line.startswith(name)), 0)
            )

        monkeypatch.setattr(scheduling_machine, "step", breaking)
        first = submitted(node)
        until(node, first, JobStatus.RUNNING)
        broken.add(first)
        second = submitted(node)
        wait_for(lambda: counted() >= 3, 30, 0.02, "the failures are counted")
        node.coordinator.stop(second)
        until(node, second, JobStatus.FINISHED)
        (told,) = [e for e in node.store.timeline(first) if e.event == STUCK]
        assert told.side == "scheduler" and told.detail["reason"] == "INTERNAL"
        assert (
            "ZeroDivisionError" in told.detail["message"]
            and "of ours" not in told.detail["message"]
        )
        assert [e for e in node.store.timeline(second) if e.event == STUCK] == []
        broken.clear()
        node.coordinator.stop(first)
        until(node, first, JobStatus.FINISHED)  # once it can


def test_of_consecutive_internal_errors_only_the_first_is_noted():
    """An outage of the database is no error of the job, and interrupts no row."""
    told, counted = list[str](), list[str]()
    away, ours, fine = DatabaseAway("away"), ValueError(), None
    to_come: dict[str, list[Exception | None]] = {
        "a": [away, ours, away, ours, ours, fine, ours],
        "b": [ours],
    }

    class Notes:
        decide = None

        def due(self, now: datetime) -> list[str]:
            return []

        def note(
            self,
            job_id: str,
            side: str,
            notes: Any,
        ) -> None:
            told.append(job_id)

    class Steps(Shell[Any, None]):
        def advance(self, job_id: str) -> None:
            if error := to_come[job_id].pop(0):
                raise error

    notes: Any = Notes()
    loop = Steps(
        "test", "scheduler", NodeContext("n1", notes, lambda: at(0)), notes, counted.append
    ).loop
    loop.start()
    try:
        for job_id in "aaaabaaa":
            left = len(to_come[job_id]) - 1
            loop.wake(job_id)
            wait_for(lambda job_id=job_id, left=left: len(to_come[job_id]) == left, every=0.005)
    finally:
        loop.stop()
    assert told == ["a", "b", "a"] and len(counted) == 5


def test_a_deleted_job_cannot_be_continued_and_other_problems_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lacking(*args: Any) -> Any:
        raise NotFound("something else is not here")

    with running(tmp_path) as node:
        assert (
            node.scheduler.advance("job-gone") is None and node.executor.advance("job-gone") is None
        )
        node.store.jobs.add(a_job("a"), "flow")
        node.store.local_jobs.add(a_local_job(a_run()), "flow")
        for module, shell, job_id in (
            (scheduling_machine, node.scheduler, a_job("a").id),
            (machine, node.executor, a_local_job().id),
        ):
            monkeypatch.setattr(module, "step", lacking)
            with pytest.raises(NotFound, match="something else"):
                shell.advance(job_id)


def test_a_job_that_cannot_be_read_ends_and_the_node_goes_on(tmp_path: Path) -> None:
    def started(job_id: str) -> bool:
        runs = node.store.local_jobs.get(job_id).runs
        return bool(runs) and all(run.started_at for run in runs)

    def standing(job_id: str) -> tuple[str, str]:
        t = schema.job
        with node.store.read() as connection:
            row = connection.execute(
                sa.select(t.c.status, t.c.outcome).where(t.c.job_id == job_id)
            ).one()
        return str(row.status), str(row.outcome)

    with serving(
        Node(settings(tmp_path, engine=lasting(100)))
    ) as node:  # its containers outlive it
        broken, fine = submitted(node), submitted(node)
        for job_id in (broken, fine):
            wait_for(lambda job_id=job_id: started(job_id), 20, 0.02, "its containers are up")
        (name, *_) = (run.name for run in node.store.local_jobs.get(broken).runs)
    with sa.create_engine(f"sqlite:///{tmp_path / 'gateway.db'}").begin() as connection:
        for t in (schema.job, schema.local_job):
            connection.execute(
                t.update().where(t.c.job_id == broken).values(state='{"status": "NOWHERE"}')
            )
    with running(tmp_path, engine=lasting(100)) as node:
        with pytest.raises(Unreadable) as caught:
            node.store.local_jobs.get(broken)
        assert caught.value.reason == "ABNORMAL"
        wait_for(lambda: standing(broken) == ("FINISHED", "FAILED"), 30, 0.05, "it has ended")
        wait_for(lambda: node.engine.probe(name) == Missing(), 30, 0.05, "its container is removed")
        told = {e.event: e.detail for e in node.store.timeline(broken)}
        assert (
            told["job ABNORMAL"]["reason"] == "ABNORMAL"
            and broken in told["job ABNORMAL"]["message"]
        )
        assert str(node.store.jobs.get(fine).status) == "RUNNING"
        answer = ask(node, "operator", "GET", f"{PLATFORM}/status_all", params={"job_id": broken})
        assert answer.status_code == 200 and answer.json()["code"] in (404, 409)
        assert ask(node, "operator", "GET", f"{PLATFORM}/query_job_list").json()["code"] == 0
        assert ask(node, "operator", "GET", "/api/v1/gc").status_code == 200
        node.coordinator.stop_job(fine, "", "")
        wait_for(
            lambda: node.store.local_jobs.get(fine).closed, 30, 0.05, "the other one ends as ever"
        )


# ------------------------------------------------------------ several gateways


def test_what_others_gave_up_while_this_gateway_was_frozen_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It stops between its claim of the launch and the launch; when it goes on, the run is over."""
    launched: list[LaunchSpec] = []
    monkeypatch.setattr(ProcessEngine, "launch", lambda self, spec: launched.append(spec))
    with running(tmp_path) as node:

        def frozen(self: ProcessEngine, image: str) -> str:
            for job_id in node.store.local_jobs.unfinished():
                if any(
                    r.status is RunStatus.LAUNCHING for r in node.store.local_jobs.get(job_id).runs
                ):
                    node.executor.record(job_id, OwnerLost(node.owner, "other", datetime.now(UTC)))
            return "x"

        monkeypatch.setattr(ProcessEngine, "image_digest", frozen)
        job_id = submitted(node)
        until(node, job_id, JobStatus.FINISHED)
        wait_for(lambda: all(r.collect.completed for r in node.store.local_jobs.get(job_id).runs))
    assert launched == []


def test_a_task_starts_while_another_gateway_starts_one_of_the_same_job(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
):
    planned = TaskPlanner.runs

    def frozen(
        self: TaskPlanner,
        local: LocalJob,
        task: DagNode,
        task_id: str,
    ) -> tuple[Run, ...]:
        found = planned(self, local, task, task_id)
        begun = a_run("z", status=RunStatus.RUNNING, owner="other")
        node.store.local_jobs.update(
            local.id, lambda job: replace(job, home="other", runs=(begun,))
        )
        return found

    monkeypatch.setattr(TaskPlanner, "runs", frozen)
    job_id = submitted(node)
    wait_for(lambda: len(node.store.local_jobs.get(job_id).runs) > 1)
    local = node.store.local_jobs.get(job_id)
    assert {local.home, *(run.owner for run in local.runs)} == {"other"}


class Told:
    """Every node of the job; counts what it is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stops: Counter[str] = Counter()

    def participant(self, node: str) -> Any:
        told = self

        class Node:
            def stop_job(self, *_: Any) -> None:
                with told._lock:
                    told.stops[node] += 1

            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"{node} is asked to {name}")

        return Node()


@pytest.fixture
def gateways(database_url: str) -> Iterator[tuple[list[Scheduler], list[Store], Told]]:
    told = Told()
    migrate(connect(database_url))
    stores = [Store(connect(database_url)) for _ in range(2)]
    lanes = [Lanes() for _ in stores]
    peers = Peers("none", {"bfia": told}, lambda _, protocol: protocol, tuple)  # type: ignore[dict-item,arg-type]
    schedulers = [
        Scheduler(NodeContext("n0", store, lambda: datetime.now(UTC)), peers, lane)
        for store, lane in zip(stores, lanes, strict=True)
    ]
    yield schedulers, stores, told
    for scheduler, lane, store in zip(schedulers, lanes, stores, strict=True):
        scheduler.loop.stop()
        lane.close()
        store.close()


@pytest.mark.parametrize("words", [("SUCCESS",), ("SUCCESS", "FAILED")], ids=["alike", "contrary"])
def test_a_job_is_ended_by_one_of_many_threads(
    gateways: tuple[list[Scheduler], list[Store], Told], words: tuple[str, ...]
):
    """Of two gateways on one database; what follows is done once."""
    schedulers, stores, told = gateways
    job = a_job("a", JobStatus.RUNNING, a={"n1": TaskStatus.SUCCESS, "n2": TaskStatus.RUNNING})
    assert stores[0].jobs.add(job, "flow")
    gate = threading.Barrier(32)

    def tell(i: int) -> None:
        gate.wait(30)
        status = TaskStatus(words[i % len(words)])
        schedulers[i % 2].record(
            job.id, TaskReported("task_a", "n2", "host", status, datetime.now(UTC))
        )

    with ThreadPoolExecutor(gate.parties) as pool:
        list(pool.map(tell, range(gate.parties)))
    for scheduler in schedulers:
        scheduler.loop.start()  # records an answer that was left for one which had come already
    wait_for(
        lambda: stores[1].jobs.get(job.id).status is JobStatus.FINISHED,
        60,
        0.02,
        "the job has ended",
    )
    ended = stores[1].jobs.get(job.id)
    events = Counter(entry.event for entry in stores[0].timeline(job.id))
    assert events["job FINISHED"] == events[f"ending as {ended.outcome}"] == 1
    assert sum(n for event, n in events.items() if event.startswith("ending as")) == 1
    assert events["status reported"] == 1, "of all that was told, one thing counted"
    assert events["task SUCCESS"] + events["task FAILED"] == 1
    assert told.stops == {"n1": 1, "n2": 1}
    expected = (
        Outcome.SUCCEEDED if ended.tasks["a"].status is TaskStatus.SUCCESS else Outcome.FAILED
    )
    assert ended.outcome is expected and (ended.progress == 100) is (expected is Outcome.SUCCEEDED)


def test_a_frozen_gateway_sends_no_creation_after_the_jobs_end(
    gateways: tuple[list[Scheduler], list[Store], Told],
):
    (frozen, other), stores, _ = gateways
    job = scheduling_machine.step(a_job("a", JobStatus.PENDING), T0)[0]
    assert job.nodes["n2"].create.state is CallState.SENT and stores[0].jobs.add(job, "flow")
    other.record(job.id, StopRequested("n1", T0))
    frozen._perform(job, CreateAt("n2"), T0)  # whoever is asked to create raises, and so refuses
    assert stores[0].jobs.get(job.id).nodes["n2"].create.state is not CallState.REFUSED


# ------------------------------------------------------------ other nodes


def test_a_job_that_the_scheduling_node_refuses_is_not_listed(tmp_path: Path):
    routes = tmp_path / "a" / "routes.yml"
    with running(tmp_path / "b", PEER) as other:
        routes.parent.mkdir()
        port = other.addresses()["peer"].rpartition(":")[2]
        routes.write_text(
            f"{PEER}: {{host: 127.0.0.1, port: {port}}}\n{STRANGER}: {{host: 127.0.0.1, port: 1}}\n"
        )
        with running(tmp_path / "a", node={"id": ME, "coordinator": PEER}) as node:
            body = copy.deepcopy(A_JOB)
            body["config"]["role"]["host"] = [STRANGER]
            assert (
                ask(node, "operator", "POST", f"{PLATFORM}/create_all", json=body).json()["code"]
                != 0
            )
            listed = ask(node, "operator", "GET", f"{PLATFORM}/query_job_list").json()
            assert listed["data"]["job_list"] == {}


def test_fifty_identical_posts_make_one_job(tmp_path: Path):
    with pair(tmp_path, engine=lasting()) as (node, partner):
        for each in (node, partner):
            submit(each)
        body = copy.deepcopy(A_JOB) | {"job_id": "job-fifty"}
        body["config"] |= {
            "initiator": {"role": "guest", "node_id": PEER},
            "role": {"guest": [PEER], "host": [ME]},
        }
        gate = threading.Barrier(10)

        def post(_: int) -> int:
            gate.wait(60)
            path = "/v1/interconn/schedule/job/create_all"
            headers = {"x-source-node-id": PEER}
            return int(ask(node, "peer", "POST", path, json=body, headers=headers).json()["code"])

        with ThreadPoolExecutor(10) as pool:
            assert set(pool.map(post, range(50))) == {0}
        created = [e for e in node.store.timeline("job-fifty") if e.event == "create accepted"]
        assert len(created) == 2  # one at each party


def test_containers_that_could_not_reach_the_gateway_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usual = parts.run_timing
    monkeypatch.setattr(
        parts, "run_timing", lambda settings: replace(usual(settings), engine_timeout=2.0)
    )
    engine = {"kind": "docker", "docker": {"base_url": "tcp://127.0.0.1:1"}}
    with running(tmp_path, engine=engine) as node:
        with pytest.raises(EngineFailed, match="does not answer"):
            node.services.sockets.door.address()
        ending = until(node, submitted(node), JobStatus.FINISHED).ending
        assert ending and ending.failure and ending.failure.reason == "ENGINE_DOWN"


class Answers:
    """A scheduling node that refuses everything for one reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def scheduler(self, *_: str) -> Any:
        return self

    def confirm_job(self, *_: Any) -> None:
        raise Refused("no", reason=self.reason)

    job_status = confirm_job


@pytest.mark.parametrize(
    ("reason", "final"), [("NO_ENVELOPE", False), ("INTERNAL", False), ("JOB_BUSY", True)]
)
def test_an_answer_that_leaves_it_open_is_asked_for_again(reason: str, final: bool):
    """A page of something that stands in the node's place neither hears a decision nor knows a job."""
    calls = SchedulerCalls(
        cast(Peers, Answers(reason)), lambda: at(0), lambda local: None, lambda node: None
    )
    said: list[Event] = [
        *calls.confirm(a_local_job(), Confirm()),
        *calls.ask(a_local_job(), QueryScheduler()),
    ]
    assert [isinstance(event, Done) and event.final for event in said] == [final, final]


# ------------------------------------------------------------ a database that is away


def test_a_database_that_is_not_there_is_named():
    store = Store(connect(f"mysql+pymysql://a:b@127.0.0.1:{free_ports(1)[0]}/c"))
    for work in (lambda: store.jobs.find("job"), store.installation):
        with pytest.raises(DatabaseAway, match="does not answer"):
            work()
    store.close()


def test_a_node_waits_for_its_database_and_says_so():
    pauses: list[float] = []

    def connect() -> str:
        if len(pauses) < 70:
            open_database(f"mysql+pymysql://a:b@127.0.0.1:{nowhere}/c")
        return "there"

    (nowhere,) = free_ports(1)
    with capture_logs() as log:
        assert parts.when_there(connect, pauses.append) == "there"
    warnings = [line for line in log if line["event"].startswith("nothing is served")]
    assert len(pauses) == 70
    assert len(warnings) == 2, f"the second after a minute: {log}"
    assert "refused" in warnings[0]["cause"]


@pytest.mark.mariadb
def test_a_connection_that_breaks_is_named_and_the_next_one_is_new(mariadb_url: str):
    store = Store(open_database(mariadb_url))
    with pytest.raises(DatabaseAway), store.write() as connection:
        number = connection.exec_driver_sql("select connection_id()").scalar()
        with store.read() as other:
            other.exec_driver_sql(f"kill {number}")
        connection.exec_driver_sql("select 1")
    assert store.installation()
    store.close()


def test_what_must_not_be_lost_is_done_once_the_database_is_back():
    tries: list[int] = []

    def work(needed: float = 3) -> str:
        tries.append(1)
        if len(tries) < needed:
            raise DatabaseAway("away")
        return "done"

    assert wait_for_database(work, pause=0.01) == "done" and len(tries) == 3
    with pytest.raises(DatabaseAway):
        wait_for_database(lambda: work(float("inf")), seconds=0.05, pause=0.01)


def test_requests_get_503_while_the_database_is_away(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
):
    def away(job_id: str) -> None:
        raise DatabaseAway("away")

    monkeypatch.setattr(node.store.jobs, "find", away)
    answer = ask(node, "operator", "GET", f"{PLATFORM}/status_all", params={"job_id": "job-1"})
    assert answer.status_code == 503
    assert answer.json()["code"] == 503 and answer.json()["data"]["reason"] == "DATABASE_AWAY"


def test_that_a_container_was_started_is_stored_once_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It would be started again only after the deadline of a launch, which is two minutes."""

    with running(tmp_path, make_engine=MemoryEngine.making({IMAGE: Script(None)})) as node:
        engine, write, lost = cast(MemoryEngine, node.engine), node.store.write, list[int]()

        @contextmanager
        def away_for_a_moment() -> Iterator[sa.Connection]:
            if engine.launches and len(lost) < 3:
                lost.append(1)
                raise DatabaseAway("away")
            with write() as connection:
                yield connection

        monkeypatch.setattr(node.store, "write", away_for_a_moment)
        job_id = submitted(node)
        wait_for(
            lambda: "RUNNING" in {str(r.status) for r in node.store.local_jobs.get(job_id).runs},
            60,
            0.05,
        )
        assert lost
        engine.finish(engine.launches[0].name)
