"""Deleting: an ended job at every node, outputs of one task, and all waiting jobs; each leaves its line."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import PeerUnreachable
from gateway.jobs import coordinator
from gateway.jobs.inheritance import Offer
from provider_registry.registration import provider_from_request
from tests.builders import a_dag, a_job, a_local_job
from tests.cleaning.ended import a_job_over, a_spec_of, ago, left_behind, logs_of, played, under_way
from tests.contracts.apis import registration
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import ME, PEER, ask, pair, running

STRANGER = "JG0100003300000030"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node whose partners do not answer."""
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(
        "".join(f"{n}: {{host: 127.0.0.1, port: 9}}\n" for n in (PEER, STRANGER))
    )
    with running(home) as node:
        yield node


def delete(
    node: Gateway,
    path: str,
    status: int = 200,
    **query,
):
    answer = ask(node, "operator", "DELETE", f"/api/v1/jobs/{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_deleted_job_is_gone_here_and_its_outputs_everywhere(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (me, peer):
        job_id = played(tmp_path / "register", me, peer)
        refused = delete(peer, job_id, reason="a test")["nodes"][ME]
        assert refused["reason"] == "NOT_AUTHORISED"
        assert "submitted" in refused["message"]
        assert not refused["deleted"]
        assert len(me.store.timeline(job_id)) > 5
        job_id = played(tmp_path / "register", me, peer)
        ended = peer.store.local_jobs.get(job_id)
        peer.store.local_jobs.update(job_id, lambda job: replace(job, status=JobStatus.RUNNING))
        early = delete(me, job_id, 409)
        assert early["data"]["reason"] == "JOB_NOT_ENDED"
        assert PEER in early["msg"]
        assert me.store.record(job_id)
        peer.store.local_jobs.update(job_id, lambda _: ended)
        answer = delete(me, job_id, reason="a test")
        assert {i["kind"] for i in answer["items"]} == {"outputs", "logs", "job"}
        assert all(i["removed"] for i in answer["items"])
        assert answer["nodes"][PEER]["deleted"]
        assert ask(me, "operator", "GET", f"/api/v1/jobs/{job_id}").json()["code"] == 404
        assert [(e.event, e.by) for e in me.store.timeline(job_id)] == [("job deleted", "operator")]
        for node in (me, peer):
            assert list(node.storage.root.glob(f"{job_id}*")) == []


def test_neither_a_dry_run_nor_an_unreachable_node_deletes_anything(node):
    run = left_behind(node, "job-dry", 5).runs[0]
    listed = delete(node, "job-dry", here=1, dry_run=1)
    assert listed["nodes"] is None
    assert {i["removed"] for i in listed["items"]} == {False}
    assert logs_of(node, run).exists()
    assert all(node.storage.exists(a) for a in run.outputs.values())
    refused = delete(node, "job-dry", 503)
    assert refused["data"]["nodes"][PEER]["reason"] == "PEER_UNREACHABLE"
    assert logs_of(node, run).exists()
    assert node.store.local_jobs.find("job-dry")
    done = delete(node, "job-dry", here=1)
    assert [i["name"] for i in done["items"]] == [i["name"] for i in listed["items"]]
    assert not logs_of(node, run).exists()
    delete(node, "job-dry", 404)


def test_a_running_or_needed_job_is_not_deleted(node):
    open_ = left_behind(node, "job-open", 5)
    node.store.local_jobs.update("job-open", lambda job: replace(job, status=JobStatus.RUNNING))
    assert delete(node, "job-open", 409)["data"]["reason"] == "JOB_NOT_ENDED"
    assert logs_of(node, open_.runs[0]).exists()

    needed = left_behind(node, "job-needed", 5).runs[0].outputs["model_name"]
    under_way(node, "job-reader", inputs={"in": needed})
    refused = delete(node, "job-needed", 409)
    assert refused["data"]["reason"] == "OUTPUTS_IN_USE"
    assert "job-reader" in refused["msg"]
    assert "job delete" in refused["msg"]
    assert "model delete" in refused["msg"]  # what to do next
    assert node.storage.exists(needed)
    delete(node, "job-needed/tasks/a/outputs", 409)
    assert delete(node, "job-needed/tasks/a/outputs", content="metrics")["items"]


def test_exactly_the_jobs_that_need_an_output_are_named(node):
    run = left_behind(node, "job-first", 5).runs[0]
    table, model = run.outputs["out_name"], run.outputs["model_name"]
    taken = replace(
        run,
        of_job="job-first",
        outputs={"out_name": table},
        output_keys={"out": "out_name"},
    )
    for heir in ("job-heir-1", "job-heir-2"):
        spec = replace(a_spec_of(heir), old_job_id="job-first")
        later = replace(
            a_local_job(status=JobStatus.FINISHED),
            spec=spec,
            node=ME,
            inherited=(taken,),
        )
        assert node.store.local_jobs.add(
            replace(
                later,
                runs=(),
                created_at=ago(2),
                ended_at=ago(1),
            ),
            "flow",
        )
        node.inheritance.keep(spec, Offer(runs=[taken]))
    told = delete(node, "job-first", 409)["msg"]
    assert (
        f"inherited by job job-heir-1: {table.namespace}#{table.name}; inherited by job job-heir-2"
        in told
    )
    assert model.name not in told, "nobody took that over"


def test_a_job_stays_while_a_node_has_not_confirmed_its_end(node):
    job = a_job(status=JobStatus.FINISHED, spec=a_spec_of("job-cut"))
    lost = Call(
        CallState.LOST,
        sent_at=ago(1),
        due_at=ago(-3600),
        tries=3,
    )
    told = {ME: job.nodes[ME], PEER: replace(job.nodes[PEER], stop=lost)}
    ended = replace(
        job,
        outcome=Outcome.STOPPED,
        nodes=told,
        ended_at=ago(5),
        ending=None,
    )
    ended = replace(ended, ending=Ending(Outcome.STOPPED, ago(5)))
    assert node.store.jobs.add(ended, "flow")
    refused = delete(node, "job-cut", 409)
    assert refused["data"]["reason"] == "JOB_NOT_ENDED"
    assert PEER in refused["msg"]


def test_only_the_initiator_and_the_scheduling_node_may_have_a_job_deleted(node):
    left_behind(node, "job-x", 5, scheduler=PEER)

    def asks(
        who: str,
        job_id: str = "job-x",
        **more,
    ):
        headers = {"x-source-node-id": who, "x-target-node-id": ME}
        body = {"job_id": job_id} | more
        return ask(
            node, "peer", "POST", "/v1/interconn/schedule/job/delete", json=body, headers=headers
        ).json()

    assert asks(STRANGER)["code"] == 0 and node.store.local_jobs.find("job-x"), (
        "who has no part learns nothing"
    )
    assert asks(PEER, dry_run=True)["code"] == 0
    assert node.store.local_jobs.find("job-x")
    for _ in range(2):  # a repeat is harmless
        assert asks(PEER)["code"] == 0
        assert node.store.local_jobs.find("job-x")
    assert asks(STRANGER, "job-none")["code"] == 0
    assert [(e.event, e.by) for e in node.store.timeline("job-x")] == [
        ("deleted by a partner", PEER)
    ]
    never_ran = replace(a_job_over("job-unused", 5, scheduler=PEER), runs=())
    assert node.store.local_jobs.add(never_ran, "flow")
    assert asks(PEER, "job-unused")["code"] == 0
    assert node.store.local_jobs.find("job-unused") is None


def test_outputs_and_metrics_of_a_task_are_deleted_separately(node):
    run = left_behind(node, "job-t", 5).runs[0]
    where = "job-t/tasks/a/outputs"
    listed = delete(node, where, content="metrics", dry_run=1)
    assert [i["removed"] for i in listed["items"]] == [False]
    there = {
        key: node.storage.exists(run.outputs[f"{key}_name"]) for key in ("out", "model", "report")
    }
    assert all(there.values())
    assert len(delete(node, where, content="metrics")["items"]) == 1
    assert not node.storage.exists(run.outputs["report_name"])
    assert node.storage.exists(run.outputs["out_name"])
    assert len(delete(node, f"job-t/tasks/{run.task_id}/outputs")["items"]) == 2
    assert delete(node, where)["items"] == []
    lines = [(e.event, e.detail["content"]) for e in node.store.timeline("job-t")]
    assert lines == [("outputs deleted", "metrics"), ("outputs deleted", "outputs")]
    delete(node, "job-t/tasks/none/outputs", 404)


def test_a_job_submitted_to_a_silent_node_is_deleted_there_first(node, monkeypatch):
    sent = a_spec_of("job-sent", scheduler=PEER)
    with pytest.raises(PeerUnreachable) as silent:
        node.coordinator.submit(sent)
    assert silent.value.job_id == "job-sent"
    assert node.store.scheduler_of("job-sent") == PEER
    assert node.coordinator.jobs(sent.flow_id)["job-sent"] is JobStatus.PENDING
    refused = delete(node, "job-sent", 503)
    assert refused["data"]["nodes"][PEER]["reason"] == "PEER_UNREACHABLE"
    node.registry.register(provider_from_request(registration()))
    monkeypatch.setattr(coordinator, "ANSWER_WITHIN", 0.01)
    with pytest.raises(PeerUnreachable, match=r"not every node has answered within 0\.01 s"):
        node.coordinator.submit_job(
            replace(
                sent,
                job_id="job-unanswered",
                scheduler=ME,
                dag=a_dag("a"),
            ),
            ME,
        )
    assert node.coordinator.cancel_waiting("ann", dry_run=False) == ["job-unanswered"]


def test_exactly_the_waiting_jobs_are_cancelled(node, monkeypatch):
    late = Call(
        CallState.LOST,
        sent_at=ago(1),
        due_at=ago(-3600),
        tries=1,
    )
    for name, status in (
        ("job-1", JobStatus.PENDING),
        ("job-2", JobStatus.PENDING),
        ("job-3", JobStatus.RUNNING),
        ("job-4", JobStatus.READY),
    ):
        job = a_job(status=status, spec=a_spec_of(name))
        waits = {JobStatus.PENDING: "create", JobStatus.READY: "start"}.get(status)
        nodes = {n: replace(j, **{waits: late}) if waits else j for n, j in job.nodes.items()}
        tasks = {n: replace(t, task_id=f"task_{name}_{n}") for n, t in job.tasks.items()}
        assert node.store.jobs.add(
            replace(
                job,
                nodes=nodes,
                tasks=tasks,
                created_at=ago(1),
            ),
            "flow",
        )

    def cancel(**body):
        return ask(node, "operator", "POST", "/api/v1/jobs/cancel-waiting", json=body).json()[
            "jobs"
        ]

    with monkeypatch.context() as patch:
        patch.setattr(node.store.jobs, "in_state", lambda *_: ["job-deleted-meanwhile"])
        assert cancel() == []
    waiting = ["job-1", "job-2", "job-4"]
    assert cancel(dry_run=True) == waiting
    assert node.store.jobs.get("job-4").ending is None
    assert cancel() == waiting
    assert cancel() == []
    for name in waiting:
        ending = node.store.jobs.get(name).ending
        assert ending.outcome is Outcome.STOPPED
        assert "while it waited" in ending.failure.message
        assert "ending as STOPPED" in [e.event for e in node.store.timeline(name)]
    assert "ending as STOPPED" not in [e.event for e in node.store.timeline("job-3")]
