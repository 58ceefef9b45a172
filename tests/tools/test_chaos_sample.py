"""A sample of the chaos trials; `make chaos` runs all."""

import os

import pytest

from tools.chaos import links
from tools.chaos.__main__ import LEAST, run
from tools.chaos.clusters import FAULTS
from tools.chaos.trials import Result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mariadb,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="chaos mounts a disk and starts a database: it needs root"
    ),
]
SEED = int(os.environ.get("BFIA_CHAOS_SEED", "1"))


def test_no_fault_breaks_a_rule():
    results = run(
        SEED,
        seconds=10,
        paired=True,
    )
    check_results(results)


@pytest.mark.postgresql
def test_no_fault_breaks_a_rule_with_postgresql():
    results = run(
        SEED,
        count=1,
        only="kill database",
        paired=True,
        database="postgresql",
    )
    assert [result.broken for result in results] == [""]


@pytest.mark.s3
@pytest.mark.docker
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            "k8s",
            marks=pytest.mark.kubernetes,
        ),
        pytest.param(
            "swarm",
            marks=pytest.mark.swarm,
        ),
    ],
)
def test_no_fault_breaks_a_rule_in_a_cluster(engine):
    results = run(
        SEED,
        engine=engine,
        brief=True,
    )
    check_results(results)
    faults = {result.trial.fault for result in results}
    assert faults == {*FAULTS[engine], "kill guest"}


@pytest.mark.network
@pytest.mark.outbound_proxy
def test_no_fault_of_links_breaks_a_rule():
    results = run(
        SEED,
        engine="links",
        brief=True,
    )
    check_results(results)
    faults = {result.trial.fault for result in results}
    assert faults == set(links.FAULTS)


def check_results(results: list[Result]) -> None:
    """Check that enough trials were made and that none broke a rule."""
    broken_results = [result for result in results if result.broken]

    assert broken_results == []
    assert len(results) >= LEAST
