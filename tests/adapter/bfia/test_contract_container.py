"""The contract of the control path for containers: control layer 4.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import pytest

from adapter.bfia.wire import ContainerCallback
from gateway.domain.job import Job
from gateway.domain.run import Run
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import (
    ABSENT,
    DONE,
    Caller,
    Endpoint,
    always,
    problem_paths,
    read_envelope,
    read_refusal,
)
from tests.adapter.bfia.site import PLATFORM, Site, serving_site
from tests.builders import a_spec
from tests.inprocess import ME

CALLBACK = "/task/callback"

# Numbers for job ids; all tests share one node.
_numbers = count()


@dataclass
class Stage:
    """A node that is the guest and the host of its jobs; tests end their containers."""

    site: Site

    def start_job(self) -> tuple[str, Run, Run]:
        """Submit a job; return its id and the runs of guest and host, which have started."""
        job_id = f"job-callback-{next(_numbers)}"
        spec = a_spec(
            "a",
            {
                "guest": (ME,),
                "host": (ME,),
            },
            job_id=job_id,
        )
        self.site.node.job_requests.submit(spec)
        return (
            job_id,
            self.site.run(job_id, "guest.0"),
            self.site.run(job_id, "host.0"),
        )

    def token(self, run: Run) -> str:
        """Return the token of a run's container."""
        token: str = self.site.node.run_tokens.issue(run.run_id)
        return token

    def report(
        self,
        run: Run,
        **fields: Any,
    ) -> httpx.Response:
        """Send a report with the token of a run's container."""
        call = Caller(
            self.site.node,
            "container",
            PLATFORM,
            {},
        )
        return call(f"{CALLBACK}?run={self.token(run)}", fields)

    def stored_run(self, job_id: str, run: Run) -> Run:
        """Return a run as it is stored now."""
        runs = self.site.local_job(job_id).runs
        [stored] = [r for r in runs if r.run_id == run.run_id]
        return stored

    def wait_for_end(self, job_id: str) -> Job:
        """Wait until a job is finished; return it."""
        job = self.site.wait_for_end(job_id)
        assert job.status is JobStatus.FINISHED
        return job


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield Stage(site)


@pytest.fixture
def call(stage: Stage) -> Caller:
    return Caller(stage.site.node, "container", PLATFORM, {})


def test_a_report_from_a_containers_address(stage, call):
    _, run, _ = stage.start_job()
    stage.site.engine.addresses[run.name] = "127.0.0.1"
    report = {
        "task_id": run.task_id,
        "status": "RUNNING",
        "role": "guest",
    }
    endpoint = Endpoint(CALLBACK, always(report))
    contract.check_success(call, endpoint, stage)
    contract.check_deviations(call, endpoint, stage)


def test_a_report_with_a_token_keeps_the_contract(stage, call):
    _, run, _ = stage.start_job()
    report = {
        "task_id": run.task_id,
        "status": "running",
        "role": "guest.0",
    }
    endpoint = Endpoint(
        f"{CALLBACK}?run={stage.token(run)}",
        always(report),
        optional=("task_id", "role", "result_code", "result_message"),
    )
    contract.check_success(call, endpoint, stage)
    contract.check_deviations(call, endpoint, stage)


def test_missing_and_wrong_fields_are_named_and_change_nothing(stage, call):
    job_id, run, _ = stage.start_job()
    report = {
        "task_id": run.task_id,
        "status": "SUCCESS",
        "role": "guest",
    }

    def read_state() -> Any:
        stored = stage.stored_run(job_id, run)
        report = stored.container_report
        return stored.status, report.status, report.result_code, stored.stop_at, stored.exit

    before = read_state()
    for word in ("PENDING", "READY", "STOPPED"):
        body = read_envelope(call(CALLBACK, report | {"status": word}))
        assert body["code"] == 400
        assert [problem["path"] for problem in body["data"]["problems"]] == ["status"]
    for value in (None, "", ABSENT):
        without_task = contract.with_optional(report, "task_id", value)
        assert problem_paths(call(CALLBACK, without_task)) == {"task_id"}
    endpoint = Endpoint(
        CALLBACK,
        always(report),
        required=("status",),
        optional=("task_id", "role", "result_code", "result_message"),
    )
    contract.check_missing_and_wrong(call, endpoint, stage)
    contract.check_no_json(call, endpoint)
    contract.check_methods(call, endpoint)
    contract.check_size(call, CALLBACK)
    assert read_state() == before


# ---------------------------------------------------------------- who reports


def test_a_container_is_identified_by_address_task_and_role(stage, call):
    _, guest, host = stage.start_job()
    report = {
        "task_id": guest.task_id,
        "status": "RUNNING",
    }
    stage.site.engine.addresses |= {
        guest.name: "127.0.0.1",
        host.name: "127.0.0.1",
    }

    for role in ("guest", "guest.0", "host", "host.0"):
        assert read_envelope(call(CALLBACK, report | {"role": role})) == DONE
    for role in ("", None):
        read_refusal(
            call(CALLBACK, report | {"role": role}),
            403,
            "NOT_AUTHORISED",
        )
    for role in ("arbiter", "guest.1", "guest.x"):
        body = read_envelope(call(CALLBACK, report | {"role": role}))
        assert body["code"] in (403, 404)
    unknown_task = {
        "task_id": "task_nowhere",
        "status": "RUNNING",
        "role": "guest",
    }
    read_refusal(call(CALLBACK, unknown_task), 404, "TASK_UNKNOWN")


def test_a_claimed_address_does_not_count(stage, call):
    """Only the address of the connection identifies a container."""
    _, guest, _ = stage.start_job()
    stage.site.engine.addresses[guest.name] = "10.255.0.2"
    report = {
        "task_id": guest.task_id,
        "status": "RUNNING",
        "role": "guest",
    }
    response = call(
        CALLBACK,
        report,
        headers={"x-forwarded-for": "10.255.0.2"},
    )
    read_refusal(response, 403, "NOT_AUTHORISED")


def test_only_the_exact_token_identifies_a_run(stage, call):
    _, guest, _ = stage.start_job()
    shortened = stage.token(guest)[:-1]
    for token in ("nobody", guest.token, guest.name, guest.run_id, shortened):
        response = call(f"{CALLBACK}?run={token}", {"status": "SUCCESS"})
        read_refusal(response, 404, "RUN_UNKNOWN")


def test_the_token_says_who_reports_whatever_the_body_says(stage):
    job_id, guest, host = stage.start_job()

    response = stage.report(
        guest,
        status="SUCCESS",
        task_id="task_nowhere",
        role="host",
    )

    assert read_envelope(response) == DONE
    assert stage.stored_run(job_id, guest).container_report.status is TaskStatus.SUCCESS
    assert stage.stored_run(job_id, host).container_report.status is not TaskStatus.SUCCESS


# ---------------------------------------------------------------- reports and exit codes


def test_success_with_a_failing_exit_code_is_a_failure_that_shows_both(stage):
    job_id, guest, _ = stage.start_job()

    assert read_envelope(stage.report(guest, status="SUCCESS")) == DONE
    stage.site.engine.finish(guest.name, 7)

    failure = stage.wait_for_end(job_id).ending.failure
    assert failure.reason == "EXIT_7"
    assert failure.exit_code == 7
    assert failure.role == "guest"
    assert "exit code 7" in failure.message
    assert "SUCCESS" in failure.message
    run = stage.stored_run(job_id, guest)
    assert run.status is RunStatus.FAILED
    assert run.container_report.status is TaskStatus.SUCCESS


def test_a_refused_report_is_shown_when_the_exit_code_decides(stage):
    job_id, guest, host = stage.start_job()
    # containers repeat refused reports
    for _ in range(2):
        read_refusal(
            stage.report(guest, status="Done"),
            400,
            "STATUS_UNKNOWN",
        )

    for run in (guest, host):
        table = stage.site.node.storage.path(run.data.outputs["out"])
        table.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        table.write_text("id\n1\n")
        stage.site.engine.finish(run.name, 0)

    assert stage.wait_for_end(job_id).outcome is Outcome.SUCCEEDED
    assert stage.stored_run(job_id, guest).no_callback
    report = "task a as guest.0 reported the status 'Done'"
    warnings = stage.site.local_job(job_id).warnings
    [warning] = [text for text in warnings if report in text]
    assert "exit code" in warning
    events = [entry.event for entry in stage.site.node.store.timeline(job_id)]
    assert events.count("report refused") == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("result_code", "result_message"),
        ("resultCode", "resultMessage"),
    ],
)
def test_the_vendors_own_words_are_the_reason(stage, code, message):
    job_id, guest, _ = stage.start_job()

    response = stage.report(guest, status="FAILED", **{code: "4444", message: "no luck"})

    assert read_envelope(response) == DONE
    failure = stage.wait_for_end(job_id).ending.failure
    assert failure.reason == "REPORTED_FAILED"
    assert "4444" in failure.message
    assert "no luck" in failure.message


def test_the_beginning_of_long_words_is_stored(stage):
    job_id, guest, _ = stage.start_job()

    response = stage.report(
        guest,
        status="FAILED",
        result_code="4" * 2**20,
        result_message="x" * 2**20,
    )

    assert read_envelope(response) == DONE
    assert len(stage.wait_for_end(job_id).ending.failure.message) < 1300
    run = stage.stored_run(job_id, guest)
    assert run.container_report.result_code == "4" * 100
    assert run.container_report.result_message == "x" * 1000


def test_long_ids_of_a_report_are_not_quoted_in_full(call):
    # the longest task id
    longest_id = "t" * 128
    assert ContainerCallback(task_id=longest_id, status="FAILED").task_id == longest_id

    report = {
        "status": "FAILED",
        "task_id": "t" * 2**20,
        "role": "r" * 2**20,
    }
    response = call(CALLBACK, report)
    read_refusal(response, 404, "TASK_UNKNOWN")
    assert len(response.content) < 500


def test_late_repeated_and_contradicting_reports_change_nothing(stage):
    job_id, guest, host = stage.start_job()
    for run in (guest, host):
        assert read_envelope(stage.report(run, status="SUCCESS")) == DONE
        stage.site.engine.finish(run.name, 0)
    stage.wait_for_end(job_id)
    before = stage.stored_run(job_id, guest)

    for status in ("RUNNING", "FAILED", "SUCCESS"):
        assert read_envelope(stage.report(guest, status=status)) == DONE

    after = stage.stored_run(job_id, guest)
    assert after.status is before.status
    assert after.container_report.status is before.container_report.status
    assert stage.wait_for_end(job_id).outcome is Outcome.SUCCEEDED
