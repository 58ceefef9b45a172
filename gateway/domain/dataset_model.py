"""What is known of a dataset, and where that is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from gateway.domain.run import Address


@dataclass(frozen=True)
class Dataset:
    """A table in this node's storage."""

    namespace: str
    name: str
    columns: tuple[str, ...]
    count: int
    """rows, headers not counted"""
    partitions: int
    meta: Mapping[str, Any]
    """as uploaded: delimiter is that of the uploaded file, in the storage it is a comma"""
    checksum: str
    """sha256 of the uploaded file, hex"""
    size: int
    """bytes of the uploaded file"""
    created_at: datetime
    origin: str
    """``path:`` and the server path, or ``file:`` and the name of the file that was sent"""
    disabled: bool = False
    types: tuple[str, ...] = ()
    """of each column: int, float, boolean or string"""
    sid: str = ""
    """name of the generated column, empty where there is none"""
    description: str = ""

    @property
    def address(self) -> Address:
        """Where it lies in the storage."""
        return Address(self.namespace, self.name)

    @property
    def dataset_id(self) -> str:
        """The name by which jobs ask for it."""
        return f"{self.namespace}#{self.name}"


class DatasetRepository(Protocol):
    """Keeps what is known of datasets."""

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""

    def put(self, dataset: Dataset) -> None:
        """Store a dataset; one of the same namespace and name is replaced."""

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False where it is unknown."""

    def list(self) -> list[Dataset]:
        """Return all, by namespace and name."""


class MemoryDatasets:
    """A `DatasetRepository` that lives as long as its process."""

    def __init__(self, datasets: Iterable[Dataset] = ()) -> None:
        self._kept = {(d.namespace, d.name): d for d in datasets}

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""
        return self._kept.get((namespace, name))

    def put(self, dataset: Dataset) -> None:
        """Keep what is known, in the place of what was known before."""
        self._kept[dataset.namespace, dataset.name] = dataset

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False: it was not known."""
        return self._kept.pop((namespace, name), None) is not None

    def list(self) -> list[Dataset]:
        """Return all of them, by namespace and name."""
        return [self._kept[key] for key in sorted(self._kept)]
