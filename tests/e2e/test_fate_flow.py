"""A published FATE-Flow 2.2.0 and real nodes run jobs together in FATE's own protocol.

FATE-Flow has an environment of its own (``make .venv-fate-flow/.done``) with its server, its
SQLite and its scheduling interval of two seconds. FATE's algorithms are not installed; both sides
run a component that only reports. All jobs of the module run at the same time, because FATE-Flow
takes its time over each.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_PROVIDER
from adapter.fate.signing import Signatures
from gateway.config.schema.partners import FateApp
from gateway.config.schema.partners import FateSite as SiteSettings
from tests.e2e.fate_pair import CAREFUL, ENDED, OURS, PARTNER, SUCCEEDED, THEIRS, Pair, ShownJob
from tests.e2e.fate_site import PYTHON, FateSite
from tests.e2e.jobs import SCHEDULE, STOP, job_of
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tests.e2e.recorder import Exchange, Recorder
from tests.plain import NO_TLS

pytestmark = [pytest.mark.fate_flow, pytest.mark.slow, pytest.mark.xdist_group("fate_flow")]

TASK = ["/task/resource/apply", "/task/status/update", "/task/start"]
LONG = 600  # seconds; ended by a stop


def make_worker(folder: Any) -> Any:
    """Write the program that FATE-Flow starts for each task; return its path."""
    folder.mkdir()
    worker = folder / "worker"
    worker.write_text(f'#!/bin/sh\nexec {PYTHON} {ROOT}/tests/e2e/fate_worker.py "$@"\n')
    worker.chmod(0o755)
    return worker


def agree_on_signatures(
    site: FateSite,
    node: Node,
    port: int,
) -> tuple[FateApp, FateApp]:
    """Give a node and the site applications for each other, and the node a route by the proxy.

    Returns the node's application for FATE-Flow's signatures, and FATE-Flow's for the node's.
    """
    route = {
        "host": "127.0.0.1",
        "port": port,
        "profile": "fate-partner",
    }
    node.route(**{THEIRS: route})
    our_app = FateApp(
        app_id="73391027",
        app_token=f"what {node.id} gave",
    )
    their_app = site.admit(node.id, our_app)
    partner = {
        "device": "local",
        "sends": their_app.model_dump(),
        "expects": our_app.model_dump(),
    }
    node.settings["fate"] = {
        "enabled": True,
        "sites": {THEIRS: partner},
    }
    return our_app, their_app


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("fate-flow")
    register = home / "register"
    register.mkdir()
    patient = [sys.executable, str(ROOT / "tests/e2e/patient.py")]
    engine = process_engine("example:1.0.0", command=patient)
    federation = Federation(
        home / "nodes",
        [OURS, CAREFUL],
        engine,
    )
    node = federation[OURS]
    careful = federation[CAREFUL]
    careful.settings["approval"] = {"mode": "person"}
    with Recorder() as proxy, FateSite(THEIRS, home / "fate", proxy.port) as site:
        signing: dict[str, SiteSettings] = {}
        app_for_careful, _ = agree_on_signatures(site, careful, proxy.port)
        signing[CAREFUL] = SiteSettings(sends=app_for_careful)
        app_for_node, app_of_node = agree_on_signatures(site, node, proxy.port)
        signing[OURS] = SiteSettings(sends=app_for_node)
        signing[THEIRS] = SiteSettings(sends=app_of_node)
        with federation:
            proxy.ports = {
                THEIRS: site.port,
                OURS: node.peer_port,
                CAREFUL: careful.peer_port,
            }
            site.register(
                "example",
                "1.0.0",
                make_worker(home / "vendor"),
                "Echo",
            )
            node.register(A_PROVIDER)
            careful.register(A_PROVIDER)
            pair = Pair(
                site,
                node,
                careful,
                proxy,
                register,
                Signatures(signing),
            )
            submit_jobs(pair)
            yield pair


def submit_jobs(pair: Pair) -> None:
    """Submit the jobs of all tests; "theirs" are scheduled by FATE-Flow, "ours" by our node."""
    retry = {"auto_retries": 1}
    poll_and_retry = {"sync_type": "poll"} | retry
    pair.jobs = {
        "theirs": pair.submit_to_fate(),
        "theirs, fails here": pair.submit_to_fate(
            conf=poll_and_retry,
            fails=1,
            name="c",
        ),
        "theirs, stopped there": pair.submit_to_fate(lasts=LONG),
        "theirs, stopped here": pair.submit_to_fate(lasts=LONG),
        "ours": pair.submit_to_us(
            {"a": 0, "b": 0},
            {"sync_type": "callback"},
        ),
        "ours, fails there": pair.submit_to_us(
            {"a": 0},
            retry,
            fails_at="host",
        ),
        "ours, stopped": pair.submit_to_us({"a": LONG}),
        "ours, submitted there": pair.submit_to_fate(OURS),
        "ours, submitted and stopped there": pair.submit_to_fate(
            OURS,
            lasts=LONG,
        ),
        "theirs, approved": pair.submit_to_fate_for_approval(),
        "theirs, rejected": pair.submit_to_fate_for_approval(),
    }


def stop_once_it_runs(
    pair: Pair,
    subject: str,
    at_fate: bool,
) -> None:
    """Stop a job once it runs at FATE-Flow, as the people of one side do."""
    body = {"job_id": pair.jobs[subject]}
    wait_for(lambda: pair.runs_at_fate(pair.jobs[subject]), 100, 0.2, f"{subject} runs")
    if at_fate:
        response = pair.site.post("/v2/job/stop", body)
    else:
        response = pair.node.post(STOP, body)
    assert response["code"] == 0, (subject, response)


def decide(
    pair: Pair,
    subject: str,
    decision: str,
) -> None:
    """Approve or reject a job, once FATE-Flow was told to apply later."""
    wait_for(lambda: pair.waits_for_approval(subject), 100, 0.2, f"{subject} waits for a person")
    response = pair.careful.post(f"/api/v1/jobs/{pair.jobs[subject]}/{decision}", {})
    assert response["local_status"] in ("READY", "REJECTED"), response


def codes_of(exchanges: list[Exchange]) -> set[int]:
    """Return the codes of the responses."""
    return {exchange.response["code"] for exchange in exchanges}


def test_fate_flow_schedules_and_we_take_part(pair):
    assert pair.shown_at_fate("theirs") == SUCCEEDED
    assert pair.wait_for_our_end("theirs", "SUCCEEDED")["progress"] == 100
    wait_for(
        lambda: pair.paths("theirs", OURS)[-1] == "/job/stop",
        60,
        about="FATE-Flow reports the end",
    )

    assert pair.paths("theirs", OURS) == [
        "/job/create",
        "/job/status/update",
        "/job/resource/apply",
        "/job/start",
        *[*TASK, "/task/status/update", "/task/stop"] * 2,
        "/job/status/update",
        "/job/stop",
    ]
    for exchange in pair.exchanges("theirs"):
        if exchange.to == OURS:
            assert exchange.response == {
                "code": 0,
                "message": "success",
            }


def test_our_reports_are_accepted_by_fate_flow(pair):
    assert pair.shown_at_fate("theirs") == SUCCEEDED
    reports = []
    for exchange in pair.exchanges("theirs"):
        if exchange.path.endswith("/report") and exchange.body["party_id"] == OURS:
            reports.append(exchange)

    # FATE also records by itself that a task runs; our report then has no effect (2002).
    assert codes_of(reports) <= {0, 2002}
    accepted = [exchange for exchange in reports if exchange.response["code"] == 0]
    statuses = [exchange.body["status"] for exchange in accepted]
    assert statuses.count("success") == 2


def test_a_task_that_fails_here_runs_again_in_fates_retry(pair):
    """FATE-Flow ends the job and begins it again under its id; at our node it is a second job."""
    subject = "theirs, fails here"
    wait_for(
        lambda: pair.shown_at_fate(subject).status == "success",
        120,
        0.5,
        "FATE-Flow's retry succeeded",
    )

    tasks = pair.shown_at_fate(subject).tasks
    assert tasks["a"] == (1, "success", "success")
    assert tasks["b"] == (0, "success", "success")
    first = pair.wait_for_our_end(subject, "FAILED")
    # The cause is the failure at our node, and not FATE's report of a failure.
    assert first["failure"]["reason"] == "EXIT_3"
    pair.wait_for_our_end(
        subject,
        "SUCCEEDED",
        id_suffix="-r1",
    )


def reported_end(pair: Pair, subject: str) -> str:
    """Return the status with which FATE-Flow reported a job's end to our node, "" before."""
    for exchange in pair.exchanges(subject):
        is_report = exchange.to == OURS and exchange.path == f"{PARTNER}/job/status/update"
        if is_report and exchange.body["status"] in ENDED:
            return str(exchange.body["status"])
    return ""


def stop_and_wait(
    pair: Pair,
    subject: str,
    at_fate: bool,
) -> str:
    """Stop a job and wait until FATE-Flow has reported and shown its end; return the status."""
    stop_once_it_runs(pair, subject, at_fate)
    status = wait_for(
        lambda: reported_end(pair, subject), 120, 0.2, "FATE-Flow reports how the job ended"
    )
    wait_for(
        lambda: pair.shown_at_fate(subject).tasks["a"][1] == status,
        60,
        0.2,
        "its task has ended so",
    )
    assert pair.shown_at_fate(subject).tasks["b"] == (0, "waiting", "waiting")
    return str(status)


def statuses_of_tasks(job: dict[str, Any]) -> list[str]:
    return [task["status"] for task in job["tasks"]]


def test_a_job_of_fate_flow_is_stopped_there(pair):
    """FATE's part, killed first, may count as failed before ours counts as canceled."""
    subject = "theirs, stopped there"
    status = stop_and_wait(
        pair,
        subject,
        at_fate=True,
    )

    outcome = {"canceled": "STOPPED", "failed": "FAILED"}[status]
    job = pair.wait_for_our_end(subject, outcome)
    assert statuses_of_tasks(job) == ["FAILED"]


def test_a_job_of_fate_flow_is_stopped_here(pair):
    subject = "theirs, stopped here"
    stop_and_wait(pair, subject, at_fate=False)

    job = pair.wait_for_our_end(subject, "STOPPED")
    assert job["failure"]["message"].startswith("stopped by ")
    assert statuses_of_tasks(job) == ["FAILED"]


def test_fate_flow_waits_for_an_approval_here(pair):
    decide(pair, "theirs, approved", "approve")

    assert pair.shown_at_fate("theirs, approved") == SUCCEEDED
    pair.wait_for_our_end(
        "theirs, approved",
        "SUCCEEDED",
        node=pair.careful,
    )


def test_fate_flow_ends_a_job_that_is_rejected_here(pair):
    decide(pair, "theirs, rejected", "reject")

    fate_job = pair.shown_at_fate("theirs, rejected")
    assert fate_job.status in ("failed", "canceled")
    for _, _, status_of_their_part in fate_job.tasks.values():
        assert status_of_their_part == "waiting"
    job = pair.wait_for_our_end(
        "theirs, rejected",
        "REJECTED",
        node=pair.careful,
    )
    assert job["failure"]["reason"] == "APPROVAL_REJECTED"


def test_we_schedule_and_fate_flow_takes_part(pair):
    pair.wait_for_our_end("ours", "SUCCEEDED")

    assert pair.shown_at_fate("ours") == SUCCEEDED
    job = pair.site.job(pair.jobs["ours"])
    assert job["progress"] == 100
    assert job["scheduler_party_id"] == OURS
    assert job["role"] == "host"
    requests = [exchange for exchange in pair.exchanges("ours") if exchange.to == THEIRS]
    assert codes_of(requests) == {0}
    progress = []
    for exchange in requests:
        if exchange.path.endswith("/job/update"):
            progress.append(exchange.body["progress"])
    # Each once, or again if no response came in time.
    assert list(dict.fromkeys(progress)) == [50.0, 100.0]


def test_fate_flow_s_reports_are_accepted_by_us(pair):
    pair.wait_for_our_end("ours", "SUCCEEDED")
    reports = []
    for exchange in pair.exchanges("ours"):
        if exchange.path.endswith("/scheduler/task/report"):
            reports.append(exchange)

    assert codes_of(reports) == {0}
    statuses_of_b = []
    for exchange in reports:
        if exchange.body["task_id"].endswith("_b"):
            statuses_of_b.append(exchange.body["status"])
    assert statuses_of_b[-1] == "success"


def test_a_task_that_fails_at_fate_flow_runs_again_there(pair):
    job = pair.wait_for_our_end("ours, fails there", "SUCCEEDED")

    assert [task["attempt"] for task in job["tasks"]] == [1]
    second_attempt = {"a": (1, "success", "success")}
    assert pair.shown_at_fate("ours, fails there") == ShownJob("success", second_attempt)


def test_a_job_of_ours_is_stopped_here(pair):
    stop_once_it_runs(pair, "ours, stopped", at_fate=False)
    pair.wait_for_our_end("ours, stopped", "STOPPED")

    # FATE's people do not see it run for ever.
    fate_job = pair.shown_at_fate("ours, stopped")
    assert fate_job.status == "canceled"
    assert fate_job.tasks["a"][1] == "canceled"


def test_a_job_of_ours_is_submitted_at_fate_flow(pair):
    pair.wait_for_our_end("ours, submitted there", "SUCCEEDED")

    assert pair.shown_at_fate("ours, submitted there") == SUCCEEDED


def test_a_job_of_ours_is_submitted_and_stopped_at_fate_flow(pair):
    subject = "ours, submitted and stopped there"
    stop_once_it_runs(pair, subject, at_fate=True)
    pair.wait_for_our_end(subject, "STOPPED")

    fate_job = pair.shown_at_fate(subject)
    assert fate_job.status == "canceled"
    assert fate_job.tasks["a"][1:] == ("canceled", "canceled")


def test_we_refuse_a_wrong_job_of_fate_flow_with_its_mistake(pair):
    body = pair.dag()
    input_of_b = body["dag"]["tasks"]["b"]["inputs"]["data"]["train_data"]
    input_of_b["task_output_artifact"]["output_artifact_key"] = "no"

    refused = pair.site.post(
        "/v2/job/submit",
        {"dag_schema": body},
    )

    assert refused["code"] == 1002
    assert "b needs an output that a does not have" in refused["message"]
    assert pair.site.job(refused["job_id"])["status"] == "failed"
    # Our node has no such job, so for FATE-Flow it is stopped there.
    stopped = pair.site.post(
        "/v2/job/stop",
        {"job_id": refused["job_id"]},
    )
    assert stopped["code"] == 0


def test_fate_flow_refuses_a_wrong_job_of_ours_with_its_mistake(pair):
    pair.node.register(json.loads(json.dumps(A_PROVIDER).replace("1.0.0", "3.0.0")))
    body = job_of(pair.register, {"a": 0})
    body["config"]["role"] = {
        "guest": [OURS],
        "host": [THEIRS],
    }
    body["dag"]["components"][0]["version"] = "3.0.0"

    refused = pair.node.post(f"{SCHEDULE}/job/create_all", body)

    assert refused["code"] != 0
    assert "Not found provider[example:3.0.0@local]" in refused["msg"]


UNKNOWN_JOB = {
    "job_id": "202611220101010000000",
    "role": "host",
    "party_id": THEIRS,
}
UNKNOWN_TASK = UNKNOWN_JOB | {
    "task_id": f"{UNKNOWN_JOB['job_id']}_a",
    "task_version": 0,
}
# Requests for which FATE-Flow has a code. For others its responses have the code 6000 and name an
# exception of Python's.
UNKNOWN: dict[str, dict[str, Any]] = {
    "/partner/job/start": UNKNOWN_JOB,
    "/partner/job/status/update": UNKNOWN_JOB | {"status": "running"},
    "/partner/job/update": UNKNOWN_JOB | {"progress": 1.0},
    "/partner/job/stop": UNKNOWN_JOB,
    "/partner/task/start": UNKNOWN_TASK,
    "/partner/task/collect": UNKNOWN_TASK,
    "/partner/task/status/update": UNKNOWN_TASK | {"status": "running"},
    "/partner/task/stop": UNKNOWN_TASK,
    "/partner/task/rerun": UNKNOWN_TASK | {"new_version": 1},
    "/scheduler/job/stop": UNKNOWN_JOB,
    "/scheduler/job/rerun": UNKNOWN_JOB,
    "/scheduler/task/report": UNKNOWN_TASK | {"status": "success"},
    "/partner/job/create": {"job_id": 1},
}


def post_to(
    address: str,
    path: str,
    body: Any,
    headers: dict[str, str],
) -> dict[str, Any]:
    """Post a request of FATE's protocol to one side; return the JSON of the response."""
    response = httpx.post(
        f"{address}/v2{path}",
        json=body,
        headers=headers,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    )
    return dict(response.json())


@pytest.mark.parametrize("path", UNKNOWN)
def test_requests_about_unknown_jobs_have_fate_flows_codes(pair, path):
    body = UNKNOWN[path]
    fate_address = f"http://127.0.0.1:{pair.site.port}"

    ours = post_to(
        pair.node.peer,
        path,
        body,
        dict(pair.signatures.sign(OURS, "")),
    )
    theirs = post_to(
        fate_address,
        path,
        body,
        dict(pair.signatures.sign(THEIRS, "")),
    )

    assert ours["code"] == theirs["code"]


def test_requests_between_both_sides_are_signed(pair):
    requests = []
    for exchange in pair.proxy.exchanges:
        if exchange.to in (OURS, CAREFUL) or "x-source-node-id" in exchange.headers:
            requests.append(exchange)

    assert requests
    for request in requests:
        assert request.headers["signature"], request


def test_neither_side_accepts_a_request_without_a_signature(pair):
    body = pair.dag() | {
        "job_id": "202611220101010000001",
        "role": "host",
        "party_id": OURS,
    }

    refused = post_to(
        pair.node.peer,
        "/partner/job/create",
        body,
        {},
    )
    assert refused["data"]["reason"] == "SIGNATURE_MISSING"

    refused = pair.site.post(
        f"{PARTNER}/job/stop",
        body | {"party_id": THEIRS},
    )
    assert refused["code"] != 0
