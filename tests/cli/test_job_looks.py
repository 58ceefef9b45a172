"""Watching a job goes on through a restart of the node, and ends where there is nothing to wait for."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.cli import jobs
from gateway.cli.client import EXIT_FAILED, EXIT_NO_ANSWER, CallFailed, Client
from gateway.cli.console import cell
from gateway.cli.jobs import SILENT_SECONDS, in_short, looks

SILENT = CallFailed("no answer", EXIT_NO_ANSWER, "NO_ANSWER")
AWAY = CallFailed("the database is away", EXIT_FAILED, "DATABASE_AWAY")
RUNS, DONE = {"status": "RUNNING"}, {"status": "FINISHED"}


def watched(*answers: Any, lasting: float = 1.0) -> Iterator[tuple[str, bool]]:
    """Yield the states that are seen, and whether there is a word on trouble; each look takes so many seconds."""
    coming, clock = iter(answers), [0.0]

    def ask() -> dict[str, Any]:
        clock[0] += lasting
        found = next(coming)
        if isinstance(found, CallFailed):
            raise found
        return dict(found)

    for job, trouble in looks(ask, now=lambda: clock[0], sleep=lambda _: None):
        yield job["status"], bool(trouble)


def test_a_silence_is_told_and_waited_out_and_the_end_is_seen():
    seen = list(watched(RUNS, SILENT, AWAY, SILENT, RUNS, SILENT, DONE))
    assert seen == [
        ("RUNNING", False),
        ("RUNNING", True),
        ("RUNNING", True),
        ("RUNNING", True),
        ("RUNNING", False),
        ("RUNNING", True),
        ("FINISHED", False),
    ]


def test_a_node_that_is_just_being_started_is_waited_for():
    coming, said = iter([SILENT, SILENT, AWAY, DONE]), list[str]()

    def ask() -> dict[str, Any]:
        found = next(coming)
        if isinstance(found, CallFailed):
            raise found
        return dict(found)

    seen = [job["status"] for job, _ in looks(ask, now=lambda: 0.0, sleep=lambda _: None, tell=said.append)]
    assert seen == ["FINISHED"] and said == ["no answer; retrying for up to 30 s"]


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ((SILENT,) * 2, 0),  # nothing was ever seen: the address is wrong
        ((CallFailed("no such job", EXIT_FAILED, "JOB_UNKNOWN"),), 0),
        ((SILENT, CallFailed("no such job", EXIT_FAILED, "JOB_UNKNOWN")), 0),
        ((RUNS, CallFailed("no such job", EXIT_FAILED, "JOB_UNKNOWN")), 1),
        ((RUNS, *[SILENT] * 3, RUNS, *[SILENT] * 20), 9),  # it begins to count anew with each answer
    ],
)
def test_it_ends_where_there_is_nothing_to_wait_for(answers: tuple[Any, ...], times: int):
    seen = []
    with pytest.raises(CallFailed):
        for look in watched(*answers, lasting=SILENT_SECONDS / 4):
            seen.append(look)
    assert len(seen) == times


class Interrupted(Client):
    """A node at which somebody loses patience."""

    def __init__(self) -> None:
        pass

    def call(self, *_: object, **__: object) -> object:
        raise KeyboardInterrupt


def test_who_stops_watching_a_job_is_told_that_it_goes_on(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt):
        jobs._watch(Interrupted(), "job-1", as_json=False)
    assert "the job goes on" in capsys.readouterr().err


def test_many_warnings_do_not_hide_the_rest():
    assert in_short(["a", "b", "c"], "job-1", 3) == ["warning: a", "warning: b", "warning: c"]
    last = in_short([str(n) for n in range(13)], "job-1", 3)[-1]
    assert last == "10 more warnings: bfia-gateway job show job-1"


def test_a_line_of_the_timeline_is_written_for_people():
    failure = {"reason": "STOPPED", "message": "", "node": "", "exit_code": None, "tried": [1, 2], "last": True}
    assert cell({"failure": failure, "to": "FAILED"}) == "failure reason STOPPED; tried 1, 2; last yes; to FAILED"
