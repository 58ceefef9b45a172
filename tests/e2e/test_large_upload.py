"""A large table goes into a real node, and out of it, in bounded memory."""

import hashlib
import os
from urllib.parse import urlsplit

import httpx
import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import Federation
from tools.bench.upload import fetch, peak_growth, send, write_table

MIB = 1024 * 1024


@pytest.mark.slow
def test_a_table_is_streamed_in_and_out(tmp_path):
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
            with httpx.stream(
                "GET",
                url,
                headers=want,
                timeout=120,
                trust_env=False,
            ) as answer:
                for piece in answer.iter_raw(MIB):
                    digest.update(piece)
                    size += len(piece)
                return size, digest.hexdigest(), answer.headers["x-checksum-sha256"]

        (size, ours, theirs), grown = peak_growth(node, fetched)
        assert size > 160 * MIB
        assert ours == theirs
        assert grown < 40 * MIB, f"the node grew by {grown / MIB:.0f} MiB"


@pytest.mark.slow
@pytest.mark.s3
def test_a_table_at_s3_is_streamed_in_and_out(tmp_path):
    file = tmp_path / "table.csv"
    rows = write_table(file, 100 * MIB)
    with real.bucket() as place:
        url, key = (
            urlsplit(place.url),
            {"username": os.environ["BFIA_TEST_S3_KEY"], "region": "default"},
        )
        lake = {
            "url": f"s3://{url.netloc}/{place.name}",
            "password": os.environ["BFIA_TEST_S3_SECRET"],
            **key,
        }
        made = Federation(
            tmp_path / "nodes", [jobs.GUEST], {"kind": "process"}, storages={"lake": lake}
        )
        with made as federation:
            node = federation[jobs.GUEST]
            _, grown = peak_growth(node, lambda: send(node, file, "large", "table"))
            assert grown < 64 * MIB, f"the node grew by {grown / MIB:.0f} MiB"
            assert node.get("/api/v1/datasets/large/table")["count"] == rows
            _, grown = peak_growth(node, lambda: fetch(node, "large", "table"))
            assert grown < 40 * MIB, f"the node grew by {grown / MIB:.0f} MiB"
            assert not list(node.storage.glob("large*"))
