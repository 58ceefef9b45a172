"""Fixtures of the tests of the broker."""

import pytest

from tests.broker.brokers import Brokers


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def brokers(tmp_path):
    brokers = Brokers(tmp_path / "spool")
    yield brokers
    brokers.close()
