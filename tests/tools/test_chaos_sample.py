"""A sample of the trials with two gateways at one node, as many as the time allows; `make chaos` plays all."""

import os

import pytest

from tools.chaos.__main__ import LEAST, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mariadb,
    pytest.mark.skipif(os.geteuid() != 0, reason="chaos mounts a disk and starts a database: it needs root"),
]


def test_no_fault_breaks_a_rule():
    seed = int(os.environ.get("BFIA_CHAOS_SEED", "1"))
    results = run(seed, seconds=10, paired=True)
    assert len(results) >= LEAST
    assert [result for result in results if result.broken] == []
