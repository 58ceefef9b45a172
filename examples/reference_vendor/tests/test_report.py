"""The callback: its content, its repetitions, and that the run does not depend on it."""

import threading

import pytest
from refvendor.report import Reporter
from testing_log import Lines


def reporter(
    url,
    log=None,
    sleep=lambda seconds: None,
):
    return Reporter(url, "task_1", "guest.0", Lines() if log is None else log, sleep)


def test_bodies_are_those_of_the_protocol(loopback):
    tell = reporter(loopback.callback)
    assert tell.running()
    assert tell.succeeded()
    assert tell.failed("why", "4444")
    always = {"task_id": "task_1", "role": "guest.0"}
    assert loopback.callbacks == [
        always | {"status": "RUNNING"},
        always
        | {
            "status": "SUCCESS",
            "result_code": "00000000",
        },
        always
        | {
            "status": "FAILED",
            "result_code": "4444",
            "result_message": "why",
        },
    ]


def test_trouble_that_passes_is_tried_again(loopback):
    faults = ["reset", "503", "lose answer"]
    loopback.fault = lambda request: faults.pop(0) if faults else None
    assert reporter(loopback.callback).succeeded()
    assert loopback.callbacks[-1]["status"] == "SUCCESS"
    assert len(loopback.requests) == 4


def test_a_platform_that_is_restarted_hears_the_end(deaf, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds
        if now[0] > 40:
            deaf.listen()

    assert reporter(deaf.callback, sleep=sleep).succeeded()
    assert deaf.callbacks[-1]["status"] == "SUCCESS"


def test_nobody_listening_costs_a_warning(deaf):
    log, pauses = Lines(), []
    assert not reporter(deaf.callback, log, pauses.append).failed("why", seconds=0.7)
    assert pauses[:2] == [0.2, 0.4]
    assert log[-1][1] == "callback not heard"
    assert log[-1][2]["status"] == "FAILED"


def test_a_listener_that_never_answers_does_not_hold_the_run(loopback):
    hold = threading.Event()
    loopback.fault = lambda request: hold.wait(20) and None
    assert not reporter(loopback.callback).succeeded(seconds=0.3)
    hold.set()


@pytest.mark.parametrize(
    ("response", "cause"),
    [
        ((200, {"code": 404, "msg": "no such task"}), "code 404 no such task"),
        ((403, {}), "HTTP 403"),
    ],
)
def test_a_refusal_is_not_repeated(
    loopback,
    response,
    cause,
):
    loopback.callback_answer = response
    log = Lines()
    assert not reporter(loopback.callback, log).succeeded()
    assert log[-1][2]["cause"] == cause
    assert len(loopback.requests) == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://x/y", "http://[", ""],
)
def test_a_callback_that_is_no_url_costs_a_warning_and_none_costs_nothing(url):
    log = Lines()
    assert not reporter(url, log).succeeded()
    assert [fields["cause"] for *_, fields in log] == (
        ["system.callback is not an HTTP URL"] if url else []
    )
