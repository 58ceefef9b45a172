"""Logs as platforms and admins request them, of scripted runs on a node in this process."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.admin.streams import follow_lines
from gateway.data.logs import Excerpt, LogLine
from gateway.domain.run import Run
from gateway.domain.spec import Call, CallState
from gateway.domain.states import JobStatus, RunStatus
from tests.builders import a_local_job, a_run, a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER
from tests.logs.talk import LOG, LOG_LINE, Stage, stage
from tests.plain import NO_TLS

SCHEDULE = "/v2/schedule/task"  # the other spelling of the platform's paths


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def talk(node: Stage) -> Iterator[Stage]:
    """The node, whose runs are stopped after each test."""
    yield node
    for run in node.gateway.engine.list():
        node.gateway.engine.stop(run.name, 0)


def problem_paths(body: dict[str, Any]) -> set[str]:
    return {problem["path"] for problem in body["data"]["problems"]}


def read_run_log(
    talk: Stage,
    job: str,
    **params: Any,
) -> httpx.Response:
    """Read the log of the guest's run as an admin."""
    path = f"/api/v1/jobs/{job}/runs/guest.0/talk_1/log"
    return talk.gateway.get(
        path,
        params=params,
    )


def events_of(response: httpx.Response) -> list[dict[str, str]]:
    """Return the fields of each server-sent event of a response; comments are skipped."""
    events = []
    for block in response.text.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            if not line.startswith(":"):
                name, value = line.split(": ", 1)
                fields[name] = value
        if fields:
            events.append(fields)
    return events


# ---------------------------------------------------------------- platforms


def test_a_log_is_readable_during_the_run_and_after_its_container(talk):
    job = talk.submit("guest", "host")
    task = talk.task(job)
    assert talk.number(task, "debug") == 0
    talk.order(
        "guest.0",
        out="debug looking\ninfo found\n",
        err="error lost\n",
    )
    talk.wait_number(task, "debug", 3)
    while_running = {level: talk.lines(task, level) for level in ("debug", "info", "error")}
    assert while_running["error"] == ["error lost"]
    assert while_running["info"] == ["info found", "error lost"]

    talk.order("guest.0", out="info more\n")
    talk.order(
        "guest.0",
        out="[ERROR] last words",
        exit=3,
    )
    talk.end(job)

    for level, before in while_running.items():
        after = talk.lines(task, level)
        assert after[: len(before)] == before
        assert talk.number(task, level) == len(after)
        assert talk.lines(task, level, start=1, length=1) == after[1:2]
    assert talk.lines(task, "error") == ["error lost", "[ERROR] last words"]
    data = talk.read(
        task,
        "error",
        start=1,
    )
    assert data["data"] == "[ERROR] last words\n"
    assert data["num"] == 1
    assert data["start"] == 1
    assert data["next"] == 2
    assert data["left_out"] == 0
    assert data["over"]
    assert data["roles"] == ["guest.0", "host.0"]
    assert [(part["role"], part["num"]) for part in data["parts"]] == [("guest.0", 1)]
    assert talk.lines(task, "debug", role="host") == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_other_spelling_and_a_body_are_accepted(talk, method):
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

    for path in (LOG, f"{SCHEDULE}/get_log"):
        assert talk.ask(path, method=method, json=body)["data"]["data"] == "info two\n"
    for path in (LOG_LINE, f"{SCHEDULE}/get_log_line"):
        assert talk.ask(path, method=method, json=body)["data"]["num"] == 2
    whole_numbers = body | {
        "start": "0",
        "length": 1.0,
    }
    assert talk.ask(LOG, method=method, json=whole_numbers)["data"]["num"] == 1


def test_parameters_are_read_from_the_query_too(talk):
    body = talk.ask(
        LOG,
        params={
            "start": "0",
            "length": "1",
        },
    )
    assert problem_paths(body) == {"task_id", "log_level"}


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"{"],
    ids=["list", "broken"],
)
def test_a_body_that_is_no_object_is_refused(talk, content):
    assert talk.ask(LOG_LINE, method="POST", content=content)["code"] == 400


ALL_PARAMETERS = {"task_id", "log_level", "start", "length"}


def with_start(start: Any) -> dict[str, Any]:
    return {
        "task_id": "t",
        "log_level": "info",
        "start": start,
    }


WRONG_PARAMETERS = {
    "none": (
        {},
        ALL_PARAMETERS - {"length"},
    ),
    "wrong values": (
        {
            "task_id": 7,
            "log_level": "warn",
            "start": -1,
            "length": "x",
            "role": [],
        },
        ALL_PARAMETERS | {"role"},
    ),
    "wrong types": (
        {
            "task_id": "",
            "log_level": [],
            "start": True,
            "length": -1,
        },
        ALL_PARAMETERS,
    ),
    "99 digits": (with_start("1" * 99), {"start"}),
    "Arabic digit": (
        with_start("١"),
        {"start"},
    ),
    "fraction": (
        with_start(1.5),
        {"start"},
    ),
}


@pytest.mark.parametrize(
    ("params", "paths"),
    WRONG_PARAMETERS.values(),
    ids=list(WRONG_PARAMETERS),
)
def test_every_wrong_parameter_of_a_log_request_is_reported(talk, params, paths):
    body = talk.ask(
        LOG,
        method="POST",
        json=params,
    )
    assert body["code"] == 400
    assert body["data"]["reason"] == "INVALID"
    assert problem_paths(body) == paths


def test_an_unknown_task_or_role_is_named(talk):
    task = talk.task(talk.submit("guest"))

    body = talk.ask(
        LOG_LINE,
        params={
            "task_id": "task_x",
            "log_level": "info",
        },
    )
    assert body["code"] == 404
    assert body["data"]["reason"] == "TASK_UNKNOWN"

    body = talk.ask(
        LOG_LINE,
        params={
            "task_id": task,
            "log_level": "info",
            "role": "host",
        },
    )
    assert body["code"] == 404
    assert body["data"]["reason"] == "ROLE_UNKNOWN"


def test_a_response_says_that_lines_may_be_missing(talk):
    task = talk.task(talk.submit("guest"))
    talk.order("guest.0", out="one\n")
    talk.wait_number(task, "info", 1)

    def is_incomplete() -> bool:
        return "ENGINE_DOWN" in talk.read(task, "info").get("incomplete", "")

    talk.gateway.engine.world.down = True
    try:
        wait_for(is_incomplete, 20, 0.05)
        data = talk.ask(LOG_LINE, params={"task_id": task, "log_level": "info"})["data"]
    finally:
        talk.gateway.engine.world.down = False

    assert data["num"] == 1
    assert "ENGINE_DOWN" in data["incomplete"]


# ---------------------------------------------------------------- admins


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("job-x/runs/guest.0/{task}", "JOB_UNKNOWN"),
        ("{job}/runs/host.0/talk_1", "RUN_UNKNOWN"),
        ("{job}/runs/guest.x/talk_1", "RUN_UNKNOWN"),
        ("{job}/runs/guest.0/other", "RUN_UNKNOWN"),
    ],
)
def test_an_unknown_job_or_run_is_named(talk, path, reason):
    job = talk.submit("guest")
    task = talk.task(job)

    response = talk.gateway.get(f"/api/v1/jobs/{path.format(job=job, task=task)}/log")

    assert response.status_code == 404
    assert response.json()["data"]["reason"] == reason


def test_a_run_at_another_node_is_named_with_that_node(talk):
    ended = a_local_job(
        a_run(status=RunStatus.SUCCESS),
        spec=a_spec(roles={"guest": (ME,), "host": (PEER,)}),
        node=ME,
        status=JobStatus.FINISHED,
    )
    talk.gateway.store.local_jobs.add(ended, "flow")

    message = talk.gateway.get("/api/v1/jobs/job-1/runs/guest.0/other/log").json()["msg"]
    assert message.endswith("no run of other as guest.0 here")

    message = talk.gateway.get("/api/v1/jobs/job-1/runs/host.0/other/log").json()["msg"]
    place = f"here; host.0 plays at node {PEER}"
    assert message.endswith(f"no run of other as host.0 {place}")


def test_every_wrong_parameter_of_an_admin_is_reported(talk):
    job = talk.submit("guest")
    talk.task(job)

    response = read_run_log(
        talk,
        job,
        stream="x",
        tail="-1",
        follow="maybe",
    )

    assert response.status_code == 400
    assert problem_paths(response.json()) == {"stream", "tail", "follow"}


def test_an_admin_reads_a_run_as_text(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order(
        "guest.0",
        out="one\ntwo\nthree\n",
        err="oh\n",
    )
    talk.wait_number(task, "debug", 4)

    response = read_run_log(talk, job)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert sorted(response.text.splitlines()) == ["oh", "one", "three", "two"]

    assert read_run_log(talk, job, stream="stdout").text == "one\ntwo\nthree\n"
    assert read_run_log(talk, job, stream="stderr").text == "oh\n"
    assert read_run_log(talk, job, stream="stdout", tail=2).text == "two\nthree\n"
    assert read_run_log(talk, job, stream="stdout", tail=0).text == ""
    assert read_run_log(talk, job, stream="stdout", tail=99).text == "one\ntwo\nthree\n"
    by_task_id = f"/api/v1/jobs/{job}/runs/guest.0/{task}/log"
    assert talk.gateway.get(by_task_id, params={"stream": "stderr"}).text == "oh\n"


def test_a_log_longer_than_one_response_is_complete_as_text(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="info a line of some length that repeats\n" * 25_000)
    talk.wait_number(task, "info", 25_000)

    assert len(read_run_log(talk, job).text.splitlines()) == 25_000
    assert len(read_run_log(talk, job, tail=12_345).text.splitlines()) == 12_345
    data = talk.read(task, "info", 1)
    assert data["num"] + data["left_out"] == 24_999
    assert data["left_out"] > 0
    assert data["data"].count("\n") == data["num"]


# ---------------------------------------------------------------- following


def test_following_shows_each_line_once_and_ends_with_the_run(talk):
    job = talk.submit("guest")
    task = talk.task(job)
    talk.order("guest.0", out="one\n")
    talk.wait_number(task, "debug", 1)
    address = talk.gateway.addresses()["operator"]
    lines = []

    with httpx.stream(
        "GET",
        f"{address}/api/v1/jobs/{job}/runs/guest.0/talk_1/log?follow=1",
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith(("data: ", "event: ")):
                lines.append(line)
            if line == "data: one":
                talk.order("guest.0", err="two\n")
            if line == "data: two":
                talk.order(
                    "guest.0",
                    out="three",
                    exit=5,
                )

    assert lines[:-2] == [
        "event: stdout",
        "data: one",
        "event: stderr",
        "data: two",
        "event: stdout",
        "data: three",
    ]
    assert lines[-2] == "event: end"
    end = json.loads(lines[-1].removeprefix("data: "))
    assert end["status"] == "FAILED"
    assert end["exit_code"] == 5
    assert end["lines"] == 3
    assert end["failure"]["reason"] == "EXIT_5"


def test_a_disconnected_follower_resumes_after_its_last_line(talk):
    job = talk.submit("guest")
    talk.task(job)
    talk.order(
        "guest.0",
        out="a\nb\nc\n",
        exit=0,
    )
    talk.end(job)

    *lines, _end = events_of(read_run_log(talk, job, follow=1))
    assert lines == [
        {
            "event": "stdout",
            "data": "a",
            "id": "0",
        },
        {
            "event": "stdout",
            "data": "b",
            "id": "1",
        },
        {
            "event": "stdout",
            "data": "c",
            "id": "2",
        },
    ]

    resumed = talk.gateway.get(
        f"/api/v1/jobs/{job}/runs/guest.0/talk_1/log",
        params={"follow": "1"},
        headers={"last-event-id": "1"},
    )
    *lines, _end = events_of(resumed)
    assert [line["data"] for line in lines] == ["c"]

    *lines, _end = events_of(read_run_log(talk, job, follow=1, tail=1))
    assert [line["data"] for line in lines] == ["c"]


@pytest.mark.parametrize(
    ("removal", "polls"),
    [
        (CallState.SENT, 4),
        (CallState.OK, 4),
        (CallState.LOST, 1),
        (CallState.IDLE, 1),
    ],
)
def test_following_goes_on_while_a_container_is_removed_and_its_log_saved(removal, polls):
    incomplete = Excerpt(
        (),
        0,
        0,
        0,
        (),
        False,
        "the container is gone",
    )
    line = LogLine("three", "guest.0", "stdout")
    complete = Excerpt(
        (line,),
        0,
        1,
        0,
        (),
        True,
    )
    excerpts = iter([incomplete, incomplete, incomplete, complete])

    def read(start: int, length: int | None) -> Excerpt:
        return next(excerpts)

    def newest_run() -> Run:
        return a_run(
            "a",
            RunStatus.SUCCESS,
            collect=Call(removal),
        )

    steps = list(follow_lines(read, newest_run, 0))

    text = b"".join(piece for pieces, _ in steps for piece in pieces)
    assert len(steps) == polls
    assert text.count(b"event: end") == 1
    assert (b"data: three" in text) == (polls == 4)
