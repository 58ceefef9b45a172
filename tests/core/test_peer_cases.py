"""Faults that the best known existing peer handles wrongly; here each is handled well.

Its mistakes with bad input alone are tested at each endpoint (`tests/adapter/bfia`).
"""

import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import yaml

from adapter.bfia import peer as calls
from gateway.domain.execution import messages
from gateway.domain.states import Outcome, TaskStatus
from gateway.errors import GatewayError, NotFound, Refused
from gateway.ports import Callback
from tests.adapter.bfia.scripted import says, scripted
from tests.adapter.bfia.site import SPEC, a_job_with, by_path, serving_site
from tests.builders import a_spec
from tests.contracts.apis import run_in_threads
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

BY_CALLBACK = {"common": {"sync_type": "callback"}}
LANE_THREADS = 8
REQUEST_THREADS = 64  # more than the node has for requests

_numbers = count()


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory):
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def site(shared_site):
    """A node with a partner whose script is empty."""
    shared_site.peer.asked.clear()
    shared_site.peer.will(says())
    yield shared_site
    shared_site.peer.will(says())


@pytest.fixture
def patient_routes(site, monkeypatch):
    """Give the partner a minute per response, so that a slow machine misses no deadline."""
    scheduler = site.node.scheduler
    timing = scheduler.timing
    monkeypatch.setattr(calls, "LONGEST_CALL", 60.0)
    monkeypatch.setattr(
        scheduler,
        "timing",
        replace(
            timing,
            call_deadline=timing.call_deadline + 50,
        ),
    )
    with route_deadline(site, 60):
        yield


@contextmanager
def route_deadline(site, seconds):
    """Set the deadline in the routes to all partners."""
    file = Path(site.node.settings.route_table.file)
    original = file.read_text()
    routes = yaml.safe_load(original)
    for route in routes.values():
        route["deadline"] = seconds
    file.write_text(yaml.safe_dump(routes))
    site.node.routes.reload()
    yield
    file.write_text(original)
    site.node.routes.reload()


def submit(site, spec=None, **job_params):
    """Submit a job, by default one with the partner as host; return its spec."""
    spec = spec or replace(a_job_with(SPEC), job_params=job_params)
    site.node.coordinator.submit_job(spec, ME)
    return spec


def a_job_of_this_node(dag="a"):
    """Build a job in which this node is guest and host."""
    return a_spec(
        dag,
        {
            "guest": (ME,),
            "host": (ME,),
        },
        job_id=f"job-case-{next(_numbers)}",
    )


def stop(site, job_id):
    """Stop a job; return it as it is at its end."""
    site.node.coordinator.stop_job(job_id, "", ME)
    return wait_for_end(site, job_id)


def wait_for_end(site, job_id):
    jobs = site.node.store.jobs

    def has_ended():
        return jobs.get(job_id).ended_at is not None

    wait_for(has_ended, 60, 0.02, f"{job_id} has ended")
    return jobs.get(job_id)


def succeed(site, run, job_id):
    """Let a run report success and exit; check that its job succeeds."""
    report_success(site, run)
    assert wait_for_end(site, job_id).outcome is Outcome.SUCCEEDED


def report_success(site, run):
    site.node.container_callbacks.record(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
    site.node.engine.finish(run.name, 0)


def change_run(site, job_id, run, **changes):
    """Change the record of a run; return the job's record."""

    def change(local):
        runs = []
        for each in local.runs:
            if each.name == run.name:
                each = replace(each, **changes)
            runs.append(each)
        return replace(
            local,
            runs=tuple(runs),
        )

    return site.node.executor.change(job_id, change)


def requests_to(site, job_id, path):
    """Return the partner's requests about a job at a path."""
    return [request for request in site.asked(job_id) if request.target.endswith(path)]


def statuses(*words):
    """Answer each query of a task with the next status; the last one stays."""
    following = iter(words)

    def answer(handler):
        says(data={"status": next(following, words[-1])})(handler)

    return answer


# ------------------------------------------------------------ stops


def test_a_stop_that_races_the_start_leaves_nothing(site):
    """Twenty stops, each a little later than the one before; then twenty in parallel."""
    job_ids = []
    for number in range(20):
        spec = submit(site, a_job_of_this_node("a; b -> c"))
        wait_for_timeline(site, spec.job_id, number)
        site.node.coordinator.stop_job(
            spec.job_id,
            "",
            ME,
        )
        job_ids.append(spec.job_id)

    def race():
        spec = a_job_of_this_node("a; b")
        job_ids.append(spec.job_id)
        submit(site, spec)
        site.node.coordinator.stop_job(
            spec.job_id,
            "",
            ME,
        )

    assert run_in_threads(20, race) == []
    for job_id in job_ids:
        job = wait_for_end(site, job_id)
        assert job.outcome is Outcome.STOPPED
        for task in job.tasks.values():
            assert task.status in (TaskStatus.READY, TaskStatus.PENDING, TaskStatus.FAILED)
        wait_until_closed(site, job_id)
    wait_until_no_container_runs(site)


def wait_for_timeline(site, job_id, length):
    """Wait until a job's timeline has at least ``length`` entries."""

    def is_long_enough():
        return len(site.node.store.timeline(job_id)) >= length

    wait_for(is_long_enough, 20, 0.001)


def wait_until_closed(site, job_id):
    def is_closed():
        return site.node.store.local_jobs.get(job_id).closed

    wait_for(is_closed, 30, 0.02, f"nothing of {job_id} is held")


def wait_until_no_container_runs(site):
    def none_runs():
        return all(hasattr(listed.probe, "code") for listed in site.node.engine.list())

    wait_for(none_runs, 30, 0.02, "no container is left")


# ------------------------------------------------------------ reports and queries


def test_a_job_by_callback_finishes_without_a_question(site):
    """The partner reports its state; the rare queries made nevertheless bring no news."""
    site.peer.will(by_path(task_poll=says({"code": 1, "msg": "no questions, please"})))
    spec = submit(site, **BY_CALLBACK)
    run = site.run(spec.job_id, "guest.0")
    [task] = site.node.store.jobs.get(spec.job_id).tasks.values()

    for status in ("RUNNING", "SUCCESS", "RUNNING", "SUCCESS"):  # late and repeated reports
        report = {
            "task_id": task.task_id,
            "status": status,
            "role": "host",
        }

        def is_accepted(report=report):
            return site.asks(SPEC, "/task/callback", report)["code"] == 0

        wait_for(is_accepted, 20)
    succeed(site, run, spec.job_id)

    following = submit(site)
    partner = site.node.store.jobs.get(following.job_id).nodes[SPEC]
    assert partner.pushes, "it is polled rarely from the beginning"
    stop(site, following.job_id)


def test_lost_reports_are_made_up_for_by_questions(site, monkeypatch):
    """The partner's reports never arrive; by callback, too, the node queries from time to time."""
    scheduler = site.node.scheduler
    monkeypatch.setattr(
        scheduler,
        "timing",
        replace(
            scheduler.timing,
            poll_pushing=0.1,
        ),
    )
    site.peer.will(by_path(task_poll=statuses("RUNNING", "SUCCESS")))

    spec = submit(site, **BY_CALLBACK)
    succeed(
        site,
        site.run(spec.job_id, "guest.0"),
        spec.job_id,
    )

    assert requests_to(site, spec.job_id, "/task/poll")


def test_a_container_that_never_reports_is_asked_at_its_control_port(site, monkeypatch):
    executor = site.node.executor
    monkeypatch.setattr(
        executor,
        "timing",
        replace(
            executor.timing,
            probe_every=0.05,
        ),
    )

    with scripted() as (container, url):
        container.will(
            says({"code": 0, "status": "RUNNING"}),
            says({"code": 0, "status": "SUCCESS"}),
        )
        spec = submit(site, **BY_CALLBACK)
        run = site.run(spec.job_id, "guest.0")
        site.node.engine.addresses[run.name] = "127.0.0.1"
        port = int(url.rpartition(":")[2])
        change_run(
            site,
            spec.job_id,
            run,
            software=replace(
                run.software,
                declared={"control_port": port},
            ),
            probe_at=None,
        )

        def current_run():
            return site.run(spec.job_id, "guest.0")

        wait_for(lambda: current_run().container_report.status is TaskStatus.SUCCESS, 20, 0.02)
        assert len(container.asked) >= 2

    site.node.engine.finish(run.name, 0)
    wait_for(lambda: current_run().over, 20, 0.02, "the run has ended")
    assert current_run().failure is None
    stop(site, spec.job_id)


# ------------------------------------------------------------ probes of containers

FAR_FUTURE = 2999  # a year without any probe


def probe_far_away(site, job_id, run, **changes):
    """Let the next probe of a run be due in the far future; return the job's record."""
    return change_run(
        site,
        job_id,
        run,
        probe_at=run.created_at.replace(year=FAR_FUTURE),
        **changes,
    )


def test_a_rarely_probed_run_is_inspected_without_a_write(site):
    spec = submit(site)
    run = site.run(spec.job_id, "guest.0")
    local = probe_far_away(site, spec.job_id, run)

    def without_reports(local):
        """Return the run without its reports, which may be answered at any moment."""
        [current] = [each for each in local.runs if each.name == run.name]
        return replace(
            current,
            reporting=run.reporting,
        )

    site.node.executor.probe_all()
    current = site.node.store.local_jobs.get(spec.job_id)
    assert without_reports(current) == without_reports(local)

    del site.node.engine.world.runs[run.name]
    site.node.executor.probe_all()
    failure = site.run(spec.job_id, "guest.0").failure
    assert failure is not None
    assert failure.reason == "GONE"
    wait_for_end(site, spec.job_id)


def test_a_silent_engine_does_not_stop_probes_of_another(site, monkeypatch):
    executor = site.node.executor
    jobs = {}
    runs = {}
    for engine in ("silent", ""):
        jobs[engine] = submit(site).job_id
        runs[engine] = site.run(
            jobs[engine],
            "guest.0",
        )
        probe_far_away(
            site,
            jobs[engine],
            runs[engine],
            engine=engine,
        )
    usual_probe = executor.probes.probe

    def probe(run):
        if run.engine == "silent":
            return messages.EngineSilent(
                run.run_id,
                site.node.clock(),
            )
        return usual_probe(run)

    monkeypatch.setattr(executor.probes, "probe", probe)
    del site.node.engine.world.runs[runs[""].name]
    executor.probe_all()

    assert site.run(jobs["silent"], "guest.0").failure is None
    failure = site.run(jobs[""], "guest.0").failure
    assert failure is not None
    assert failure.reason == "GONE"
    for job_id in jobs.values():
        stop(site, job_id)


# ------------------------------------------------------------ full lanes and hung partners


def test_a_run_whose_launch_waits_behind_those_of_others_says_so(site):
    release = threading.Event()
    for number in range(LANE_THREADS):
        wait = partial(release.wait, 60)
        site.node.lanes.submit("engine", wait, f"job-before-{number}")
    try:
        spec = submit(site)

        def wait_reasons():
            runs = site.node.get(f"/api/v1/jobs/{spec.job_id}").json()["runs"]
            return [run["waiting"]["reason"] for run in runs]

        wait_for(lambda: wait_reasons() == ["TURN"], 20, 0.02, "the run waits for its turn")
    finally:
        release.set()
    site.succeed(spec.job_id)
    stop(site, spec.job_id)


def test_the_deadline_of_the_route_limits_all_tries_of_the_creation(site):
    site.peer.will(says(status=503))  # not available now: the creation is repeated
    spec = a_job_with(SPEC)
    with route_deadline(site, 0.5), pytest.raises(GatewayError):
        submit(site, spec)

    job = wait_for_end(site, spec.job_id)
    assert job.outcome is Outcome.REJECTED
    assert job.nodes[SPEC].call_limit == 0.5
    assert job.nodes[ME].call_limit is None
    assert job.ended_at >= job.created_at + timedelta(seconds=0.5)


def test_a_hung_partner_delays_no_other(site, patient_routes):
    hung = a_job_with(SPEC)
    errors = []
    release = threading.Event()

    def answer_after_release(handler):
        release.wait(60)
        says()(handler)

    def submit_hung():
        try:
            submit(site, hung)
        except GatewayError as error:
            errors.append(error)

    site.peer.will(answer_after_release)
    submission = threading.Thread(target=submit_hung)
    submission.start()
    wait_for(lambda: site.asked(hung.job_id), 20, 0.01, "the partner is being called")

    spec = a_job_of_this_node("a -> b")
    site.node.job_requests.submit(spec)
    for task in "ab":
        for label in ("guest.0", "host.0"):
            end_with_output(site, spec.job_id, task, label)
    assert wait_for_end(site, spec.job_id).outcome is Outcome.SUCCEEDED
    assert submission.is_alive(), "the other job still waits for the partner"

    site.node.coordinator.stop_job(
        hung.job_id,
        "",
        ME,
    )
    release.set()
    submission.join(60)
    [error] = errors
    assert type(error) in (Refused, GatewayError)
    assert error.reason


def end_with_output(site, job_id, task, label):
    """Let the container of a party's task write its table and succeed."""

    def started_run():
        for run in site.node.store.local_jobs.get(job_id).runs:
            if run.task_name == task and run.party.label == label and run.started_at:
                return run
        return None

    run = wait_for(started_run, 20, 0.01)
    table = site.node.storage.path(run.data.outputs["out"])
    table.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    table.write_text("id\n1\n")
    report_success(site, run)


def test_a_jobs_state_is_served_while_every_thread_waits_for_peers(site, monkeypatch):
    spec = submit(site, a_job_of_this_node())
    release = threading.Event()
    waiting = threading.Semaphore(0)

    def wait_for_partner(job_id):
        waiting.release()
        assert release.wait(60)
        raise NotFound(job_id)

    def status(job_id):
        path = "/v1/platform/schedule/job/status_all"
        return site.node.get(path, params={"job_id": job_id}).json()

    def is_running():
        return status(spec.job_id)["data"]["job_status"] == "RUNNING"

    monkeypatch.setattr(site.node.job_statuses, "status", wait_for_partner)
    threads = []
    for _ in range(REQUEST_THREADS):
        thread = threading.Thread(
            target=status,
            args=("job-unknown",),
        )
        thread.start()
        threads.append(thread)
    for _ in threads:
        assert waiting.acquire(timeout=300)
    try:
        wait_for(is_running)
    finally:
        release.set()
        for thread in threads:
            thread.join(60)
    site.node.coordinator.stop_job(
        spec.job_id,
        "",
        ME,
    )


def test_a_partner_that_takes_long_of_its_deadline_has_started_the_task(site, patient_routes):
    guest_runs = threading.Event()

    def start_slowly(handler):
        guest_runs.wait(60)
        says()(handler)

    site.peer.will(by_path(task_start=start_slowly, task_poll=statuses("RUNNING", "SUCCESS")))
    spec = submit(site)
    run = site.run(spec.job_id, "guest.0")
    guest_runs.set()
    succeed(site, run, spec.job_id)

    assert len(requests_to(site, spec.job_id, "/task/start")) == 1
