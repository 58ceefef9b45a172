"""The contract of every path for a node's own platform: control layer 5, with both prefixes."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import pytest

from adapter.bfia.examples import A_COMPONENT
from gateway.domain.states import JobStatus, Outcome
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import (
    DONE,
    NO_JOB,
    NO_NAME,
    NO_TASK,
    AtLeast,
    Caller,
    Endpoint,
    always,
    read_envelope,
    read_refusal,
    success,
)
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import PLATFORM, SPEC, Site, serving_site
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

# The second prefix under which a node serves its platform.
PLATFORM_V2 = "/v2/schedule"

BOTH_PARTIES = {
    "guest": (ME,),
    "host": (ME,),
}


@dataclass
class Stage:
    """A job in which this node is the guest and the host; task a runs, task b waits."""

    site: Site
    job_id: str
    task: str
    next_task: str

    def caller(self, prefix: str = PLATFORM) -> Caller:
        """Return a caller that sends requests as the platform."""
        return Caller(self.site.node, "operator", prefix, {})

    def view(self) -> dict[str, Any]:
        """Return the state of the job that the platform has to get."""
        return AtLeast(
            job_id=self.job_id,
            job_status="RUNNING",
            status={
                self.task: "RUNNING",
                self.next_task: "READY",
            },
            outcome=None,
            progress=0,
            failed_by=None,
            scheduler=ME,
            warnings=list(self.site.node.store.local_jobs.get(self.job_id).warnings),
            tasks=[
                task_view("a", self.task, "RUNNING", "RUNNING"),
                task_view("b", self.next_task, "READY", "PENDING"),
            ],
        )


def task_view(
    name: str,
    task_id: str,
    status: str,
    status_of_parties: str,
) -> dict[str, Any]:
    """Return the state of a task that the platform has to get."""
    roles = {
        "guest": status_of_parties,
        "host": status_of_parties,
    }
    return AtLeast(
        task_id=task_id,
        task_name=name,
        status=status,
        parties={ME: roles},
        failed_by=None,
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        spec = a_spec(
            "a -> b",
            BOTH_PARTIES,
            job_id="job-platform",
            flow_id="flow of one",
        )
        site.node.job_requests.submit(spec)
        for label in ("guest.0", "host.0"):
            site.run(spec.job_id, label)

        def both_run() -> bool:
            roles = site.job(spec.job_id).tasks["a"].nodes[ME].roles
            return {str(status) for status in roles.values()} == {"RUNNING"}

        wait_for(both_run, 20, 0.02, "both parties run")
        tasks = site.job(spec.job_id).tasks
        yield Stage(
            site,
            spec.job_id,
            tasks["a"].task_id,
            tasks["b"].task_id,
        )


def job_body(flow_id: str = "") -> dict[str, Any]:
    """Return the request that submits a job, which has no id yet."""
    body = contract.job_body(a_spec("a", BOTH_PARTIES, flow_id=flow_id))
    del body["job_id"]
    return body


def new_job(_: Stage) -> dict[str, Any]:
    """Return the request that submits a job of no flow."""
    return job_body()


def about_job(stage: Stage) -> dict[str, Any]:
    """Return a request about the job."""
    return {"job_id": stage.job_id}


def about_next_task(stage: Stage) -> dict[str, Any]:
    """Return a request about the task that waits."""
    return {
        "job_id": stage.job_id,
        "task_name": "b",
    }


def about_log(stage: Stage) -> dict[str, Any]:
    """Return a request about the log of the running task."""
    return {
        "task_id": stage.task,
        "log_level": "info",
    }


def about_log_from_start(stage: Stage) -> dict[str, Any]:
    """Return a request for the log of the running task, from its first line."""
    return about_log(stage) | {"start": 0}


def view_of_job(
    stage: Stage,
    _: dict[str, Any],
) -> Any:
    """Return the response to a query of the job."""
    return DONE | {"data": stage.view()}


def jobs_of_flow(
    stage: Stage,
    _: dict[str, Any],
) -> Any:
    """Return the response to a query of the job's flow."""
    return DONE | {"data": {"job_list": {stage.job_id: "RUNNING"}}}


LOG_SUMMARY = {
    "num": 0,
    "roles": ["guest.0", "host.0"],
    "over": False,
}
EMPTY_LOG = LOG_SUMMARY | {
    "data": "",
    "start": 0,
    "next": 0,
    "left_out": 0,
    "parts": [],
}

ENDPOINTS = (
    Endpoint(
        "/job/create_all",
        new_job,
        success(job_id=ANY),
        required=tuple(path for path in contract.JOB_FIELDS if path != "job_id"),
        optional=("flow_id",),
    ),
    Endpoint(
        "/job/stop_all",
        about_next_task,
        required=("job_id",),
        repeatable=False,
        unknown=(NO_JOB, NO_NAME),
    ),
    Endpoint(
        "/job/stop_task",
        about_next_task,
        required=("job_id", "task_name"),
        repeatable=False,
        unknown=(NO_JOB, NO_NAME),
    ),
    Endpoint(
        "/job/status_all",
        about_job,
        view_of_job,
        required=("job_id",),
        unknown=(NO_JOB,),
        methods=("GET", "POST"),
        in_query=True,
    ),
    Endpoint(
        "/job/query_job_list",
        always({"flow_id": "flow of one"}),
        jobs_of_flow,
        optional=("since",),
        methods=("GET",),
        in_query=True,
    ),
    Endpoint(
        "/task/get_log_line",
        about_log,
        success(**LOG_SUMMARY),
        required=("task_id", "log_level"),
        optional=("role",),
        unknown=(NO_TASK,),
        methods=("GET", "POST"),
        in_query=True,
    ),
    Endpoint(
        "/task/get_log",
        about_log_from_start,
        success(**EMPTY_LOG),
        required=("task_id", "log_level", "start"),
        optional=("role",),
        unknown=(NO_TASK,),
        integers=("start",),
        methods=("GET", "POST"),
        in_query=True,
    ),
)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_a_path_keeps_its_contract(stage, endpoint):
    call = stage.caller()

    def job_is_unchanged() -> bool:
        response = call("/job/status_all", {"job_id": stage.job_id}, "GET")
        return bool(read_envelope(response)["data"] == stage.view())

    contract.check(call, endpoint, stage, job_is_unchanged)
    assert job_is_unchanged()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_a_path_with_the_second_prefix_keeps_its_contract(stage, endpoint):
    call = stage.caller(PLATFORM_V2)
    contract.check_methods(call, endpoint)
    if endpoint.repeatable:
        contract.check_success(call, endpoint, stage)


# ---------------------------------------------------------------- one by one


@pytest.mark.parametrize("prefix", [PLATFORM, PLATFORM_V2])
def test_a_submitted_job_is_listed_and_stopped(stage, prefix):
    call = stage.caller(prefix)

    def listed_jobs(body: Any = None, **query: str) -> Any:
        response = call(
            "/job/query_job_list",
            body,
            "GET",
            params=query,
        )
        return read_envelope(response)["data"]["job_list"]

    response = call("/job/create_all", job_body("flow of another"))
    assert list(response.json()) == ["code", "msg", "data"]
    assert response.json()["msg"] == "success"
    job_id = read_envelope(response)["data"]["job_id"]

    assert job_id in listed_jobs(flow_id="flow of another")
    assert {job_id, stage.job_id} <= set(listed_jobs())
    assert listed_jobs({"flow_id": "none"}) == {}
    assert list(listed_jobs(limit="1")) == [job_id]
    assert job_id in listed_jobs({"since": "2026-01-01", "limit": 1000})
    assert listed_jobs(since="2999-01-01T08:00+08:00") == {}

    for _ in range(2):
        assert read_envelope(call("/job/stop_all", {"job_id": job_id})) == DONE
    job = stage.site.wait_for_end(job_id)
    assert job.status is JobStatus.FINISHED
    assert job.outcome is Outcome.STOPPED
    after_the_end = call("/job/stop_task", {"job_id": job_id, "task_name": "a"})
    assert read_envelope(after_the_end) == DONE


def test_wrong_bounds_of_a_list_are_named_together(stage):
    call = stage.caller()
    query = {"limit": "0", "since": "yesterday"}

    response = call("/job/query_job_list", None, "GET", params=query)

    problems = response.json()["data"]["problems"]
    assert [problem["path"] for problem in problems] == ["since", "limit"]
    assert "2026-11-21" in problems[0]["rule"]
    body = {"limit": "many", "since": 5}
    assert len(call("/job/query_job_list", body, "GET").json()["data"]["problems"]) == 2


def test_a_refusal_names_the_partner_and_quotes_it(stage):
    body = job_body()
    body["config"]["role"]["host"] = [SPEC]
    stage.site.peer.will(
        says(
            {
                "code": 4711,
                "msg": "数据不可用",
                "data": {},
            }
        )
    )

    response = stage.caller()("/job/create_all", body)

    refusal = read_refusal(response, 409, "REFUSED")
    assert SPEC in refusal["msg"]
    assert "数据不可用" in refusal["msg"]
    stage.site.peer.reset()


# ---------------------------------------------------------------- registration

REGISTER = "/component/register"


def test_the_standards_registration(stage):
    call = stage.caller()
    for _ in range(2):
        assert read_envelope(call(REGISTER, copy.deepcopy(A_COMPONENT))) == DONE
    contract.check_methods(call, Endpoint(REGISTER, always(A_COMPONENT)))
    contract.check_size(call, REGISTER)


def test_a_registration_without_its_parts_is_refused(stage):
    call = stage.caller()
    for field in ("imageUrl", "component_info"):
        body = contract.without_field(A_COMPONENT, field)
        assert contract.problem_paths(call(REGISTER, body)) == {field}
    assert contract.problem_paths(call(REGISTER, {})) == {"imageUrl", "component_info"}


@pytest.mark.parametrize(
    "field",
    ["componentName", "roleList", "inputParam", "outputData"],
)
def test_a_registration_with_a_field_of_a_wrong_type_is_refused(stage, field):
    path = f"component_info.{field}"
    body = contract.with_field(A_COMPONENT, path, 5)
    assert contract.problem_paths(stage.caller()(REGISTER, body)) == {path}


def test_a_registration_that_is_no_object_is_refused(stage):
    call = stage.caller()
    for content in contract.WRONG_BODIES:
        assert read_envelope(call(REGISTER, None, content=content))["code"] == 400


def test_every_platform_path_is_in_the_table(stage):
    described = stage.caller("")("/openapi.json", None, "GET").json()["paths"]

    platform = {path.removeprefix(PLATFORM) for path in described if path.startswith(PLATFORM)}
    assert platform == {endpoint.path for endpoint in ENDPOINTS} | {REGISTER}

    log = described[f"{PLATFORM}/task/get_log"]["get"]
    parameters = {parameter["name"]: parameter for parameter in log["parameters"]}
    required = {name for name, parameter in parameters.items() if parameter["required"]}
    assert required == {"task_id", "log_level", "start"}
    assert parameters["start"]["schema"]["type"] == "integer"
    assert "debug" in parameters["log_level"]["schema"]["enum"]
