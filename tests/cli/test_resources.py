"""``bfia-gateway resources``: the totals, holders and waiting jobs, for people and for scripts."""

from functools import partial
from typing import Any

import pytest

from engines.base import Capacity
from gateway.domain.resources import Amounts, Pool
from gateway.domain.run import LocalJob
from gateway.domain.spec import moment
from gateway.domain.states import JobStatus
from gateway.errors import Refused
from tests.builders import a_local_job, a_spec
from tests.cli import call_node, json_from_node
from tests.inprocess import ME, Node, running
from tests.memory_engine import MemoryEngine

GIB = 2**30

cli = partial(call_node, "resources")


@pytest.mark.parametrize("gpus", [0, 2])
def test_gpus_and_foreign_use_are_shown_if_there_are_any(tmp_path, gpus):
    used_by_others = Capacity(gpus / 2, 0)
    capacity = Capacity(4, 8 * GIB, gpus, used_by_others)
    engine = MemoryEngine.making(
        {},
        capacity=capacity,
    )
    has_gpus = gpus > 0
    with running(tmp_path, make_engine=engine) as node:
        resources = json_from_node("resources", node)
        lines = cli(node).stdout.splitlines()
        metrics = node.get("/metrics").text

    assert resources["total"]["gpu"] == gpus
    assert resources["remaining"]["gpu"] == gpus
    heading = next(line for line in lines if "cpu" in line)
    assert ("gpu" in heading) == has_gpus
    cpus_of_others = [line.split()[2] for line in lines if "others" in line]
    expected = ["1"] if has_gpus else []
    assert cpus_of_others == expected
    assert ('free{kind="gpu"} 2.0' in metrics) == has_gpus


def request_pool(
    node: Node,
    job_id: str,
    gib: float,
) -> LocalJob:
    """Store a job that needs so much memory."""
    job = a_local_job(
        spec=a_spec(job_id=job_id),
        node=ME,
        status=JobStatus.READY,
        created_at=node.clock(),
        pool=Pool(Amounts.of(memory=gib * GIB), 1),
    )
    node.store.local_jobs.add(job, "flow")
    return job


def test_the_totals_are_those_of_holders_and_waiting_jobs(tmp_path):
    with running(tmp_path, resources={"memory_gib": 2}) as node:
        node.resources.hold(request_pool(node, "job-first", 1.5))
        second = request_pool(node, "job-second", 1.0)
        with pytest.raises(Refused) as refused:
            node.resources.hold(second)

        resources = json_from_node("resources", node)
        assert resources == node.get("/api/v1/resources").json()
        check_totals(resources)
        claim = next(c for c in node.resources.ledger().holders if c.job_id == "job-first")
        (holder,) = resources["holders"]
        assert holder["job_id"] == "job-first"
        assert holder["memory_gib"] == 1.5
        assert holder["since"] == claim.held_at.isoformat()
        (waiting,) = resources["waiting"]
        assert waiting["job_id"] == "job-second"

        printed = cli(node)
        assert printed.exit_code == 0
        assert f"node {ME}" in printed.stdout
        assert "job-first" in printed.stdout
        assert moment(claim.held_at) in printed.stdout
        cause = refused.value.message.split(",")[0]
        assert cause in " ".join(printed.stdout.split())

        node.resources.give_back("job-first")
        node.resources.hold(second)
        check_holder_since_its_start(node, "job-second")


def check_totals(resources: Any) -> None:
    """Check that held and remaining amounts add up to the total."""
    for kind in ("cpu", "memory_gib", "disk_gib"):
        amounts = [holder[kind] for holder in resources["holders"]]
        total = resources["total"][kind]
        assert resources["held"][kind] == sum(amounts)
        assert resources["remaining"][kind] == total - sum(amounts)
    assert resources["remaining"]["memory_gib"] == 0.5


def check_holder_since_its_start(node: Node, job_id: str) -> None:
    """Check that the only holder holds since it got its resources, not since its request."""
    (claim,) = node.resources.ledger().holders
    assert claim.held_at is not None
    assert claim.held_at > claim.since
    (holder,) = node.resources.view()["holders"]
    assert holder["job_id"] == job_id
    assert holder["since"] == claim.held_at.isoformat()
