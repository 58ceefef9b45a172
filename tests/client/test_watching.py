"""A job is watched through silences of its node; the clock is a function of the test."""

from collections.abc import Iterator
from typing import Any

import pytest

from bfia_gateway_client.bridge import iterate_blocking
from bfia_gateway_client.errors import GatewayError, NoAnswer, Refused
from bfia_gateway_client.progress import SILENT_SECONDS, watch_job

SILENT = NoAnswer("no answer")
DATABASE_AWAY = Refused("the database is away", reason="DATABASE_AWAY")
UNKNOWN = Refused("no such job", reason="JOB_UNKNOWN")
RUNNING = {"status": "RUNNING"}
FINISHED = {"status": "FINISHED"}


def watch(
    responses: tuple[Any, ...], seconds_per_look: float, notices: list[str]
) -> Iterator[tuple[str, bool]]:
    """Yield the status at each look, and True if the node is in trouble.

    ``responses`` are the node's; an error is raised in place of one. Notices for the user are added
    to ``notices``.
    """
    remaining = iter(responses)
    now = 0.0

    async def look() -> dict[str, Any]:
        nonlocal now
        now += seconds_per_look
        response = next(remaining)
        if isinstance(response, GatewayError):
            raise response
        return dict(response)

    async def sleep(seconds: float) -> None:
        """Return immediately."""

    def clock() -> float:
        return now

    watching = watch_job(
        look,
        sleep,
        now=clock,
        notice=notices.append,
    )
    for job, trouble in iterate_blocking(watching):
        yield job["status"], bool(trouble)


def test_a_silence_of_the_node_is_waited_out():
    notices: list[str] = []
    responses = (RUNNING, SILENT, DATABASE_AWAY, RUNNING, SILENT, FINISHED)
    assert list(watch(responses, 1.0, notices)) == [
        ("RUNNING", False),
        ("RUNNING", True),
        ("RUNNING", True),
        ("RUNNING", False),
        ("RUNNING", True),
        ("FINISHED", False),
    ]
    assert notices == []


def test_a_node_that_is_starting_is_waited_for():
    notices: list[str] = []
    responses = (SILENT, SILENT, DATABASE_AWAY, FINISHED)
    assert list(watch(responses, 1.0, notices)) == [("FINISHED", False)]
    assert notices == ["no answer; retrying for up to 30 s"]


@pytest.mark.parametrize(
    ("responses", "looks"),
    [
        ((SILENT, SILENT), 0),
        ((UNKNOWN,), 0),
        ((SILENT, UNKNOWN), 0),
        ((RUNNING, UNKNOWN), 1),
        ((RUNNING, *[SILENT] * 3, RUNNING, *[SILENT] * 20), 9),
    ],
    ids=[
        "wrong-address",
        "unknown",
        "unknown-after-silence",
        "deleted",
        "each-response-restarts-the-limit",
    ],
)
def test_watching_ends_with_an_error_if_waiting_is_useless(responses, looks):
    statuses = []
    with pytest.raises(GatewayError):
        for status in watch(responses, SILENT_SECONDS / 4, []):
            statuses.append(status)
    assert len(statuses) == looks
