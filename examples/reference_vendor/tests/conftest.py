"""Fixtures that several files of this suite share."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from loopback import Loopback

settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """A transport module that already listens."""
    server = Loopback().listen()
    yield server
    server.close()


@pytest.fixture
def deaf() -> Iterator[Loopback]:
    """A transport module that refuses connections until ``listen``."""
    server = Loopback()
    yield server
    server.close()
