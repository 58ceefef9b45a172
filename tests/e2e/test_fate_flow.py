"""A real FATE-Flow 2.2.0, as it was published, and a real node of ours run jobs together in FATE's own protocol.

It sits in an environment of its own (``make .venv-fate-flow/.done``): its server, its SQLite, its two-second
tick. FATE's algorithms are not there; both sides run a component that only reports. The jobs of the module go
side by side, because FATE-Flow takes its time over each.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_PROVIDER
from adapter.fate.signing import Signatures
from gateway.config.schema import FateApp
from gateway.config.schema import FateSite as Agreed
from tests.e2e.fate_pair import CAREFUL, ENDED, OURS, PARTNER, THEIRS, Pair
from tests.e2e.fate_site import PYTHON, FateSite
from tests.e2e.jobs import job_of
from tests.e2e.nodes import ROOT, Federation, process_engine, wait_for
from tests.e2e.recorder import Recorder
from tests.plain import NO_TLS

pytestmark = [pytest.mark.fate_flow, pytest.mark.slow, pytest.mark.xdist_group("fate_flow")]

TASK = ["/task/resource/apply", "/task/status/update", "/task/start"]
LONG = 600
"""seconds; nothing waits for it, a stop ends it"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("fate-flow")
    (home / "vendor").mkdir()
    (home / "register").mkdir()
    worker = home / "vendor" / "worker"
    worker.write_text(f'#!/bin/sh\nexec {PYTHON} {ROOT}/tests/e2e/fate_worker.py "$@"\n')
    worker.chmod(0o755)
    engine = process_engine(
        "example:1.0.0", command=[sys.executable, str(ROOT / "tests/e2e/patient.py")]
    )
    federation = Federation(home / "nodes", [OURS, CAREFUL], engine)
    node, careful = federation[OURS], federation[CAREFUL]
    careful.settings["approval"] = {"mode": "person"}
    with Recorder() as proxy, FateSite(THEIRS, home / "fate", proxy.port) as site:
        route = {
            "host": "127.0.0.1",
            "port": proxy.port,
            "profile": "fate-partner",
        }
        signs: dict[str, Agreed] = {}
        for ours in (node, careful):
            ours.route(**{THEIRS: route})
            given = FateApp(app_id="73391027", app_token=f"what {ours.id} gave")
            got = site.admit(ours.id, given)
            apps = {"sends": got.model_dump(), "expects": given.model_dump()}
            ours.settings["fate"] = {"enabled": True, "sites": {THEIRS: {"device": "local"} | apps}}
            signs |= {ours.id: Agreed(sends=given)} | (
                {THEIRS: Agreed(sends=got)} if ours is node else {}
            )
        with federation:
            ports = {ours.id: httpx.URL(ours.peer).port or 0 for ours in (node, careful)}
            proxy.ways = {THEIRS: site.port, **ports}
            site.register("example", "1.0.0", worker, "Echo")
            for ours in (node, careful):
                ours.register(A_PROVIDER)
            made = Pair(site, node, careful, proxy, home / "register", Signatures(signs))
            _begin(made)
            yield made


def _begin(pair: Pair) -> None:
    retry = {"auto_retries": 1}
    pair.jobs = {
        "theirs": pair.hand_in_there(),
        "theirs, fails here": pair.hand_in_there(
            conf={"sync_type": "poll"} | retry,
            fails=1,
            name="c",
        ),
        "theirs, stopped there": pair.hand_in_there(lasts=LONG),
        "theirs, stopped here": pair.hand_in_there(lasts=LONG),
        "ours": pair.hand_in_here({"a": 0, "b": 0}, {"sync_type": "callback"}),
        "ours, fails there": pair.hand_in_here({"a": 0}, retry, fails_at="host"),
        "ours, stopped": pair.hand_in_here({"a": LONG}),
        "ours, handed in there": pair.hand_in_there(OURS),
        "ours, handed in and stopped there": pair.hand_in_there(OURS, lasts=LONG),
        "theirs, agreed": pair.hand_in_carefully(),
        "theirs, refused": pair.hand_in_carefully(),
    }


def stop(
    pair: Pair,
    about: str,
    there: bool,
) -> None:
    """Stop a job once it runs at FATE-Flow, as the people of one side do."""
    body = {"job_id": pair.jobs[about]}
    wait_for(lambda: pair.runs_there(pair.jobs[about]), 100, 0.2, f"{about} runs")
    here = "/v1/platform/schedule/job/stop_all"
    answer = pair.site.post("/v2/job/stop", body) if there else pair.node.post(here, body)
    assert answer["code"] == 0, (about, answer)


def decide(
    pair: Pair,
    about: str,
    word: str,
) -> None:
    """Agree to a job or refuse it, once FATE-Flow was told to ask again."""
    wait_for(lambda: pair.waits(about), 100, 0.2, f"{about} waits for a person")
    answer = pair.careful.post(f"/api/v1/jobs/{pair.jobs[about]}/{word}", {})
    assert answer["local_status"] in ("READY", "REJECTED"), answer


def test_fate_flow_schedules_and_we_take_part(pair):
    assert pair.shown("theirs") == ("success", dict.fromkeys(("a", "b"), (0, "success", "success")))
    assert pair.ended_here("theirs", "SUCCEEDED")["progress"] == 100
    wait_for(
        lambda: pair.asked("theirs", OURS)[-1] == "/job/stop", 60, about="we are told of the end"
    )
    assert pair.asked("theirs", OURS) == [
        "/job/create",
        "/job/status/update",
        "/job/resource/apply",
        "/job/start",
        *[*TASK, "/task/status/update", "/task/stop"] * 2,
        "/job/status/update",
        "/job/stop",
    ]
    told = [p for p in pair.passed("theirs") if p.to == OURS]
    assert all(p.answer == {"code": 0, "message": "success"} for p in told)
    reports = [
        p
        for p in pair.passed("theirs")
        if p.path.endswith("/report") and p.body["party_id"] == OURS
    ]
    # FATE notes by itself, too, that a task runs: a word that comes meanwhile has no effect there (2002)
    assert {(p.body["status"], p.answer["code"]) for p in reports} >= {("success", 0)}
    assert {p.answer["code"] for p in reports} <= {0, 2002}
    assert [p.body["status"] for p in reports if p.answer["code"] == 0].count("success") == 2


def test_a_task_that_fails_here_runs_again_in_fates_retry(pair):
    """FATE-Flow lets the job end and begins it again under its id; here that is another job."""
    wait_for(
        lambda: pair.shown("theirs, fails here")[0] == "success",
        120,
        0.5,
        "FATE-Flow's retry succeeded",
    )
    status, tasks = pair.shown("theirs, fails here")
    assert status == "success"
    assert tasks["a"] == (1, "success", "success")
    assert tasks["b"] == (0, "success", "success")
    first = pair.ended_here("theirs, fails here", "FAILED")
    assert first["failure"]["reason"] == "EXIT_3", "what failed here, not that FATE says so"
    pair.ended_here("theirs, fails here", "SUCCEEDED", again="-r1")


@pytest.mark.parametrize("where", ["there", "here"])
def test_a_job_that_fate_flow_schedules_is_stopped(pair, where):
    """Its own part, killed first, may be reported as failed before ours as canceled: what it says counts.

    Where people here had it stopped, that does.
    """
    about = f"theirs, stopped {where}"
    stop(pair, about, where == "there")

    def said() -> list[str]:
        told = [
            p
            for p in pair.passed(about)
            if p.to == OURS and p.path == f"{PARTNER}/job/status/update"
        ]
        return [p.body["status"] for p in told if p.body["status"] in ENDED]

    wait_for(said, 120, 0.2, "FATE-Flow says how the job ended")
    word = said()[0]
    wait_for(lambda: pair.shown(about)[1]["a"][1] == word, 60, 0.2, "its task has ended so")
    assert pair.shown(about)[1]["b"] == (0, "waiting", "waiting")
    outcome = {"canceled": "STOPPED", "failed": "FAILED"}[word]
    job = pair.ended_here(about, "STOPPED" if where == "here" else outcome)
    if where == "here":
        assert job["failure"]["message"].startswith("stopped by ")
    assert [task["status"] for task in job["tasks"]] == ["FAILED"]


def test_fate_flow_waits_for_a_person_here(pair):
    decide(pair, "theirs, agreed", "approve")
    decide(pair, "theirs, refused", "reject")
    assert pair.shown("theirs, agreed") == (
        "success",
        dict.fromkeys(("a", "b"), (0, "success", "success")),
    )
    pair.ended_here("theirs, agreed", "SUCCEEDED", at=pair.careful)
    status, tasks = pair.shown("theirs, refused")
    assert status in ("failed", "canceled")
    assert {row[2] for row in tasks.values()} == {"waiting"}
    job = pair.ended_here("theirs, refused", "REJECTED", at=pair.careful)
    assert job["failure"]["reason"] == "APPROVAL_REJECTED"


def test_we_schedule_and_fate_flow_takes_part(pair):
    pair.ended_here("ours", "SUCCEEDED")
    assert pair.shown("ours") == ("success", dict.fromkeys(("a", "b"), (0, "success", "success")))
    shown = pair.site.job(pair.jobs["ours"])
    assert shown["progress"] == 100
    assert shown["scheduler_party_id"] == OURS
    assert shown["role"] == "host"
    told = [p for p in pair.passed("ours") if p.to == THEIRS]
    assert {p.answer["code"] for p in told} == {0}
    progress = [p.body["progress"] for p in told if p.path.endswith("/job/update")]
    assert list(dict.fromkeys(progress)) == [50.0, 100.0], (
        "each once, or again where no answer came in time"
    )
    reports = [p for p in pair.passed("ours") if p.path.endswith("/scheduler/task/report")]
    assert [p.body["status"] for p in reports if p.body["task_id"].endswith("_b")][-1] == "success"
    assert {p.answer["code"] for p in reports} == {0}


def test_a_task_that_fails_at_fate_flow_runs_again_there(pair):
    job = pair.ended_here("ours, fails there", "SUCCEEDED")
    assert [task["attempt"] for task in job["tasks"]] == [1]
    assert pair.shown("ours, fails there") == ("success", {"a": (1, "success", "success")})


def test_a_job_that_we_schedule_is_stopped(pair):
    stop(pair, "ours, stopped", there=False)
    pair.ended_here("ours, stopped", "STOPPED")
    status, tasks = pair.shown("ours, stopped")
    assert status == "canceled", "FATE's people do not see it run for ever"
    assert tasks["a"][1] == "canceled", "FATE's people do not see it run for ever"


def test_a_job_handed_in_at_fate_flow_that_we_schedule(pair):
    pair.ended_here("ours, handed in there", "SUCCEEDED")
    assert pair.shown("ours, handed in there") == (
        "success",
        dict.fromkeys(("a", "b"), (0, "success", "success")),
    )
    stop(pair, "ours, handed in and stopped there", there=True)
    pair.ended_here("ours, handed in and stopped there", "STOPPED")
    status, tasks = pair.shown("ours, handed in and stopped there")
    assert status == "canceled"
    assert tasks["a"][1:] == ("canceled", "canceled")


def test_either_side_refuses_with_its_reason(pair):
    body = pair.dag()
    body["dag"]["tasks"]["b"]["inputs"]["data"]["train_data"]["task_output_artifact"][
        "output_artifact_key"
    ] = "no"
    said = pair.site.post("/v2/job/submit", {"dag_schema": body})
    assert said["code"] == 1002
    assert ("b needs an output that a does not have" in said["message"]) is True
    assert pair.site.job(said["job_id"])["status"] == "failed"
    stopped = pair.site.post("/v2/job/stop", {"job_id": said["job_id"]})
    assert stopped["code"] == 0, "we have no such job, so it is stopped here"
    pair.node.register(json.loads(json.dumps(A_PROVIDER).replace("1.0.0", "3.0.0")))
    wanted = job_of(pair.register, {"a": 0})
    wanted["config"]["role"] = {"guest": [OURS], "host": [THEIRS]}
    wanted["dag"]["components"][0]["version"] = "3.0.0"
    refused = pair.node.post("/v1/platform/schedule/job/create_all", wanted)
    assert refused["code"] != 0
    assert "Not found provider[example:3.0.0@local]" in refused["msg"]


def test_what_is_not_there_is_answered_with_fate_flows_codes(pair):
    """Where it does not break down itself: those answers are code 6000 and name an exception of Python's."""
    job = {
        "job_id": "202611220101010000000",
        "role": "host",
        "party_id": THEIRS,
    }
    task = {
        **job,
        "task_id": f"{job['job_id']}_a",
        "task_version": 0,
    }
    asked: dict[str, dict[str, Any]] = {
        "/partner/job/start": job,
        "/partner/job/status/update": {**job, "status": "running"},
        "/partner/job/update": {**job, "progress": 1.0},
        "/partner/job/stop": job,
        "/partner/task/start": task,
        "/partner/task/collect": task,
        "/partner/task/status/update": {**task, "status": "running"},
        "/partner/task/stop": task,
        "/partner/task/rerun": {**task, "new_version": 1},
        "/scheduler/job/stop": job,
        "/scheduler/job/rerun": job,
        "/scheduler/task/report": {**task, "status": "success"},
        "/partner/job/create": {"job_id": 1},
    }

    def codes(node: str, address: str) -> dict[str, int]:
        found = {}
        for path, body in asked.items():
            sent = dict(pair.signatures.sign(node, ""))
            answer = httpx.post(
                f"{address}/v2{path}",
                json=body,
                headers=sent,
                timeout=120,
                trust_env=False,
                verify=NO_TLS,
            )
            found[path] = int(answer.json()["code"])
        return found

    assert codes(OURS, pair.node.peer) == codes(THEIRS, f"http://127.0.0.1:{pair.site.port}")


def test_requests_between_the_two_are_signed(pair):
    """All jobs of this module are: the site wants it. What is not signed, neither side takes."""
    between = [
        p for p in pair.proxy.seen if p.to in (OURS, CAREFUL) or "x-source-node-id" in p.headers
    ]
    assert between
    assert all(p.headers["signature"] for p in between)
    body = pair.dag() | {
        "job_id": "202611220101010000001",
        "role": "host",
        "party_id": OURS,
    }
    here = httpx.post(
        f"{pair.node.peer}{PARTNER}/job/create",
        json=body,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ).json()
    assert here["data"]["reason"] == "SIGNATURE_MISSING"
    assert pair.site.post(f"{PARTNER}/job/stop", {**body, "party_id": THEIRS})["code"] != 0
