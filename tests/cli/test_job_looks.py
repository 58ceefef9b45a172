"""Watching a job goes on through a restart of the node, and ends where there is nothing to wait for."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.cli.client import EXIT_FAILED, EXIT_NO_ANSWER, CallFailed
from gateway.cli.jobs import SILENT_SECONDS, looks

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
