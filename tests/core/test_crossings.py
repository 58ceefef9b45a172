"""How many of our files and round trips to the database a request crosses; `tools.crossings` prints which."""

from pathlib import Path

import pytest

from tools.crossings import Crossing, measure

MOST = {
    "create_all until the job is stored": (27, 5),
    "a container's callback": (20, 2),
}
"""files, round trips"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Crossing]:
    home: Path = tmp_path_factory.mktemp("node")
    return {crossing.name: crossing for crossing in measure(home)}


@pytest.mark.parametrize("name", MOST)
def test_a_request_crosses_few_files_and_makes_few_round_trips(measured: dict[str, Crossing], name: str) -> None:
    files, round_trips = MOST[name]
    found = measured[name]
    assert 10 < len(found.files) <= files, sorted(found.files)
    assert 1 < found.round_trips <= round_trips, found.statements
