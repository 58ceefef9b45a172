"""Logs as platforms and admins ask for them, of scripted runs on a node in this process."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.admin.streams import _lines
from gateway.data.logs import Excerpt, LogLine
from gateway.domain.run import Run
from gateway.domain.spec import Call, CallState
from gateway.domain.states import JobStatus, RunStatus
from tests.builders import a_local_job, a_run, a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.logs.talk import LOG, LOG_LINE, Stage, stage
from tests.plain import NO_TLS


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def talk(node: Stage) -> Iterator[Stage]:
    yield node
    for left in node.gateway.engine.list():
        node.gateway.engine.stop(left.name, 0)


def problems(answer: dict[str, Any]) -> set[str]:
    return {p["path"] for p in answer["data"]["problems"]}


def run_log(
    talk: Stage,
    job: str,
    party: str = "guest.0",
    **params: Any,
) -> httpx.Response:
    return ask(
        talk.gateway,
        "operator",
        "GET",
        f"/api/v1/jobs/{job}/runs/{party}/talk_1/log",
        params=params,
    )


def events(response: httpx.Response) -> list[dict[str, str]]:
    found = []
    for block in response.text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if fields:
            found.append(fields)
    return found


def test_a_log_is_readable_during_the_run_and_after_its_container(talk):
    job = talk.submit("guest", "host")
    task = talk.task(job)
    assert talk.number(task, "debug") == 0
    talk.order("guest.0", out="debug looking\ninfo found\n", err="error lost\n")
    talk.wait_number(task, "debug", 3)
    while_running = {level: talk.lines(task, level) for level in ("debug", "info", "error")}
    assert while_running["error"] == ["error lost"]
    assert while_running["info"] == ["info found", "error lost"]

    talk.order("guest.0", out="info more\n")
    talk.order("guest.0", out="[ERROR] last words", exit=3)
    talk.end(job)
    for level, before in while_running.items():
        after = talk.lines(task, level)
        assert after[: len(before)] == before
        assert talk.number(task, level) == len(after)
        assert talk.lines(task, level, start=1, length=1) == after[1:2]
    assert talk.lines(task, "error") == ["error lost", "[ERROR] last words"]
    answer = talk.read(task, "error", start=1)
    assert answer["data"] == "[ERROR] last words\n"
    assert answer["num"] == 1
    assert answer["start"] == 1
    assert answer["next"] == 2
    assert answer["left_out"] == 0
    assert answer["over"]
    assert answer["roles"] == ["guest.0", "host.0"]
    assert [(part["role"], part["num"]) for part in answer["parts"]] == [("guest.0", 1)]
    assert talk.lines(task, "debug", role="host") == []


def test_the_other_spelling_and_a_body_are_accepted(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="info one\ninfo two\n")
    talk.wait_number(task, "info", 2)
    body = {
        "task_id": task,
        "log_level": "INFO",
        "start": 1,
        "length": None,
    }
    for method in ("GET", "POST"):
        for path in (LOG, "/v2/schedule/task/get_log"):
            assert talk.ask(path, method=method, json=body)["data"]["data"] == "info two\n"
        for path in (LOG_LINE, "/v2/schedule/task/get_log_line"):
            assert talk.ask(path, method=method, json=body)["data"]["num"] == 2
    in_both = talk.ask(LOG, params={"start": "0", "length": "1"}, method="GET") | {}
    assert problems(in_both) == {"task_id", "log_level"}
    assert (
        talk.ask(LOG, method="POST", json=body | {"start": "0", "length": 1.0})["data"]["num"] == 1
    )
    for broken in (b"[1]", b"{"):
        assert talk.ask(LOG_LINE, method="POST", content=broken)["code"] == 400


def test_every_wrong_parameter_of_a_log_request_is_reported(talk):
    every = {"task_id", "log_level", "start", "length"}
    for params, wrong in (
        ({}, every - {"length"}),
        (
            {
                "task_id": 7,
                "log_level": "warn",
                "start": -1,
                "length": "x",
                "role": [],
            },
            every | {"role"},
        ),
        (
            {
                "task_id": "",
                "log_level": [],
                "start": True,
                "length": -1,
            },
            every,
        ),
        *(
            (
                {
                    "task_id": "t",
                    "log_level": "info",
                    "start": start,
                },
                {"start"},
            )
            for start in ("1" * 99, "١", 1.5)
        ),
    ):
        answer = talk.ask(LOG, method="POST", json=params)
        assert answer["code"] == 400
        assert answer["data"]["reason"] == "INVALID"
        assert problems(answer) == wrong


def test_unknown_tasks_roles_and_runs_are_named(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    unknown = talk.ask(LOG_LINE, params={"task_id": "task_x", "log_level": "info"})
    assert unknown["code"] == 404
    assert unknown["data"]["reason"] == "TASK_UNKNOWN"
    role = talk.ask(
        LOG_LINE,
        params={
            "task_id": task,
            "log_level": "info",
            "role": "host",
        },
    )
    assert role["code"] == 404
    assert role["data"]["reason"] == "ROLE_UNKNOWN"
    for where, reason in (
        (f"/api/v1/jobs/job-x/runs/guest.0/{task}/log", "JOB_UNKNOWN"),
        (f"/api/v1/jobs/{job}/runs/host.0/talk_1/log", "RUN_UNKNOWN"),
        (f"/api/v1/jobs/{job}/runs/guest.x/talk_1/log", "RUN_UNKNOWN"),
        (f"/api/v1/jobs/{job}/runs/guest.0/other/log", "RUN_UNKNOWN"),
    ):
        answer = ask(talk.gateway, "operator", "GET", where)
        assert answer.status_code == 404
        assert answer.json()["data"]["reason"] == reason
    spec = a_spec(roles={"guest": (ME,), "host": (PEER,)})
    over = a_local_job(
        a_run(status=RunStatus.SUCCESS),
        spec=spec,
        node=ME,
        status=JobStatus.FINISHED,
    )
    talk.gateway.store.local_jobs.add(over, "flow")
    for party, where in (("guest.0", "here"), ("host.0", f"here; host.0 plays at node {PEER}")):
        missing = ask(talk.gateway, "operator", "GET", f"/api/v1/jobs/job-1/runs/{party}/other/log")
        assert missing.json()["msg"].endswith(f"no run of other as {party} {where}"), missing.text
    wrong = run_log(
        talk,
        job,
        stream="x",
        tail="-1",
        follow="maybe",
    )
    assert wrong.status_code == 400
    assert problems(wrong.json()) == {"stream", "tail", "follow"}


def test_an_admin_reads_a_run_as_text(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="one\ntwo\nthree\n", err="oh\n")
    talk.wait_number(task, "debug", 4)
    whole = run_log(talk, job)
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert sorted(whole.text.splitlines()) == ["oh", "one", "three", "two"]
    assert run_log(talk, job, stream="stdout").text == "one\ntwo\nthree\n"
    assert run_log(talk, job, stream="stderr").text == "oh\n"
    assert run_log(talk, job, stream="stdout", tail=2).text == "two\nthree\n"
    assert run_log(talk, job, stream="stdout", tail=0).text == ""
    assert run_log(talk, job, stream="stdout", tail=99).text == "one\ntwo\nthree\n"
    by_id = ask(
        talk.gateway, "operator", "GET", f"/api/v1/jobs/{job}/runs/guest.0/{task}/log?stream=stderr"
    )
    assert by_id.text == "oh\n"


def test_a_log_longer_than_one_response_is_complete_as_text(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="info a line of some length that repeats\n" * 25_000)
    talk.wait_number(task, "info", 25_000)
    assert len(run_log(talk, job).text.splitlines()) == 25_000
    assert len(run_log(talk, job, tail=12_345).text.splitlines()) == 12_345
    some = talk.read(task, "info", 1)
    assert some["num"] + some["left_out"] == 24_999
    assert some["left_out"] > 0
    assert some["data"].count("\n") == some["num"]


def test_a_response_says_that_lines_may_be_missing(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="one\n")
    talk.wait_number(task, "info", 1)
    talk.gateway.engine.world.down = True
    try:
        wait_for(lambda: "ENGINE_DOWN" in talk.read(task, "info").get("incomplete", ""), 20, 0.05)
        counted = talk.ask(LOG_LINE, params={"task_id": task, "log_level": "info"})["data"]
    finally:
        talk.gateway.engine.world.down = False
    assert counted["num"] == 1
    assert "ENGINE_DOWN" in counted["incomplete"]


def test_following_shows_each_line_once_and_ends_with_the_run(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="one\n")
    talk.wait_number(task, "debug", 1)
    path = (
        f"{talk.gateway.addresses()['operator']}/api/v1/jobs/{job}/runs/guest.0/talk_1/log?follow=1"
    )
    lines: list[str] = []
    with httpx.stream(
        "GET",
        path,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            lines.append(line)
            if line == "data: one":
                talk.order("guest.0", err="two\n")
            if line == "data: two":
                talk.order("guest.0", out="three", exit=5)
    said = [line for line in lines if line.startswith(("data: ", "event: "))]
    assert said[:-2] == [
        "event: stdout",
        "data: one",
        "event: stderr",
        "data: two",
        "event: stdout",
        "data: three",
    ]
    assert said[-2] == "event: end"
    end = json.loads(said[-1].removeprefix("data: "))
    assert end["status"] == "FAILED"
    assert end["exit_code"] == 5
    assert end["lines"] == 3
    assert end["failure"]["reason"] == "EXIT_5"


def test_a_disconnected_follower_resumes_after_its_last_line(talk):
    job = talk.submit("guest")
    talk.task(job)
    talk.order("guest.0", out="a\nb\nc\n", exit=0)
    talk.end(job)
    path = f"/api/v1/jobs/{job}/runs/guest.0/talk_1/log"
    first = events(run_log(talk, job, follow=1))
    assert [(e["event"], e["data"], e.get("id")) for e in first[:-1]] == [
        ("stdout", "a", "0"),
        ("stdout", "b", "1"),
        ("stdout", "c", "2"),
    ]
    rest = ask(
        talk.gateway,
        "operator",
        "GET",
        path,
        params={"follow": "1"},
        headers={"last-event-id": "1"},
    )
    assert [e["data"] for e in events(rest)[:-1]] == ["c"]
    assert [e["data"] for e in events(run_log(talk, job, follow=1, tail=1))[:-1]] == ["c"]


@pytest.mark.parametrize(
    ("removal", "polls"),
    [(CallState.SENT, 4), (CallState.OK, 4), (CallState.LOST, 1), (CallState.IDLE, 1)],
)
def test_following_goes_on_while_a_container_is_removed_and_its_log_saved(removal, polls):
    gone, whole = (
        Excerpt((), 0, 0, 0, (), False, "the container is gone"),
        (LogLine("three", "guest.0", "stdout"),),
    )
    found = iter([gone, gone, gone, Excerpt(whole, 0, 1, 0, (), True)])

    def newest() -> Run:
        return a_run("a", RunStatus.SUCCESS, collect=Call(removal))

    steps = list(_lines(lambda start, length: next(found), newest, 0))
    text = b"".join(piece for pieces, _ in steps for piece in pieces)
    assert len(steps) == polls
    assert text.count(b"event: end") == 1
    assert (b"data: three" in text) == (polls == 4)
