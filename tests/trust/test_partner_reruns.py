"""A partner has a job of ours run again: what is asked of it is what is asked of a job of its own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.approval import Verdict
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError
from gateway.identity.keys import Keyring
from route_table.editing import Change
from tests.builders import a_spec
from tests.contracts.apis import World, two_nodes
from tests.inprocess import ME, PEER, ask, uploaded
from tests.trust.agreeing import contract

DATASET = "bank#credit"


def our_job(world: World) -> JobSpec:
    """Run a job that `ME` has submitted and schedules, with a table of each node, to its end."""
    uploaded(world.me, *DATASET.split("#"), b"id,income\na,1\n")
    uploaded(world.peer, "shop", "sales")
    uploaded(world.peer, "shop", "chosen-later")
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)}, job_id=f"job-{uuid4().hex}")
    spec = replace(
        spec,
        task_params={
            "guest": {"0": {"a": {"dataset_id": DATASET}}},
            "host": {"0": {"a": {"dataset_id": "shop#sales"}}},
        },
    )
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.outcome is Outcome.SUCCEEDED
    return spec


def rerun(world: World, spec: JobSpec) -> str:
    """Have `PEER` run a job again with data of its own; return the new job's id."""
    changes = {"host": {"0": {"a": {"dataset_id": "shop#chosen-later"}}}}
    return world.peer.coordinator.rerun(spec.job_id, "a", changes).job_id


def a_rule(decide: Verdict, **patterns: str) -> dict[str, Any]:
    return {
        "mode": "rules",
        "rules": [
            {
                "source": PEER,
                "decide": str(decide),
                **patterns,
            }
        ],
    }


@pytest.mark.parametrize(
    ("settings", "entry", "reason"),
    [
        ({"approval": a_rule(Verdict.REJECT)}, {}, "NOT_AUTHORISED"),
        ({"approval": a_rule(Verdict.REJECT, dataset=DATASET)}, {}, "NOT_AUTHORISED"),
        ({}, {"components": ["vendor/Other"]}, "NOT_AUTHORISED"),
        ({"trust": {"level": "permit"}}, {}, "PERMIT_MISSING"),
        ({}, {"bundles": "required"}, "BUNDLE_MISSING"),
    ],
    ids=["rule", "rule for a table", "components", "permit", "bundle"],
)
def test_what_refuses_a_partners_job_refuses_its_rerun_of_ours(
    tmp_path: Path,
    settings: Mapping[str, Any],
    entry: Mapping[str, Any],
    reason: str,
):
    """Attack: it sends the id of our job and data of its own; nothing was asked, and we signed the bundle."""
    for node in (ME, PEER):
        Keyring(tmp_path / node / "state").make("ed25519")
    with two_nodes(tmp_path, me=settings) as world:
        contract(world.peer, world.me)
        spec = our_job(world)
        world.me.routes.edit(Change(PEER, entry, replaces=False), "ann", "a test")
        with pytest.raises(GatewayError) as refused:
            rerun(world, spec)
        assert refused.value.reason == reason
        record = world.me.store.jobs.get(refused.value.job_id)
        assert (record.spec.initiator, record.outcome) == (PEER, Outcome.REJECTED)
        assert world.me.store.local_jobs.find(record.id) is None
        assert {launch.labels["bfia.job"] for launch in world.engine().launches} == {spec.job_id}


def test_a_person_decides_on_a_partners_rerun_of_our_job(tmp_path: Path):
    with two_nodes(tmp_path, me={"approval": {"mode": "person"}}) as world:
        spec = our_job(world)  # our own needs nobody
        again = replace(spec, job_id=rerun(world, spec))
        (waiting,) = ask(world.me, "operator", "GET", "/api/v1/approvals").json()["approvals"]
        assert (waiting["job_id"], waiting["initiator"]) == (again.job_id, PEER)
        assert world.decide(again, "approve").status_code == 200
        world.end_all(again)
        assert world.wait_status(again.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED
        ours = world.me.coordinator.rerun(spec.job_id, "a", {}).job_id  # nor does our own rerun
        assert world.local(ours).approval is None and world.local(ours).spec.initiator == ME


def test_reruns_of_our_job_count_for_the_partner_that_asks(tmp_path: Path):
    with two_nodes(tmp_path, me={"limits": {"partner_jobs": 2}}) as world:
        spec = our_job(world)
        made = [rerun(world, spec) for _ in range(2)]
        with pytest.raises(GatewayError) as refused:
            rerun(world, spec)
        assert refused.value.reason == "PARTNER_QUOTA"
        assert world.me.coordinator.rerun(spec.job_id, "a", {}).job_id, "ours do not count for it"
        world.me.coordinator.stop_job(made[0], "", "")
        world.wait_status(made[0], JobStatus.FINISHED)
        assert rerun(world, spec)
