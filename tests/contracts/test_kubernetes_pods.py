"""How the Kubernetes engine reads the status of a run from its pods."""

from typing import Any

import pytest

from engines.base import Exited, Missing, Running
from tests.contracts.kubernetes import ENDED, SEEN, THEN, a_pod

pytestmark = pytest.mark.kubernetes
RUNS = SEEN | {
    "ready": True,
    "state": {"running": {"startedAt": THEN}},
}
IS_DELETED = {"deletionTimestamp": THEN}


def a_status(
    phase: str,
    container: dict[str, Any] | None = None,
    **fields: str,
) -> dict[str, Any]:
    """Return a pod's status, without a container if there is none."""
    status: dict[str, Any] = {"phase": phase, **fields}
    if container is not None:
        status["containerStatuses"] = [container]
    return status


@pytest.mark.parametrize(
    ("status", "metadata", "probe", "is_over"),
    [
        (a_status("Pending"), {}, Missing, False),
        (a_status("Running", RUNS), {}, Running, False),
        (
            a_status(
                "Failed",
                RUNS,
                reason="DeadlineExceeded",
            ),
            {},
            Running,
            False,
        ),
        (a_status("Running", RUNS), IS_DELETED, Running, False),
        (a_status("Failed", ENDED), {}, Exited, True),
        (
            a_status(
                "Failed",
                ENDED,
                reason="Evicted",
            ),
            {},
            Missing,
            True,
        ),
        (
            a_status(
                "Failed",
                reason="Evicted",
                message="low on memory",
            ),
            {},
            Missing,
            True,
        ),
        (a_status("Failed", ENDED), IS_DELETED, Missing, True),
    ],
)
def test_a_run_that_a_cluster_takes_away_is_lost_and_has_not_failed(
    status, metadata, probe, is_over
):
    pod = a_pod(status, **metadata)

    assert type(pod.probe()) is probe
    assert pod.is_over == is_over
