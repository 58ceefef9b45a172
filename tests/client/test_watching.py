"""A job is watched through silences of its node; time is an argument, and nothing is slept."""

from collections.abc import Iterator
from typing import Any

import pytest

from bfia_gateway_client.bridge import iterate_blocking
from bfia_gateway_client.errors import GatewayError, NoAnswer, Refused
from bfia_gateway_client.progress import SILENT_SECONDS, watch_job

SILENT = NoAnswer("no answer")
AWAY = Refused("the database is away", reason="DATABASE_AWAY")
UNKNOWN = Refused("no such job", reason="JOB_UNKNOWN")
RUNS, DONE = {"status": "RUNNING"}, {"status": "FINISHED"}


def watched(
    said: list[str],
    answers: tuple[Any, ...],
    lasting: float,
) -> Iterator[tuple[str, bool]]:
    """Yield the states that are seen, and whether there is a word on trouble; each look takes so many seconds."""
    coming, clock = iter(answers), [0.0]

    async def look() -> dict[str, Any]:
        clock[0] += lasting
        found = next(coming)
        if isinstance(found, GatewayError):
            raise found
        return dict(found)

    async def sleep(seconds: float) -> None:
        """Sleep never."""

    for job, trouble in iterate_blocking(
        watch_job(look, sleep, now=lambda: clock[0], notice=said.append)
    ):
        yield job["status"], bool(trouble)


@pytest.mark.parametrize(
    ("answers", "seen", "said"),
    [
        ((RUNS, SILENT, AWAY, RUNS, SILENT, DONE), "RTTRTD", []),
        ((SILENT, SILENT, AWAY, DONE), "D", ["no answer; retrying for up to 30 s"]),
    ],
    ids=["a silence is waited out", "a node that is just being started is waited for"],
)
def test_watching_goes_on_through_a_restart_of_the_node(answers, seen, said):
    told: list[str] = []
    states = {
        "R": ("RUNNING", False),
        "T": ("RUNNING", True),
        "D": ("FINISHED", False),
    }
    assert list(watched(told, answers, 1.0)) == [states[letter] for letter in seen]
    assert told == said


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ((SILENT,) * 2, 0),  # nothing was ever seen: the address is wrong
        ((UNKNOWN,), 0),
        ((SILENT, UNKNOWN), 0),
        ((RUNS, UNKNOWN), 1),
        (
            (RUNS, *[SILENT] * 3, RUNS, *[SILENT] * 20),
            9,
        ),  # it begins to count anew with each answer
    ],
)
def test_watching_ends_where_there_is_nothing_to_wait_for(answers, times):
    seen = []
    with pytest.raises(GatewayError):
        for look in watched([], answers, SILENT_SECONDS / 4):
            seen.append(look)
    assert len(seen) == times
