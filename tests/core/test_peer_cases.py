"""What the best known existing peer does wrong under faults; here it goes right.

What it does wrong with bad input alone is shown where each endpoint is tested (`tests/adapter/bfia`).
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia import peer as calls
from gateway.domain.execution import messages
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import Outcome, TaskStatus
from gateway.errors import GatewayError, NotFound, Refused
from gateway.ports import Callback, JobView
from tests.adapter.bfia.scripted import says, scripted
from tests.adapter.bfia.site import SPEC, Site, a_job_with, by_path, serving_site
from tests.builders import a_spec
from tests.contracts.apis import at_once
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask
from tests.memory_engine import MemoryEngine

SCHEDULE = "/v1/platform/schedule"
RUNNING, SUCCESS, FAILED = TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED

BY_CALLBACK = {"common": {"sync_type": "callback"}}

_numbers = count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    shared.peer.asked.clear()
    shared.peer.will(says())
    yield shared
    shared.peer.will(says())


@pytest.fixture
def patient_routes(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the partner a minute for each answer, so that a machine that stands still is no late answer."""
    monkeypatch.setattr(calls, "LONGEST_CALL", 60.0)
    timing = site.node.scheduler._timing
    monkeypatch.setattr(
        site.node.scheduler, "_timing", replace(timing, call_deadline=timing.call_deadline + 50)
    )
    file = Path(site.node.settings.route_table.file)
    before = file.read_text()
    patient = {node: entry | {"deadline": 60} for node, entry in yaml.safe_load(before).items()}
    file.write_text(yaml.safe_dump(patient))
    site.node.routes.reload()
    yield
    file.write_text(before)
    site.node.routes.reload()


def over(site: Site, job_id: str) -> Job:
    store = site.node.store
    wait_for(lambda: store.jobs.get(job_id).ended_at, 60, 0.02, f"{job_id} has ended")
    return store.jobs.get(job_id)


def no_container(site: Site) -> None:
    def none() -> bool:
        return not [f for f in site.node.engine.list() if not hasattr(f.probe, "code")]

    wait_for(none, 30, 0.02, "no container is left")


def succeed(
    site: Site,
    run: Run,
    job_id: str,
) -> None:
    """Have a run report success and exit; see the job succeed."""
    report_success(site, run)
    assert over(site, job_id).outcome is Outcome.SUCCEEDED


def report_success(site: Site, run: Run) -> None:
    site.node.participant.callback(Callback(SUCCESS, run_id=run.run_id))
    assert isinstance(site.node.engine, MemoryEngine)
    site.node.engine.finish(run.name, 0)


def test_a_stop_that_races_the_start_leaves_nothing(site: Site):
    """Twenty tries, the stop ever a little later; and twenty at once."""
    ids = []
    for i in range(20):
        spec = a_spec(
            "a; b -> c", {"guest": (ME,), "host": (ME,)}, job_id=f"job-race-{next(_numbers)}"
        )
        site.node.coordinator.submit_job(spec, ME)
        wait_for(lambda s=spec, n=i: len(site.node.store.timeline(s.job_id)) >= n, 20, 0.001)
        site.node.coordinator.stop_job(spec.job_id, "", ME)
        ids.append(spec.job_id)

    def race() -> None:
        spec = a_spec("a; b", {"guest": (ME,), "host": (ME,)}, job_id=f"job-race-{next(_numbers)}")
        ids.append(spec.job_id)
        site.node.coordinator.submit_job(spec, ME)
        site.node.coordinator.stop_job(spec.job_id, "", ME)

    assert at_once(20, race) == []
    for job_id in ids:
        job = over(site, job_id)
        assert job.outcome is Outcome.STOPPED
        assert {t.status for t in job.tasks.values()} <= {
            TaskStatus.READY,
            TaskStatus.PENDING,
            FAILED,
        }
        wait_for(
            lambda i=job_id: site.node.store.local_jobs.get(i).closed, 30, 0.02, "nothing is held"
        )
    no_container(site)


def test_a_job_by_callback_finishes_without_a_question(site: Site):
    """The partner's state is told by its reports; the slow questions that go on beside bring nothing new."""
    site.peer.will(by_path(task_poll=says({"code": 1, "msg": "no questions, please"})))
    spec = replace(a_job_with(SPEC), job_params=BY_CALLBACK)
    site.node.coordinator.submit_job(spec, ME)
    run = site.run(spec.job_id, "guest.0")
    (task,) = site.node.store.jobs.get(spec.job_id).tasks.values()
    for status in (
        "RUNNING",
        "SUCCESS",
        "RUNNING",
        "SUCCESS",
    ):  # late and repeated ones change nothing
        said = {
            "task_id": task.task_id,
            "status": status,
            "role": "host",
        }
        wait_for(lambda said=said: site.asks(SPEC, "/task/callback", said)["code"] == 0, 20)
    succeed(site, run, spec.job_id)
    next_one = a_job_with(SPEC)
    site.node.coordinator.submit_job(next_one, ME)
    assert site.node.store.jobs.get(next_one.job_id).nodes[SPEC].pushes, (
        "it is polled rarely from the beginning"
    )
    site.node.coordinator.stop_job(next_one.job_id, "", ME)
    over(site, next_one.job_id)


def test_a_container_that_never_reports_is_asked_at_its_control_port(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    executor = site.node.executor
    monkeypatch.setattr(executor, "_timing", replace(executor._timing, probe_every=0.05))
    spec = replace(a_job_with(SPEC), job_params=BY_CALLBACK)
    with scripted() as (container, url):
        container.will(*(says({"code": 0, "status": word}) for word in ("RUNNING", "SUCCESS")))
        port = int(url.rpartition(":")[2])
        site.node.coordinator.submit_job(spec, ME)
        run = site.run(spec.job_id, "guest.0")
        assert isinstance(site.node.engine, MemoryEngine)
        site.node.engine.addresses[run.name] = "127.0.0.1"
        site.node.executor.change(
            spec.job_id,
            lambda local: replace(
                local,
                runs=tuple(
                    replace(r, declared={"control_port": port}, probe_at=None) for r in local.runs
                ),
            ),
        )
        reported = lambda: site.run(spec.job_id, "guest.0").reported  # noqa: E731
        wait_for(lambda: reported() is SUCCESS, 20, 0.02, "the container has said so")
        assert len(container.asked) >= 2
    site.node.engine.finish(run.name, 0)
    wait_for(lambda: site.run(spec.job_id, "guest.0").over, 20, 0.02, "the run has ended")
    assert site.run(spec.job_id, "guest.0").failure is None
    site.node.coordinator.stop_job(spec.job_id, "", ME)
    over(site, spec.job_id)


def test_a_run_whose_launch_waits_behind_those_of_others_says_so(site: Site):
    spec, go = a_job_with(SPEC), threading.Event()
    for number in range(8):  # as many as the lane has threads
        site.node.lanes.submit("engine", partial(go.wait, 60), f"job-before-{number}")
    try:
        site.node.coordinator.submit_job(spec, ME)

        def reasons() -> list[str]:
            runs = ask(site.node, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json()["runs"]
            return [run["waiting"]["reason"] for run in runs]

        wait_for(lambda: reasons() == ["TURN"], 20, 0.02, "the run waits for its turn")
    finally:
        go.set()
    site.succeed(spec.job_id)
    site.node.coordinator.stop_job(spec.job_id, "", ME)
    over(site, spec.job_id)


def test_a_rarely_probed_run_is_inspected_without_a_write(
    site: Site,
):
    executor, jobs, engine = site.node.executor, site.node.store.local_jobs, site.node.engine
    assert isinstance(engine, MemoryEngine)
    spec = a_job_with(SPEC)
    site.node.coordinator.submit_job(spec, ME)
    run = site.run(spec.job_id, "guest.0")
    far = replace(run, probe_at=run.created_at.replace(year=2999))
    before = executor.change(
        spec.job_id,
        lambda local: replace(
            local, runs=tuple(far if r.name == run.name else r for r in local.runs)
        ),
    )
    executor._probe_all()

    def known(local: LocalJob) -> list[Run]:
        """Return the run without what is reported of it, which may be answered just now."""
        return [replace(r, reporting=run.reporting) for r in local.runs if r.name == run.name]

    assert known(jobs.get(spec.job_id)) == known(before)
    del engine.world.runs[run.name]
    executor._probe_all()
    failure = site.run(spec.job_id, "guest.0").failure
    assert failure is not None and failure.reason == "GONE"
    over(site, spec.job_id)


def test_a_silent_engine_does_not_stop_probes_of_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    executor, engine = site.node.executor, site.node.engine
    assert isinstance(engine, MemoryEngine)
    names = {}
    for place in ("away", ""):
        spec = a_job_with(SPEC)
        site.node.coordinator.submit_job(spec, ME)
        run = names[place, spec.job_id] = site.run(spec.job_id, "guest.0")
        far = replace(run, probe_at=run.created_at.replace(year=2999), engine=place)
        executor.change(spec.job_id, lambda local, far=far: replace(local, runs=(far,)))
    probe, silent = (
        executor.probes.probe,
        lambda run: messages.EngineSilent(run.run_id, site.node.clock()),
    )
    monkeypatch.setattr(
        executor.probes, "probe", lambda run: silent(run) if run.engine == "away" else probe(run)
    )
    del engine.world.runs[run.name]
    executor._probe_all()
    ends = {place: site.run(job_id, "guest.0").failure for place, job_id in names}
    assert ends["away"] is None and ends[""] is not None and ends[""].reason == "GONE"
    for _, job_id in names:
        site.node.coordinator.stop_job(job_id, "", ME)
        over(site, job_id)


def test_lost_reports_are_made_up_for_by_questions(site: Site, monkeypatch: pytest.MonkeyPatch):
    """The partner's reports never come; by callback, too, the node asks from time to time."""
    monkeypatch.setattr(
        site.node.scheduler, "_timing", replace(site.node.scheduler._timing, poll_pushing=0.1)
    )
    states = iter(["RUNNING", "SUCCESS"])
    site.peer.will(by_path(task_poll=lambda h: says(data={"status": next(states, "SUCCESS")})(h)))
    spec = replace(a_job_with(SPEC), job_params=BY_CALLBACK)
    site.node.coordinator.submit_job(spec, ME)
    run = site.run(spec.job_id, "guest.0")
    succeed(site, run, spec.job_id)
    assert any(a.target.endswith("/task/poll") for a in site.asked(spec.job_id))


def test_a_hung_partner_delays_no_other(site: Site, patient_routes: None):
    hung, errors, wakes = a_job_with(SPEC), list[GatewayError](), threading.Event()

    def hangs(handler: BaseHTTPRequestHandler) -> None:
        wakes.wait(60)
        says()(handler)

    site.peer.will(hangs)

    def submit() -> None:
        try:
            site.node.coordinator.submit_job(hung, ME)
        except GatewayError as error:
            errors.append(error)

    waiting = threading.Thread(target=submit)
    waiting.start()
    wait_for(lambda: site.asked(hung.job_id), 20, 0.01, "the partner is being asked")
    spec = a_spec("a -> b", {"guest": (ME,), "host": (ME,)}, job_id=f"job-case-{next(_numbers)}")
    site.node.coordinator.submit(spec)
    assert isinstance(site.node.engine, MemoryEngine)
    for task in "ab":
        for label in ("guest.0", "host.0"):

            def up(task: str = task, label: str = label) -> Any:
                runs = site.node.store.local_jobs.get(spec.job_id).runs
                return next(
                    (
                        r
                        for r in runs
                        if (r.task_name, r.party.label) == (task, label) and r.started_at
                    ),
                    None,
                )

            run = wait_for(up, 20, 0.01)
            table = site.node.storage.path(run.outputs["out"])
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text("id\n1\n")
            report_success(site, run)
    assert over(site, spec.job_id).outcome is Outcome.SUCCEEDED
    assert waiting.is_alive(), "the other job still waits for the partner"
    site.node.coordinator.stop_job(hung.job_id, "", ME)
    wakes.set()
    waiting.join(60)
    assert [type(e) for e in errors] in ([Refused], [GatewayError]) and errors[0].reason


def test_a_jobs_state_is_served_while_every_thread_waits_for_peers(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    spec = a_spec("a", {"guest": (ME,), "host": (ME,)}, job_id=f"job-case-{next(_numbers)}")
    site.node.coordinator.submit_job(spec, ME)
    over, waiting = threading.Event(), threading.Semaphore(0)

    def silent(job_id: str) -> JobView:
        waiting.release()
        assert over.wait(60)
        raise NotFound(job_id)

    monkeypatch.setattr(site.node.coordinator, "status", silent)

    def status(job_id: str) -> Any:
        return ask(
            site.node, "operator", "GET", f"{SCHEDULE}/job/status_all", params={"job_id": job_id}
        ).json()

    threads = [threading.Thread(target=status, args=("x",)) for _ in range(64)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=60)
    try:
        wait_for(lambda: status(spec.job_id)["data"]["job_status"] == "RUNNING")
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    site.node.coordinator.stop_job(spec.job_id, "", ME)


def test_a_partner_that_takes_long_of_its_deadline_has_started_the_task(
    site: Site, patient_routes: None
):
    others_run = threading.Event()

    def slowly(handler: BaseHTTPRequestHandler) -> None:
        others_run.wait(60)
        says()(handler)

    states = iter(["RUNNING"])
    site.peer.will(
        by_path(
            task_start=slowly, task_poll=lambda h: says(data={"status": next(states, "SUCCESS")})(h)
        )
    )
    spec = a_job_with(SPEC)
    site.node.coordinator.submit_job(spec, ME)
    run = site.run(spec.job_id, "guest.0")
    others_run.set()
    succeed(site, run, spec.job_id)
    starts = [a for a in site.asked(spec.job_id) if a.target.endswith("/task/start")]
    assert len(starts) == 1
