"""A partner uses a table here and has its job deleted: what it used stays on record, whoever deletes."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from tests.builders import a_spec
from tests.contracts.apis import World, two_nodes
from tests.inprocess import ME, PEER, ask, uploaded

TABLE = "bank#credit"


def a_partners_job(world: World) -> JobSpec:
    """Run a job of `PEER` that reads a table of `ME`, to its end."""
    spec = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id=f"job-{uuid4().hex}")
    tables = {
        "guest": {"0": {"a": {"dataset_id": ""}}},
        "host": {"0": {"a": {"dataset_id": TABLE}}},
    }
    spec = replace(spec, task_params=tables)
    world.peer.coordinator.submit_job(spec, PEER)
    world.end_all(spec)
    world.wait_status(spec.job_id, JobStatus.FINISHED, world.peer)
    world.closed(spec.job_id, world.me, world.peer)
    return spec


def delete(
    world: World,
    node: Any,
    spec: JobSpec,
) -> None:
    answer = ask(node, "operator", "DELETE", f"/api/v1/jobs/{spec.job_id}")
    assert answer.status_code == 200, answer.text


def test_what_a_partner_used_stays_on_record_whoever_deletes_its_job(tmp_path: Path):
    """Attack: a partner reads a table and has the job deleted everywhere: nothing told of it any more."""
    with two_nodes(tmp_path) as world:
        uploaded(world.me, *TABLE.split("#"))
        spec = a_partners_job(world)
        before = world.shown(spec)
        lines = [line.event for line in world.me.store.timeline(spec.job_id)]
        delete(world, world.peer, spec)
        assert world.peer.store.jobs.find(spec.job_id) is None

        after = world.shown(spec)
        for kept in ("initiator", "parties", "parameters", "runs"):
            assert after[kept] == before[kept], kept
        (run,) = after["runs"]
        assert ask(world.me, "operator", "GET", run["log"]).status_code == 200
        assert [line.event for line in world.me.store.timeline(spec.job_id)] == [
            *lines,
            "deleted by a partner",
        ]
        query = {"action": spec.job_id, "who": f"node {PEER}"}
        entries = ask(world.me, "operator", "GET", "/api/v1/audit", params=query).json()["audit"]
        use = {
            "task": "a",
            "party": "host.0",
            "component": "vendor/Thing",
            "version": "1.0.0",
            "tables": [TABLE],
        }
        (used,) = [use for entry in entries for use in entry["detail"].get("used", ())]
        assert used.items() >= (use | {"attempts": 1}).items() and used["at"]

        delete(world, world.me, spec)
        assert world.me.store.local_jobs.find(spec.job_id) is None
        (line,) = world.me.store.timeline(spec.job_id)
        assert (line.event, line.detail["initiator"], line.detail["used"]) == (
            "job deleted",
            PEER,
            [used],
        )
