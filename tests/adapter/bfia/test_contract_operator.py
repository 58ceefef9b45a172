"""The contract of every path for a node's own platform, case by case: control layer 5, in both spellings."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import httpx
import pytest

from adapter.bfia.examples import A_COMPONENT
from gateway.domain.states import JobStatus, Outcome
from tests.adapter.bfia import contract, test_contract_peer
from tests.adapter.bfia.contract import DONE, AtLeast, Caller, Endpoint, envelope, refused
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import SPEC, Site, serving_site
from tests.adapter.bfia.test_contract_peer import NO_JOB, NO_NAME, NO_TASK
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME

PLATFORM = "/v1/platform/schedule"


@dataclass
class Stage:
    """A job of which this node is the guest and the host; its task a runs."""

    site: Site
    job_id: str
    task: str
    next_task: str

    def view(self) -> dict[str, Any]:
        """Return what is to be said of the job, written out."""

        def task(
            name: str,
            task_id: str,
            status: str,
            parties: str,
        ) -> dict[str, Any]:
            roles = {"guest": parties, "host": parties}
            return AtLeast(
                task_id=task_id,
                task_name=name,
                status=status,
                parties={ME: roles},
                failed_by=None,
            )

        return AtLeast(
            job_id=self.job_id,
            job_status="RUNNING",
            status={self.task: "RUNNING", self.next_task: "READY"},
            outcome=None,
            progress=0,
            failed_by=None,
            scheduler=ME,
            warnings=[],
            tasks=[
                task("a", self.task, "RUNNING", "RUNNING"),
                task("b", self.next_task, "READY", "PENDING"),
            ],
        )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        spec = a_spec(
            "a -> b", {"guest": (ME,), "host": (ME,)}, job_id="job-platform", flow_id="flow of one"
        )
        site.node.coordinator.submit(spec)
        for label in ("guest.0", "host.0"):
            site.run(spec.job_id, label)
        job = site.node.store.jobs.get

        def up() -> bool:
            return {str(s) for s in job(spec.job_id).tasks["a"].nodes[ME].roles.values()} == {
                "RUNNING"
            }

        wait_for(up, 20, 0.02, "both parties run")
        tasks = job(spec.job_id).tasks
        yield Stage(site, spec.job_id, tasks["a"].task_id, tasks["b"].task_id)


def job_body(flow: str = "") -> dict[str, Any]:
    body = test_contract_peer.job_body(a_spec("a", {"guest": (ME,), "host": (ME,)}, flow_id=flow))
    del body["job_id"]
    return dict(body)


JOB_FIELDS = tuple(path for path in test_contract_peer.JOB_FIELDS if path != "job_id")
TASK = {
    "required": ("task_id", "log_level"),
    "optional": ("role",),
    "unknown": (NO_TASK,),
}
GET_OR_POST = {"methods": ("GET", "POST"), "in_query": True}
LINES = {
    "num": 0,
    "roles": ["guest.0", "host.0"],
    "over": False,
}
LOG = {
    "data": "",
    "start": 0,
    "next": 0,
    "left_out": 0,
    "parts": [],
} | LINES

ENDPOINTS = (
    Endpoint(
        "/job/create_all",
        lambda _: job_body(),
        lambda *_: DONE | {"data": {"job_id": ANY}},
        JOB_FIELDS,
        ("flow_id",),
    ),
    *(
        Endpoint(
            path,
            lambda s: {"job_id": s.job_id, "task_name": "b"},
            required=required,
            repeatable=False,
            unknown=(NO_JOB, NO_NAME),
        )
        for path, required in (
            ("/job/stop_all", ("job_id",)),
            ("/job/stop_task", ("job_id", "task_name")),
        )
    ),
    Endpoint(
        "/job/status_all",
        lambda s: {"job_id": s.job_id},
        lambda s, _: DONE | {"data": s.view()},
        required=("job_id",),
        unknown=(NO_JOB,),
        **GET_OR_POST,
    ),
    Endpoint(
        "/job/query_job_list",
        lambda _: {"flow_id": "flow of one"},
        lambda s, _: DONE | {"data": {"job_list": {s.job_id: "RUNNING"}}},
        methods=("GET",),
        in_query=True,
    ),
    Endpoint(
        "/task/get_log_line",
        lambda s: {"task_id": s.task, "log_level": "info"},
        lambda *_: DONE | {"data": LINES},
        **TASK,
        **GET_OR_POST,
    ),
    Endpoint(
        "/task/get_log",
        lambda s: {
            "task_id": s.task,
            "start": 0,
            "log_level": "info",
        },
        lambda *_: DONE | {"data": LOG},
        **TASK | {"required": ("task_id", "log_level", "start")},
        whole=("start",),
        **GET_OR_POST,
    ),
)
spelled = pytest.mark.parametrize("prefix", (PLATFORM, "/v2/schedule"))


def caller(stage: Stage, prefix: str) -> Caller:
    return Caller(stage.site.node, "operator", prefix, {})


@pytest.mark.parametrize("one", ENDPOINTS, ids=str)
def test_the_contract_of_a_path(stage: Stage, one: Endpoint):
    call = caller(stage, PLATFORM)

    def shown() -> Any:
        return (
            envelope(call("/job/status_all", {"job_id": stage.job_id}, "GET"))["data"]
            == stage.view()
        )

    contract.check(call, one, stage, shown)
    assert shown()
    contract.check_methods(caller(stage, "/v2/schedule"), one)
    if one.repeatable:
        contract.check_success(caller(stage, "/v2/schedule"), one, stage)


# ---------------------------------------------------------------- one by one


@spelled
def test_a_submitted_job_is_listed_and_stopped(stage: Stage, prefix: str):
    call = caller(stage, prefix)
    answer = call("/job/create_all", job_body("flow of another"))
    assert list(answer.json()) == ["code", "msg", "data"] and answer.json()["msg"] == "success"
    job_id = envelope(answer)["data"]["job_id"]
    listed = envelope(
        call("/job/query_job_list", None, "GET", params={"flow_id": "flow of another"})
    )
    assert job_id in listed["data"]["job_list"]
    everything = envelope(call("/job/query_job_list", None, "GET"))["data"]["job_list"]
    assert {job_id, stage.job_id} <= set(everything)
    assert envelope(call("/job/query_job_list", {"flow_id": "none"}, "GET")) == DONE | {
        "data": {"job_list": {}}
    }
    for _ in range(2):
        assert envelope(call("/job/stop_all", {"job_id": job_id})) == DONE
    store = stage.site.node.store
    wait_for(lambda: store.jobs.get(job_id).status is JobStatus.FINISHED, 20, 0.02)
    assert store.jobs.get(job_id).outcome is Outcome.STOPPED
    assert envelope(call("/job/stop_task", {"job_id": job_id, "task_name": "a"})) == DONE


def test_a_refusal_names_the_partner_and_quotes_it(stage: Stage):
    call, body = caller(stage, PLATFORM), job_body()
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
    answer = refused(call("/job/create_all", body), 409, "REFUSED")
    assert SPEC in answer["msg"] and "数据不可用" in answer["msg"]
    stage.site.peer.will(says())


def test_the_standards_registration(stage: Stage):
    call = caller(stage, PLATFORM)
    body = copy.deepcopy(A_COMPONENT)
    for _ in range(2):
        assert envelope(call("/component/register", body)) == DONE
    for field in ("imageUrl", "component_info"):
        assert contract.paths(call("/component/register", contract.without(body, field))) == {field}
    assert contract.paths(call("/component/register", {})) == {"imageUrl", "component_info"}
    for field in ("componentName", "roleList", "inputParam", "outputData"):
        wrong = contract.with_(body, f"component_info.{field}", 5)
        found = contract.paths(call("/component/register", wrong))
        assert found == {f"component_info.{field}"}
    for raw in contract.WRONG_BODIES:
        assert envelope(call("/component/register", None, content=raw))["code"] == 400
    contract.check_methods(call, Endpoint("/component/register", lambda _: body))
    contract.check_size(call, "/component/register")


def test_every_platform_path_is_in_the_table(stage: Stage):
    described: httpx.Response = caller(stage, "")("/openapi.json", None, "GET")
    paths = described.json()["paths"]
    mine = {p.removeprefix(PLATFORM) for p in paths if p.startswith(PLATFORM)}
    assert mine == {e.path for e in ENDPOINTS} | {"/component/register"}
    log = {one["name"]: one for one in paths[f"{PLATFORM}/task/get_log"]["get"]["parameters"]}
    assert {name for name, one in log.items() if one["required"]} == {
        "task_id",
        "log_level",
        "start",
    }
    assert (
        log["start"]["schema"]["type"] == "integer"
        and "debug" in log["log_level"]["schema"]["enum"]
    )
