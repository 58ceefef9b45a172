"""A large table is uploaded to a real node and downloaded in bounded memory."""

import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.downloads import download
from tests.e2e.nodes import Federation
from tests.e2e.test_storages import settings_of
from tools.bench.upload import fetch, peak_growth, send, write_table

MIB = 1024 * 1024


def check_growth(growth: float, limit: int) -> None:
    """Check how much memory a node took; both are bytes."""
    assert growth < limit, f"the node grew by {growth / MIB:.0f} MiB"


@pytest.mark.slow
def test_a_table_is_streamed_in_and_out(tmp_path):
    file = tmp_path / "table.csv"
    rows = write_table(file, 64 * MIB)
    with Federation(tmp_path / "nodes", [jobs.GUEST], {"kind": "process"}) as federation:
        node = federation[jobs.GUEST]
        dataset, growth = peak_growth(
            node, lambda: node.upload(file, "large", "table", partitions=4)
        )
        assert dataset["count"] == rows
        check_growth(growth, 40 * MIB)
        assert node.get("/health/live") == {"status": "ok"}

        file.unlink()
        (last_partition,) = node.storage.glob("large/table/data_3")
        with last_partition.open("r+b") as stream:
            stream.truncate(128 * MIB)  # a sparse file, which takes no disk space
        result, growth = peak_growth(node, lambda: download(node))
        assert result.size > 160 * MIB
        assert result.checksum == result.announced_checksum
        check_growth(growth, 40 * MIB)


@pytest.mark.slow
@pytest.mark.s3
def test_a_table_at_s3_is_streamed_in_and_out(tmp_path):
    file = tmp_path / "table.csv"
    rows = write_table(file, 100 * MIB)
    with real.bucket() as bucket:
        federation = Federation(
            tmp_path / "nodes",
            [jobs.GUEST],
            {"kind": "process"},
            storages=settings_of(bucket),
        )
        with federation:
            node = federation[jobs.GUEST]
            _, growth = peak_growth(node, lambda: send(node, file, "large", "table"))
            check_growth(growth, 64 * MIB)
            assert node.get("/api/v1/datasets/large/table")["count"] == rows

            _, growth = peak_growth(node, lambda: fetch(node, "large", "table"))
            check_growth(growth, 40 * MIB)
            # Nothing was stored in the node's own folder.
            assert not list(node.storage.glob("large*"))
