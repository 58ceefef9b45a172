"""Fixtures that several files of this suite share."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from loopback import Loopback
from runs import DATA

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


@pytest.fixture
def root(tmp_path):
    """A storage with the two parties' breast-cancer data: one in partitions, one as a plain
    file.
    """
    lines = (DATA / "breast_hetero_guest.csv").read_text().splitlines(keepends=True)
    directory = tmp_path / "testspace" / "test_guest"
    directory.mkdir(parents=True)
    for number in range(4):
        (directory / f"data_{number}").write_text(lines[0] + "".join(lines[1 + number :: 4]))
    (tmp_path / "testspace" / "test_host").write_bytes(
        (DATA / "breast_hetero_host.csv").read_bytes()
    )
    return tmp_path
