"""Who does not say, or show, who it is ends no task: neither a container of another run nor another node."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from gateway.domain.run import Run
from gateway.domain.states import TaskStatus
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import KUSCIA, SPEC, Site, a_job_with, serving_site
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask
from tests.memory_engine import MemoryEngine

CONTAINER = "/v1/platform/schedule/task/callback"
PEERS = "/v1/interconn/schedule/task/callback"
_numbers = count()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def run(site: Site) -> Run:
    """A run of this node's, whose container is up."""
    job_id = f"job-callback-{next(_numbers)}"
    site.node.coordinator.submit(a_spec("a", {"guest": (ME,)}, job_id=job_id))
    return site.run(job_id, "guest.0")


def report(site: Site, run: Run, token: str = "", **changes: str) -> str:
    """Report a success as a container; return the reason of the refusal, if it is refused."""
    body = {"task_id": run.task_id, "role": "guest", "status": "SUCCESS"} | changes
    params = {"run": token} if token else {}
    data = ask(site.node, "container", "POST", CONTAINER, json=body, params=params).json()["data"]
    return str(data.get("reason", ""))


def reported(site: Site, run: Run) -> TaskStatus | None:
    job_id = site.node.store.job_of_run(run.run_id)
    assert job_id is not None
    return next(r for r in site.node.store.local_jobs.get(job_id).runs if r.run_id == run.run_id).reported


def located(site: Site, run: Run, address: str) -> None:
    assert isinstance(site.node.engine, MemoryEngine)
    site.node.engine.addresses[run.name] = address


def test_a_report_without_token_is_refused_from_another_containers_address(site: Site, run: Run):
    for role in ("guest", "guest.0", ""):  # the engine knows no address of the run
        assert report(site, run, role=role) == "NOT_AUTHORISED"
    located(site, run, "172.30.0.7")
    assert report(site, run) == "NOT_AUTHORISED"
    assert reported(site, run) is not TaskStatus.SUCCESS


def test_an_image_that_rebuilds_the_url_is_recognised_by_its_address(site: Site, run: Run):
    located(site, run, "127.0.0.1")
    assert report(site, run, role="host") == "NOT_AUTHORISED"
    assert report(site, run) == ""
    assert reported(site, run) is TaskStatus.SUCCESS


def test_the_runs_token_is_enough(site: Site, run: Run):
    assert report(site, run, token=site.node.run_tokens.issue(run.run_id), task_id="", role="") == ""
    assert reported(site, run) is TaskStatus.SUCCESS


@pytest.mark.parametrize("sender", ["", SPEC, KUSCIA, ME, "JG0000000000000404"])
def test_a_node_reports_for_itself_only(site: Site, sender: str):
    """The one host of this job is a node of FATE's; an empty sender was taken for it, as it has the role."""
    site.peer.will(says())
    spec = a_job_with("JG0100000000000002")
    site.node.coordinator.submit(spec)
    task = wait_for(lambda: next(iter(site.node.store.jobs.get(spec.job_id).tasks.values())), 10)
    body: dict[str, Any] = {"task_id": task.task_id, "role": "host", "status": "FAILED"}
    headers = {"x-source-node-id": sender} if sender else {}
    said = ask(site.node, "peer", "POST", PEERS, json=body, headers=headers).json()
    after = site.node.store.jobs.get(spec.job_id).tasks["a"]
    assert all(status is not TaskStatus.FAILED for part in after.nodes.values() for status in part.roles.values())
    if sender != ME:  # which plays the guest, so that news of the host has no effect
        assert said["data"]["reason"] == "NOT_AUTHORISED"
    site.node.coordinator.stop(spec.job_id, "")
