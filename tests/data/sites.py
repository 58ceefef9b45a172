"""Storages and tables of a node, for tests of data."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.domain.datasets import Dataset, MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Invalid
from tests.storages import upload

# Storages elsewhere at which nothing listens.
LAKE = Remote(
    "lake",
    "s3",
    "127.0.0.1",
    1,
    "joint",
    "key",
    "secret",
)
CLUSTER = Remote("cluster", "hdfs", "127.0.0.1", 1, "/joint")

TABLE = Address("testspace", "test_guest")
TABLE_ID = "testspace#test_guest"
NOW = datetime(
    2026,
    11,
    21,
    8,
    0,
    tzinfo=UTC,
)
LONGEST_RULE = 500  # characters of a problem's rule
LONGEST_EXCERPT = 120  # characters of the refused value in a problem


def storages_at(
    folder: Path,
    *remotes: Remote,
    stand_in: bool = True,
) -> Storages:
    """Return a node's folder and its storages elsewhere, as one."""
    return Storages(
        FileStorage(folder),
        remotes,
        stand_in=stand_in,
    )


class Site:
    """A node's datasets in its folder alone."""

    def __init__(
        self,
        folder: Path,
        repository: MemoryDatasets | None = None,
    ) -> None:
        self.storage = storages_at(folder / "storage")
        self.repository = repository or MemoryDatasets()
        self.roots = [folder / "one", folder / "two"]
        self.datasets = Datasets(self.storage, self.repository, self.roots, lambda: NOW)

    def store(
        self,
        content: str | bytes,
        filename: str = "t.csv",
        address: Address = TABLE,
        **options: Any,
    ) -> Dataset:
        """Upload a table; ``options`` as for `Upload`."""
        return upload(self.datasets, content, address, name=filename, **options)

    def problems(
        self,
        content: str | bytes,
        **options: Any,
    ) -> list[tuple[str, str]]:
        """Return (path, rule) of the problems for which an upload is refused, which leaves nothing.

        A program sent by mistake must neither fill a terminal nor control it.
        """
        with pytest.raises(Invalid) as refusal:
            self.store(content, **options)
        assert self.is_empty()
        problems = []
        for problem in refusal.value.problems:
            assert problem.rule.isprintable()
            assert len(problem.rule) <= LONGEST_RULE
            if isinstance(problem.got, str):
                assert problem.got.isprintable()
                assert len(problem.got) <= LONGEST_EXCERPT
            problems.append((problem.path, problem.rule))
        return problems

    def parts(self, address: Address = TABLE) -> list[str]:
        """Return the texts of a table's partitions."""
        folder = self.storage.path(address)
        partitions = self.storage.partitions(address)
        return [(folder / part.name).read_bytes().decode() for part in partitions]

    def is_empty(self) -> bool:
        """True if the storage has neither a table nor anything half-written."""
        return not list(self.storage.root.glob("*/*"))
