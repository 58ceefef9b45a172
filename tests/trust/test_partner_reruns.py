"""A partner reruns a job of this node: the rules are the same as for a job of its own."""

from dataclasses import replace
from uuid import uuid4

import pytest

from gateway.domain.approval_rules import Verdict
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError
from gateway.identity.keys import Keyring
from route_table.editing import Change
from tests.builders import a_spec
from tests.contracts.apis import two_nodes
from tests.inprocess import ME, PEER, ask, uploaded
from tests.trust.agreeing import make_contract

DATASET = "bank#credit"  # of `ME`
FIRST_DATASET = "shop#sales"  # of `PEER`, in the job
SECOND_DATASET = "shop#chosen-later"  # of `PEER`, in its rerun


def run_our_job(world):
    """Run a job that `ME` submits and schedules, with a table of each node, to its end."""
    uploaded(world.me, *DATASET.split("#"), b"id,income\na,1\n")
    uploaded(world.peer, *FIRST_DATASET.split("#"))
    uploaded(world.peer, *SECOND_DATASET.split("#"))
    params = {
        "guest": {"0": {"a": {"dataset_id": DATASET}}},
        "host": {"0": {"a": {"dataset_id": FIRST_DATASET}}},
    }
    spec = a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id=f"job-{uuid4().hex}",
        task_params=params,
    )
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.outcome is Outcome.SUCCEEDED
    return spec


def rerun_by_peer(world, spec):
    """Have `PEER` rerun a job with other data of its own; return the new job's id."""
    changes = {"host": {"0": {"a": {"dataset_id": SECOND_DATASET}}}}
    return world.peer.job_requests.rerun(spec.job_id, "a", changes).job_id


def rejection_rule(**patterns):
    """Return settings by which jobs of `PEER` that match the patterns are rejected."""
    rule = {"source": PEER, "decide": str(Verdict.REJECT), **patterns}
    return {"approval": {"mode": "rules", "rules": [rule]}}


@pytest.mark.parametrize(
    ("settings", "entry", "reason"),
    [
        (rejection_rule(), {}, "NOT_AUTHORISED"),
        (rejection_rule(dataset=DATASET), {}, "NOT_AUTHORISED"),
        ({}, {"components": ["vendor/Other"]}, "NOT_AUTHORISED"),
        ({"trust": {"level": "permit"}}, {}, "PERMIT_MISSING"),
        ({}, {"bundles": "required"}, "BUNDLE_MISSING"),
    ],
    ids=["rule", "rule for a table", "components", "permit", "bundle"],
)
def test_a_partners_rerun_is_refused_like_a_job_of_its_own(tmp_path, settings, entry, reason):
    """Attack: `PEER` sends the id of our job, whose bundle we have signed, and other data."""
    for node in (ME, PEER):
        Keyring(tmp_path / node / "state").make("ed25519")
    with two_nodes(tmp_path, me=settings) as world:
        make_contract(world.peer, world.me)
        spec = run_our_job(world)
        world.me.routes.edit(
            Change(
                PEER,
                entry,
                replaces=False,
            ),
            "ann",
            "a test",
        )

        with pytest.raises(GatewayError) as refusal:
            rerun_by_peer(world, spec)

        assert refusal.value.reason == reason
        record = world.me.store.jobs.get(refusal.value.job_id)
        assert record.spec.initiator == PEER
        assert record.outcome is Outcome.REJECTED
        assert world.me.store.local_jobs.find(record.id) is None
        launched_jobs = {launch.labels["bfia.job"] for launch in world.engine().launches}
        assert launched_jobs == {spec.job_id}


def test_a_person_decides_on_a_partners_rerun_of_our_job(tmp_path):
    with two_nodes(tmp_path, me={"approval": {"mode": "person"}}) as world:
        spec = run_our_job(world)  # needs no approval: it is our own

        rerun = replace(
            spec,
            job_id=rerun_by_peer(world, spec),
        )

        response = ask(world.me, "operator", "GET", "/api/v1/approvals")
        [approval] = response.json()["approvals"]
        assert approval["job_id"] == rerun.job_id
        assert approval["initiator"] == PEER
        assert world.decide(rerun, "approve").status_code == 200
        world.end_all(rerun)
        job = world.wait_status(rerun.job_id, JobStatus.FINISHED)
        assert job.outcome is Outcome.SUCCEEDED


def test_our_rerun_of_our_job_needs_no_approval(tmp_path):
    with two_nodes(tmp_path, me={"approval": {"mode": "person"}}) as world:
        spec = run_our_job(world)

        rerun_id = world.me.job_requests.rerun(spec.job_id, "a", {}).job_id

        local_job = world.local(rerun_id)
        assert local_job.approval is None
        assert local_job.spec.initiator == ME


def test_reruns_of_our_job_count_for_the_partner_that_requests_them(tmp_path):
    with two_nodes(tmp_path, me={"limits": {"partner_jobs": 2}}) as world:
        spec = run_our_job(world)
        first_rerun = rerun_by_peer(world, spec)
        rerun_by_peer(world, spec)

        with pytest.raises(GatewayError) as refusal:
            rerun_by_peer(world, spec)

        assert refusal.value.reason == "PARTNER_QUOTA"
        our_rerun = world.me.job_requests.rerun(
            spec.job_id,
            "a",
            {},
        )
        assert our_rerun.job_id, "our own reruns do not count for the partner"
        world.me.coordinator.stop_job(first_rerun, "", "")
        world.wait_status(first_rerun, JobStatus.FINISHED)
        assert rerun_by_peer(world, spec)
