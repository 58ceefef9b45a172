"""A large table goes through a real node in bounded memory."""

from pathlib import Path

import pytest

from tests.bench.upload import peak_growth, write_table
from tests.e2e import jobs
from tests.e2e.nodes import Federation

MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_is_streamed(tmp_path: Path):
    file = tmp_path / "table.csv"
    rows = write_table(file, 160 * MIB)
    with Federation(tmp_path / "nodes", [jobs.GUEST], {"kind": "process"}) as federation:
        node = federation[jobs.GUEST]
        found, grown = peak_growth(node, lambda: node.upload(file, "large", "table", partitions=4))
        assert found["count"] == rows
        assert grown < 60 * MIB, f"the node grew by {grown / MIB:.0f} MiB"
        assert node.get("/health/live") == {"status": "ok"}
    file.unlink()
