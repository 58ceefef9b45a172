"""Samples of the trials, as many as the time allows; `make chaos` plays all."""

import os

import pytest

from tools.chaos.__main__ import LEAST, run
from tools.chaos.trials import Result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mariadb,
    pytest.mark.skipif(os.geteuid() != 0, reason="chaos mounts a disk and starts a database: it needs root"),
]
SEED = int(os.environ.get("BFIA_CHAOS_SEED", "1"))


def test_no_fault_breaks_a_rule():
    hold(run(SEED, seconds=10, paired=True))


@pytest.mark.s3
@pytest.mark.docker
@pytest.mark.parametrize(
    "engine", [pytest.param("k8s", marks=pytest.mark.kubernetes), pytest.param("swarm", marks=pytest.mark.swarm)]
)
def test_no_fault_breaks_a_rule_in_a_cluster(engine: str):
    """Those of clusters, such as a machine that is gone, come first."""
    hold(run(SEED, seconds=25, engine=engine))


def hold(results: list[Result]) -> None:
    assert len(results) >= LEAST
    assert [result for result in results if result.broken] == []
