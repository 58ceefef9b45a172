"""The contract of the one control path for containers, case by case: control layer 4.1."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from adapter.bfia.wire import ContainerCallback
from gateway.domain.job import Job
from gateway.domain.run import Run
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import DONE, Caller, Endpoint, envelope, refused
from tests.adapter.bfia.site import Site, serving_site
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME
from tests.memory_engine import MemoryEngine

PLATFORM = "/v1/platform/schedule"
CALLBACK = "/task/callback"

_numbers = count()


@dataclass
class Stage:
    """Jobs of which this node is the guest and the host; their containers run until a test ends them."""

    site: Site

    def job(self) -> tuple[str, Run, Run]:
        """Submit one; return its id and the runs of both parties, which are up."""
        job_id = f"job-callback-{next(_numbers)}"
        self.site.node.coordinator.submit(
            a_spec("a", {"guest": (ME,), "host": (ME,)}, job_id=job_id)
        )
        return job_id, self.site.run(job_id, "guest.0"), self.site.run(job_id, "host.0")

    def token(self, run: Run) -> str:
        return self.site.node.run_tokens.issue(run.run_id)

    def now(self, job_id: str, run: Run) -> Run:
        runs = self.site.node.store.local_jobs.get(job_id).runs
        return next(r for r in runs if r.run_id == run.run_id)

    def ended(self, job_id: str) -> Job:
        jobs = self.site.node.store.jobs
        wait_for(
            lambda: jobs.get(job_id).status is JobStatus.FINISHED, 20, 0.02, f"{job_id} has ended"
        )
        return jobs.get(job_id)

    @property
    def engine(self) -> MemoryEngine:
        engine = self.site.node.engine
        assert isinstance(engine, MemoryEngine)
        return engine


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield Stage(site)


@pytest.fixture
def call(stage: Stage) -> Caller:
    return Caller(stage.site.node, "container", PLATFORM, {})


def test_the_request_its_exact_reply_and_its_deviations(stage: Stage, call: Caller):
    _, run, _ = stage.job()
    stage.engine.addresses[run.name] = "127.0.0.1"
    one = Endpoint(
        CALLBACK,
        lambda _: {
            "task_id": run.task_id,
            "status": "RUNNING",
            "role": "guest",
        },
    )
    contract.check_success(call, one, stage)
    contract.check_deviations(call, one, stage)
    with_token = Endpoint(
        f"{CALLBACK}?run={stage.token(run)}",
        lambda _: {
            "task_id": run.task_id,
            "status": "running",
            "role": "guest.0",
        },
        optional=("task_id", "role", "result_code", "result_message"),
    )
    contract.check_success(call, with_token, stage)
    contract.check_deviations(call, with_token, stage)


def test_what_is_missing_or_wrong_is_named_and_changes_nothing(stage: Stage, call: Caller):
    job_id, run, _ = stage.job()

    def seen() -> Any:
        now = stage.now(job_id, run)
        return now.status, now.reported, now.result_code, now.stop_at, now.exit

    before = seen()
    good = {
        "task_id": run.task_id,
        "status": "SUCCESS",
        "role": "guest",
    }
    for word in ("PENDING", "READY", "STOPPED"):
        answer = envelope(call(CALLBACK, good | {"status": word}))
        assert answer["code"] == 400 and [p["path"] for p in answer["data"]["problems"]] == [
            "status"
        ]
    for value in (None, "", ...):
        body = {k: v for k, v in good.items() if k != "task_id"} | (
            {} if value is ... else {"task_id": value}
        )
        assert contract.paths(call(CALLBACK, body)) == {"task_id"}
    texts = ("task_id", "role", "result_code", "result_message")
    one = Endpoint(CALLBACK, lambda _: good, required=("status",), optional=texts)
    contract.check_missing_and_wrong(call, one, stage)
    contract.check_no_json(call, one)
    contract.check_methods(call, one)
    contract.check_size(call, CALLBACK)
    assert seen() == before


def test_a_reporter_is_identified_by_its_token_or_by_address_task_and_role(
    stage: Stage, call: Caller
):
    job_id, guest, host = stage.job()
    said = {"task_id": guest.task_id, "status": "RUNNING"}
    stage.engine.addresses |= {guest.name: "10.255.0.2"}
    claimed = call.headers | {"x-forwarded-for": "10.255.0.2"}  # only who has connected counts
    refused(call(CALLBACK, said | {"role": "guest"}, headers=claimed), 403, "NOT_AUTHORISED")
    stage.engine.addresses |= {guest.name: "127.0.0.1", host.name: "127.0.0.1"}
    for role in ("guest", "guest.0", "host", "host.0"):
        assert envelope(call(CALLBACK, said | {"role": role})) == DONE
    for role in ("", None):
        refused(call(CALLBACK, said | {"role": role}), 403, "NOT_AUTHORISED")
    for role in ("arbiter", "guest.1", "guest.x"):
        assert envelope(call(CALLBACK, said | {"role": role}))["code"] in (403, 404)
    refused(
        call(CALLBACK, said | {"task_id": "task_nowhere", "role": "guest"}), 404, "TASK_UNKNOWN"
    )
    for token in ("nobody", guest.token, guest.name, guest.run_id, stage.token(guest)[:-1]):
        refused(call(f"{CALLBACK}?run={token}", {"status": "SUCCESS"}), 404, "RUN_UNKNOWN")
    # the token says who reports, whatever the body says
    body = {
        "status": "SUCCESS",
        "task_id": "task_nowhere",
        "role": "host",
    }
    assert envelope(call(f"{CALLBACK}?run={stage.token(guest)}", body)) == DONE
    assert stage.now(job_id, guest).reported is TaskStatus.SUCCESS
    assert stage.now(job_id, host).reported is not TaskStatus.SUCCESS


def test_success_with_a_failing_exit_code_is_a_failure_that_shows_both(stage: Stage, call: Caller):
    job_id, guest, _ = stage.job()
    assert envelope(call(f"{CALLBACK}?run={stage.token(guest)}", {"status": "SUCCESS"})) == DONE
    stage.engine.finish(guest.name, 7)
    job = stage.ended(job_id)
    assert job.ending is not None and job.ending.failure is not None
    failure = job.ending.failure
    assert (failure.reason, failure.exit_code, failure.role) == ("EXIT_7", 7, "guest")
    assert "exit code 7" in failure.message and "SUCCESS" in failure.message
    run = stage.now(job_id, guest)
    assert (run.status, run.reported) == (RunStatus.FAILED, TaskStatus.SUCCESS)


def test_a_refused_report_is_shown_when_the_exit_code_decides(stage: Stage, call: Caller):
    job_id, guest, host = stage.job()
    for _ in range(2):  # containers repeat what was refused
        refused(
            call(f"{CALLBACK}?run={stage.token(guest)}", {"status": "Done"}), 400, "STATUS_UNKNOWN"
        )
    for run in (guest, host):
        table = stage.site.node.storage.path(run.outputs["out"])
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("id\n1\n")
        stage.engine.finish(run.name, 0)
    assert stage.ended(job_id).outcome is Outcome.SUCCEEDED
    assert stage.now(job_id, guest).no_callback
    warnings = stage.site.node.store.local_jobs.get(job_id).warnings
    [warning] = [
        text for text in warnings if "task a as guest.0 reported the status 'Done'" in text
    ]
    assert "exit code" in warning
    events = [e.event for e in stage.site.node.store.timeline(job_id)]
    assert events.count("report refused") == 1


@pytest.mark.parametrize(
    ("code", "message"), [("result_code", "result_message"), ("resultCode", "resultMessage")]
)
def test_the_vendors_own_words_are_the_reason(
    stage: Stage,
    call: Caller,
    code: str,
    message: str,
):
    job_id, guest, _ = stage.job()
    body = {
        "status": "FAILED",
        code: "4444",
        message: "no luck",
    }
    assert envelope(call(f"{CALLBACK}?run={stage.token(guest)}", body)) == DONE
    failure = stage.ended(job_id).ending.failure  # type: ignore[union-attr]
    assert failure is not None and failure.reason == "REPORTED_FAILED"
    assert "4444" in failure.message and "no luck" in failure.message


def test_of_long_words_the_beginning_is_kept(stage: Stage, call: Caller):
    job_id, guest, _ = stage.job()
    body = {
        "status": "FAILED",
        "result_code": "4" * 2**20,
        "result_message": "x" * 2**20,
    }
    assert envelope(call(f"{CALLBACK}?run={stage.token(guest)}", body)) == DONE
    assert len(stage.ended(job_id).ending.failure.message) < 1300  # type: ignore[union-attr]
    run = stage.now(job_id, guest)
    assert (run.result_code, run.result_message) == ("4" * 100, "x" * 1000)
    assert (
        ContainerCallback(task_id="t" * 128, status="FAILED").task_id == "t" * 128
    )  # as long as there may be
    nowhere = call(
        CALLBACK,
        {
            "status": "FAILED",
            "task_id": "t" * 2**20,
            "role": "r" * 2**20,
        },
    )
    refused(nowhere, 404, "TASK_UNKNOWN")
    assert len(nowhere.content) < 500


def test_late_repeated_and_contradicting_reports_change_nothing(stage: Stage, call: Caller):
    job_id, guest, host = stage.job()
    for run in (guest, host):
        assert envelope(call(f"{CALLBACK}?run={stage.token(run)}", {"status": "SUCCESS"})) == DONE
        stage.engine.finish(run.name, 0)
    stage.ended(job_id)
    before: Any = stage.now(job_id, guest).status, stage.now(job_id, guest).reported
    for status in ("RUNNING", "FAILED", "SUCCESS"):
        assert envelope(call(f"{CALLBACK}?run={stage.token(guest)}", {"status": status})) == DONE
    assert (stage.now(job_id, guest).status, stage.now(job_id, guest).reported) == before
    assert (
        stage.ended(job_id).outcome is not None and str(stage.ended(job_id).outcome) == "SUCCEEDED"
    )
