"""A large table goes into a real node, and out of it, in bounded memory."""

import hashlib
from pathlib import Path

import httpx
import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation
from tools.bench.upload import peak_growth, write_table

MIB = 1024 * 1024


@pytest.mark.slow
def test_a_table_is_streamed_in_and_out(tmp_path: Path):
    file = tmp_path / "table.csv"
    rows = write_table(file, 64 * MIB)
    with Federation(tmp_path / "nodes", [jobs.GUEST], {"kind": "process"}) as federation:
        node = federation[jobs.GUEST]
        found, grown = peak_growth(node, lambda: node.upload(file, "large", "table", partitions=4))
        assert found["count"] == rows
        assert grown < 40 * MIB, f"the node grew by {grown / MIB:.0f} MiB"
        assert node.get("/health/live") == {"status": "ok"}
        file.unlink()
        (last,) = node.storage.glob("large/table/data_3")
        with last.open("r+b") as part:  # much more, which lies on no disk
            part.truncate(128 * MIB)

        def fetched() -> tuple[int, str, str]:
            digest, size = hashlib.sha256(), 0
            url = node.operator + "/api/v1/datasets/large/table/download"
            want = {"want-repr-digest": "sha-256=1"}
            with httpx.stream("GET", url, headers=want, timeout=120, trust_env=False) as answer:
                for piece in answer.iter_raw(MIB):
                    digest.update(piece)
                    size += len(piece)
                return size, digest.hexdigest(), answer.headers["x-checksum-sha256"]

        (size, ours, theirs), grown = peak_growth(node, fetched)
        assert size > 160 * MIB and ours == theirs
        assert grown < 40 * MIB, f"the node grew by {grown / MIB:.0f} MiB"
