"""Reads Parquet through pyarrow, which the extra ``parquet`` installs: columns, rows, and how many there are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from gateway.data.storage import Storage, Stored
from gateway.data.table_format import PARQUET_MAGIC
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid

PARQUET = "parquet"
INSTALL = "pip install 'bfia-gateway[parquet]'"
_BUFFER = 64 * 1024
"""bytes of a column that are read at a time, so that a group of many rows needs no room as a whole"""


class Schema(NamedTuple):
    """What a table is like."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    """int, float, boolean or string"""
    rows: int | None
    """None: not counted"""
    warnings: tuple[str, ...] = ()
    """what looks odd in it"""


def is_parquet(
    storage: Storage,
    address: Address,
    part: Stored,
) -> bool:
    """Tell whether a file begins as Parquet does. Raises `NotFound`."""
    with storage.open_file(address, part.name) as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def schema(file: BinaryIO, what: str) -> Schema:
    """Read the end of a file. Raises `Conflict`, `Invalid`."""
    with _opened(file, what) as found:
        columns = found.schema_arrow
        return Schema(
            tuple(columns.names), tuple(map(_kind, columns.types)), found.metadata.num_rows
        )


def rows_of(
    storage: Storage,
    address: Address,
    columns: Sequence[str] | None = None,
    batch: int = 1024,
) -> Iterator[list[str]]:
    """Yield the rows of a table as text, an empty cell for null. Raises `NotFound`, `Conflict`, `Invalid`."""
    for part in storage.partitions(address):
        with storage.open_file(address, part.name) as file, _opened(file, part.name) as found:
            for some in found.iter_batches(batch, columns=columns):
                for row in zip(*(column.to_pylist() for column in some.columns), strict=True):
                    yield ["" if cell is None else str(cell) for cell in row]


@contextmanager
def _opened(file: BinaryIO, what: str) -> Iterator[Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, which few nodes have
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        text = f"reading Parquet needs pyarrow at this node: {INSTALL}, and start the gateway again"
        raise Conflict(text, reason="PARQUET_NOT_INSTALLED") from error
    try:
        with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as found:
            yield found
    except (pa.ArrowException, ValueError, NotImplementedError) as error:
        text = str(error).partition("\n")[0]
        raise Invalid(
            [Problem(what, "cannot be read as Parquet", text)], reason="DATA_BROKEN"
        ) from error


def _kind(column: Any) -> str:
    import pyarrow.types as kinds  # noqa: PLC0415

    if kinds.is_integer(column):
        return "int"
    if kinds.is_floating(column) or kinds.is_decimal(column):
        return "float"
    return "boolean" if kinds.is_boolean(column) else "string"
