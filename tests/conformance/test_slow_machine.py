"""What a machine does that stands still for some seconds is not held against the component."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from gateway.conformance.check import Checked, Given, check, described
from gateway.conformance.clauses import CLAUSES
from gateway.conformance.evidence import Requests, StateReport, Trace, Written
from gateway.conformance.loopback import Loopback, Recorder, Station
from gateway.conformance.sandbox import Plan, Sandbox
from provider_registry.model import Component
from tests.conformance.conftest import registration

NODE = "JG0100001100000010"
STATES = tuple(StateReport(status, "t", "guest", True) for status in ("RUNNING", "SUCCESS"))
WELL = Trace(
    "guest.0", "t", "s", "k", Requests(STATES), code=0, stdout=b"begins\n", outputs={"counts": Written(True)}
)
ENDED = Trace(
    "guest.0", "t", "s", "k", Requests(STATES[:1]), code=143, signal=15, was_stopped=True, stop_seconds=0.1
)
KILLED = replace(ENDED, code=137, signal=9, stop_seconds=10.0)


class Scripted:
    """A sandbox whose trials come out as is written down."""

    confined = False

    def __init__(self, together: list[Trace], stopped: list[Trace]) -> None:
        self._together, self._stopped = together, stopped

    def run(self, component: Component, plan: Plan) -> tuple[Trace, ...]:
        return ((self._stopped if plan.stop else self._together).pop(0),)


def checked(clause: str, together: list[Trace], stopped: list[Trace]) -> Checked:
    body = registration()
    body["components_description"]["Count"]["roleList"] = ["guest"]
    provider = described(body).provider
    assert provider is not None
    sandbox = cast(Sandbox, Scripted(together, stopped))
    only: Callable[[str], None] = lambda step: None  # noqa: E731
    return check(sandbox, provider.components["Count"], Given(), only, [c for c in CLAUSES if c.name == clause])


def test_what_one_trial_shows_and_the_next_does_not_is_told_and_breaks_nothing() -> None:
    silent = replace(WELL, requests=Requests())
    one = checked("callback-sent", [silent, WELL], [])
    ((_, finding),) = one.findings
    assert one.good and "in an earlier trial: no callback from guest.0" in finding.seen


def test_what_two_trials_show_is_broken() -> None:
    silent = replace(WELL, requests=Requests())
    assert not checked("callback-sent", [silent, silent], []).good


def test_a_second_trial_that_does_not_get_to_its_end_shows_nothing() -> None:
    silent, failing = replace(WELL, requests=Requests()), replace(WELL, requests=Requests(), code=1)
    assert not checked("callback-sent", [silent, failing, failing, failing], []).good


def test_who_had_no_time_of_its_grace_once_gets_it_again() -> None:
    one = checked("sigterm", [WELL], [KILLED, ENDED])
    assert one.good and "guest.0 ended after 0.1 s" in one.findings[0][1].seen


def test_who_has_to_be_killed_every_time_has_broken_the_clause() -> None:
    assert not checked("sigterm", [WELL], [KILLED] * 3).good


def test_a_callback_is_heard_whose_sender_is_gone_and_in_its_turn(tmp_path: Path) -> None:
    recorder = Recorder("run")
    with Loopback({NODE: Station("guest.0", NODE, "run", "token", recorder)}, "127.0.0.1", tmp_path) as loopback:
        host, _, port = loopback.transport(NODE).partition(":")
        path = loopback.callback(NODE).partition(loopback.transport(NODE))[2]
        for number in range(40):
            report = {"task_id": "t", "status": "RUNNING", "role": "guest", "result_code": str(number)}
            body = json.dumps(report)
            head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
            with socket.create_connection((host, int(port))) as sender:
                sender.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        loopback.await_callbacks(NODE)
        assert [report.result_code for report in recorder.requests.reports] == [
            str(number) for number in range(40)
        ]
        assert recorder.requests.refused == ()
