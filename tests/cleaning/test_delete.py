"""Deleting an ended job at every node, the outputs of one task, and all waiting jobs."""

from dataclasses import replace

import pytest

from gateway.domain.job import NodeJob
from gateway.domain.run import RunData
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import PeerUnreachable
from gateway.jobs import coordinator
from gateway.jobs.inheritance import InheritanceOffer
from gateway.ports import JobSelection
from provider_registry.registration import provider_from_request
from tests.builders import a_dag, a_job, a_local_job, returning
from tests.cleaning.ended import (
    a_job_over,
    a_spec_of,
    ago,
    are_stored,
    left_behind,
    logs_of,
    run_job,
    run_left_behind,
    store_running_job,
)
from tests.contracts.apis import registration
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import ME, PEER, pair
from tests.world import UNREACHABLE, NodeSetup

OUTSIDER = "JG0100003300000030"  # a node without a part in any job here

# Its partners do not respond.
NODE = NodeSetup(routes={PEER: UNREACHABLE, OUTSIDER: UNREACHABLE})


def delete(node, path, status=200, **query):
    """Delete a job, or something below it, and return the response's body."""
    response = node.request(
        "DELETE",
        f"/api/v1/jobs/{path}",
        params=query,
    )
    assert response.status_code == status, response.text
    return response.json()


def set_status(node, job_id, status):
    """Change the status of a job's record at a node that takes part in it."""

    def with_status(job):
        return replace(job, status=status)

    node.store.local_jobs.update(job_id, with_status)


def events_of(node, job_id):
    """Return the events of a job's timeline, each with the name of its cause."""
    timeline = node.store.timeline(job_id)
    return [(entry.event, entry.by) for entry in timeline]


def event_names(node, job_id):
    """Return the names of the events of a job's timeline."""
    return [event for event, _ in events_of(node, job_id)]


def lost_call(tries):
    """Build a call without a response, to be repeated in an hour."""
    return Call(
        CallState.LOST,
        sent_at=ago(1),
        due_at=ago(-3600),
        tries=tries,
    )


def test_a_deleted_job_is_gone_here_and_its_outputs_everywhere(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)

        body = delete(
            scheduler,
            job_id,
            reason="a test",
        )

        items = body["items"]
        kinds = {item["kind"] for item in items}
        assert kinds == {"outputs", "logs", "job"}
        assert all(item["removed"] for item in items)
        assert body["nodes"][PEER]["deleted"]
        assert scheduler.get(f"/api/v1/jobs/{job_id}").json()["code"] == 404
        assert events_of(scheduler, job_id) == [("job deleted", "operator")]
        for node in (scheduler, participant):
            outputs = list(node.storage.root.glob(f"{job_id}*"))
            assert outputs == []


def test_a_participant_may_not_delete_a_job_at_its_scheduling_node(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)

        body = delete(participant, job_id, reason="a test")

        refusal = body["nodes"][ME]
        assert refusal["reason"] == "NOT_AUTHORISED"
        assert "submitted" in refusal["message"]
        assert not refusal["deleted"]
        assert len(scheduler.store.timeline(job_id)) > 5


def test_a_job_that_still_runs_at_a_participant_is_not_deleted(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)
        set_status(participant, job_id, JobStatus.RUNNING)

        refusal = delete(scheduler, job_id, 409)

        assert refusal["data"]["reason"] == "JOB_NOT_ENDED"
        assert PEER in refusal["msg"]
        assert scheduler.store.record(job_id)

        set_status(participant, job_id, JobStatus.FINISHED)
        body = delete(scheduler, job_id, reason="a test")
        assert body["nodes"][PEER]["deleted"]


def test_a_dry_run_deletes_nothing_and_lists_the_same_items(node):
    run = run_left_behind(node, "job-dry", 5)

    dry_run = delete(
        node,
        "job-dry",
        here=1,
        dry_run=1,
    )

    assert dry_run["nodes"] is None
    assert not any(item["removed"] for item in dry_run["items"])
    assert dry_run["items"] != []
    assert logs_of(node, run).exists()
    assert all(are_stored(node, run))

    deletion = delete(
        node,
        "job-dry",
        here=1,
    )
    deleted_names = [item["name"] for item in deletion["items"]]
    assert deleted_names == [item["name"] for item in dry_run["items"]]
    assert not logs_of(node, run).exists()
    delete(node, "job-dry", 404)


def test_nothing_is_deleted_while_a_node_is_unreachable(node):
    run = run_left_behind(node, "job-far", 5)

    refusal = delete(node, "job-far", 503)

    assert refusal["data"]["nodes"][PEER]["reason"] == "PEER_UNREACHABLE"
    assert logs_of(node, run).exists()
    assert node.store.local_jobs.find("job-far")


def test_a_running_job_is_not_deleted(node):
    job = left_behind(node, "job-open", 5)
    set_status(node, "job-open", JobStatus.RUNNING)

    refusal = delete(node, "job-open", 409)

    assert refusal["data"]["reason"] == "JOB_NOT_ENDED"
    assert logs_of(node, job.runs[0]).exists()


def test_outputs_that_a_running_job_reads_are_not_deleted(node):
    run = run_left_behind(node, "job-needed", 5)
    model = run.data.outputs["model_name"]
    store_running_job(
        node,
        "job-reader",
        inputs={"in": model},
    )

    refusal = delete(node, "job-needed", 409)

    assert refusal["data"]["reason"] == "OUTPUTS_IN_USE"
    assert "job-reader" in refusal["msg"]
    # The two ways out.
    assert "job delete" in refusal["msg"]
    assert "model delete" in refusal["msg"]
    assert node.storage.exists(model)
    outputs = "job-needed/tasks/a/outputs"
    delete(node, outputs, 409)
    assert delete(node, outputs, content="metrics")["items"]


def test_exactly_the_jobs_that_need_an_output_are_named(node):
    run = run_left_behind(node, "job-first", 5)
    table = run.data.outputs["out_name"]
    model = run.data.outputs["model_name"]
    data = RunData(
        outputs={"out_name": table},
        output_keys={"out": "out_name"},
    )
    inherited_run = replace(
        run,
        of_job="job-first",
        data=data,
    )
    for job_id in ("job-heir-1", "job-heir-2"):
        store_inheriting_job(node, job_id, inherited_run)

    message = delete(node, "job-first", 409)["msg"]

    first_use = f"inherited by job job-heir-1: {table.namespace}#{table.name}"
    assert f"{first_use}; inherited by job job-heir-2" in message
    assert model.name not in message, "no job inherited the model"


def store_inheriting_job(node, job_id, run):
    """Store an ended job that inherited a run of another job."""
    spec = replace(
        a_spec_of(job_id),
        old_job_id=run.of_job,
    )
    job = replace(
        a_local_job(status=JobStatus.FINISHED),
        spec=spec,
        node=ME,
        inherited=(run,),
        runs=(),
        created_at=ago(2),
        ended_at=ago(1),
    )
    assert node.store.local_jobs.add(job, "flow")
    node.inheritance.keep(
        spec,
        InheritanceOffer(runs=[run]),
    )


def test_a_job_stays_while_a_node_has_not_confirmed_its_end(node):
    """A node that has refused the job has no end to confirm."""
    job = a_job(
        status=JobStatus.FINISHED,
        spec=a_spec_of("job-cut"),
    )
    peer = replace(
        job.nodes[PEER],
        stop=lost_call(tries=3),
    )
    refusing_node = NodeJob(OUTSIDER, create=Call(CallState.REFUSED, tries=1))
    ended = replace(
        job,
        outcome=Outcome.STOPPED,
        nodes={**job.nodes, PEER: peer, OUTSIDER: refusing_node},
        ended_at=ago(5),
        ending=Ending(Outcome.STOPPED, ago(5)),
    )
    assert node.store.jobs.add(ended, "flow")

    refusal = delete(node, "job-cut", 409)

    assert refusal["data"]["reason"] == "JOB_NOT_ENDED"
    assert PEER in refusal["msg"]
    assert OUTSIDER not in refusal["msg"]


def request_deletion(node, partner, job_id, **fields):
    """Have a partner request the deletion of a job's outputs; return the response's body."""
    headers = {
        "x-source-node-id": partner,
        "x-target-node-id": ME,
    }
    response = node.post(
        "/v1/interconn/schedule/job/delete",
        {"job_id": job_id, **fields},
        listener="peer",
        headers=headers,
    )
    return response.json()


def test_only_the_initiator_and_the_scheduling_node_may_have_a_job_deleted(node):
    left_behind(
        node,
        "job-x",
        5,
        scheduler=PEER,
    )

    # An outsider learns nothing: same response for an existing job and for an unknown one.
    for job_id in ("job-x", "job-none"):
        response = request_deletion(node, OUTSIDER, job_id)
        assert response["code"] == 0
    assert node.store.local_jobs.find("job-x")

    response = request_deletion(node, PEER, "job-x", dry_run=True)
    assert response["code"] == 0
    assert node.store.local_jobs.find("job-x")

    for _ in range(2):  # a repeated request changes nothing
        response = request_deletion(node, PEER, "job-x")
        assert response["code"] == 0
        assert node.store.local_jobs.find("job-x")
    assert events_of(node, "job-x") == [("deleted by a partner", PEER)]


def test_a_job_without_runs_is_deleted_with_its_record_for_a_partner(node):
    never_ran = replace(
        a_job_over(
            "job-unused",
            5,
            scheduler=PEER,
        ),
        runs=(),
    )
    assert node.store.local_jobs.add(never_ran, "flow")

    response = request_deletion(node, PEER, "job-unused")
    assert response["code"] == 0

    assert node.store.local_jobs.find("job-unused") is None


def test_outputs_and_metrics_of_a_task_are_deleted_separately(node):
    run = run_left_behind(node, "job-t", 5)
    outputs = "job-t/tasks/a/outputs"

    dry_run = delete(
        node,
        outputs,
        content="metrics",
        dry_run=1,
    )
    (item,) = dry_run["items"]
    assert item["removed"] is False
    assert all(are_stored(node, run))

    deletion = delete(node, outputs, content="metrics")
    assert len(deletion["items"]) == 1
    assert not node.storage.exists(run.data.outputs["report_name"])
    assert node.storage.exists(run.data.outputs["out_name"])

    deletion = delete(node, f"job-t/tasks/{run.task_id}/outputs")
    assert len(deletion["items"]) == 2
    deletion = delete(node, outputs)
    assert deletion["items"] == []

    timeline = node.store.timeline("job-t")
    assert [entry.event for entry in timeline] == ["outputs deleted"] * 2
    contents = [entry.detail["content"] for entry in timeline]
    assert contents == ["metrics", "outputs"]
    delete(node, "job-t/tasks/none/outputs", 404)


def test_a_job_submitted_to_a_silent_node_is_deleted_there_first(node):
    spec = a_spec_of("job-sent", scheduler=PEER)
    with pytest.raises(PeerUnreachable) as unreachable:
        node.job_requests.submit(spec)
    assert unreachable.value.job_id == "job-sent"
    assert node.store.scheduler_of("job-sent") == PEER
    statuses = node.job_statuses.jobs(JobSelection(spec.flow_id))
    assert statuses["job-sent"] is JobStatus.PENDING

    refusal = delete(node, "job-sent", 503)

    assert refusal["data"]["nodes"][PEER]["reason"] == "PEER_UNREACHABLE"


def test_a_job_without_a_response_from_every_node_can_be_cancelled(world, monkeypatch):
    node = world.node(NODE)
    node.registry.register(provider_from_request(registration()))
    monkeypatch.setattr(coordinator, "ACCEPT_WITHIN", 0.01)
    spec = replace(
        a_spec_of("job-unanswered"),
        dag=a_dag("a"),
    )

    with pytest.raises(
        PeerUnreachable, match=r"not every node has answered within 0\.01 s: "
    ) as caught:
        node.coordinator.submit_job(spec, ME)
    assert caught.value.node == PEER
    assert PEER in caught.value.message

    cancelled = node.job_requests.cancel_waiting("ann", dry_run=False)
    assert cancelled == ["job-unanswered"]


def store_job_with_lost_calls(node, job_id, status):
    """Store a job that waits for its nodes' responses if it is PENDING or READY."""
    job = a_job(
        status=status,
        spec=a_spec_of(job_id),
    )
    calls = {}
    if status is JobStatus.PENDING:
        calls["create"] = lost_call(tries=1)
    if status is JobStatus.READY:
        calls["start"] = lost_call(tries=1)
    nodes = {}
    for node_id, node_job in job.nodes.items():
        nodes[node_id] = replace(node_job, **calls)
    tasks = {}
    for name, task in job.tasks.items():
        tasks[name] = replace(
            task,
            task_id=f"task_{job_id}_{name}",
        )
    job = replace(
        job,
        nodes=nodes,
        tasks=tasks,
        created_at=ago(1),
    )
    assert node.store.jobs.add(job, "flow")


def cancel_waiting(node, **body):
    """Cancel the waiting jobs by the operators' API and return their ids."""
    return node.post("/api/v1/jobs/cancel-waiting", body).json()["jobs"]


def test_exactly_the_waiting_jobs_are_cancelled(world):
    # A node of its own: a waiting job of another test would be cancelled, too.
    node = world.node(NODE)
    store_job_with_lost_calls(node, "job-1", JobStatus.PENDING)
    store_job_with_lost_calls(node, "job-2", JobStatus.PENDING)
    store_job_with_lost_calls(node, "job-3", JobStatus.RUNNING)
    store_job_with_lost_calls(node, "job-4", JobStatus.READY)
    waiting = ["job-1", "job-2", "job-4"]

    assert cancel_waiting(node, dry_run=True) == waiting
    assert node.store.jobs.get("job-4").ending is None

    assert cancel_waiting(node) == waiting
    assert cancel_waiting(node) == []
    for job_id in waiting:
        ending = node.store.jobs.get(job_id).ending
        assert ending.outcome is Outcome.STOPPED
        assert "while it waited" in ending.failure.message
        assert "ending as STOPPED" in event_names(node, job_id)
    assert "ending as STOPPED" not in event_names(node, "job-3")


def test_a_job_deleted_while_waiting_jobs_are_cancelled_is_skipped(node, monkeypatch):
    monkeypatch.setattr(
        node.store.jobs,
        "in_state",
        returning(["job-deleted"]),
    )
    assert cancel_waiting(node) == []
