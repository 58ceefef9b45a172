"""Reads Parquet through pyarrow, which the extra ``parquet`` installs: columns, types, rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from gateway.data.storage import Storage, Stored
from gateway.data.table_format import PARQUET_MAGIC
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid

PARQUET = "parquet"  # the file format, as datasets name it
INSTALL = "pip install 'bfia-gateway[parquet]'"
_BUFFER = 64 * 1024  # bytes of a column that are read at a time, however large a row group is


class Schema(NamedTuple):
    """The columns of a table of Parquet or CSV files, its size, and warnings about it."""

    columns: tuple[str, ...]
    types: tuple[str, ...]  # int, float, boolean or string
    rows: int | None  # their number; None: not counted, as not all rows of CSV files were read
    warnings: tuple[str, ...] = ()


def is_parquet(
    storage: Storage,
    address: Address,
    partition: Stored,
) -> bool:
    """Return whether a file begins like Parquet. Raises `NotFound`."""
    with storage.open_file(address, partition.name) as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def schema(file: BinaryIO, name: str) -> Schema:
    """Return the schema of a Parquet file; ``name`` is the file's, for errors.

    Raises `Conflict` without pyarrow, `Invalid` if the file is damaged.
    """
    with _open_parquet(file, name) as table:
        columns = table.schema_arrow
        return Schema(
            columns=tuple(columns.names),
            types=tuple(map(_type_name, columns.types)),
            rows=table.metadata.num_rows,
        )


def rows_of(
    storage: Storage,
    address: Address,
    columns: Sequence[str] | None = None,
    batch: int = 1024,
) -> Iterator[list[str]]:
    """Yield the rows of a table as text; null is an empty cell.

    - ``columns``: the names of the columns to read; None: all
    - ``batch``: the number of rows in memory at a time

    Raises `NotFound`, `Conflict`, `Invalid`.
    """
    for partition in storage.partitions(address):
        name = partition.name
        with storage.open_file(address, name) as file, _open_parquet(file, name) as table:
            for record_batch in table.iter_batches(batch, columns=columns):
                cells = [column.to_pylist() for column in record_batch.columns]
                for row in zip(*cells, strict=True):
                    yield list(map(_text, row))


@contextmanager
def _open_parquet(file: BinaryIO, name: str) -> Iterator[Any]:
    """Open a Parquet file; ``name`` is the file's, for errors.

    Raises `Conflict` without pyarrow, and `Invalid` if the file is damaged, even if reading notices
    that only inside the context.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, which few nodes have
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        text = f"reading Parquet needs pyarrow at this node: {INSTALL}, and start the gateway again"
        raise Conflict(text, reason="PARQUET_NOT_INSTALLED") from error
    try:
        with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as table:
            yield table
    except (pa.ArrowException, ValueError, NotImplementedError) as error:
        raise _damaged_error(name, error) from error
    except OSError as error:
        if error.errno is not None:  # the system's; pyarrow's own, of damaged pages, has no number
            raise
        raise _damaged_error(name, error) from error


def _damaged_error(name: str, error: Exception) -> Invalid:
    """Return the refusal of a damaged file, with the first line of pyarrow's error."""
    first_line = str(error).partition("\n")[0]
    problem = Problem(name, "cannot be read as Parquet", first_line)
    return Invalid([problem], reason="DATA_BROKEN")


def _type_name(column: Any) -> str:
    """Return our name of a column's type in pyarrow."""
    import pyarrow.types as kinds  # noqa: PLC0415 - as in `_open_parquet`

    if kinds.is_integer(column):
        return "int"
    if kinds.is_floating(column) or kinds.is_decimal(column):
        return "float"
    if kinds.is_boolean(column):
        return "boolean"
    return "string"


def _text(cell: Any) -> str:
    """Return a value as the text of a cell; "" for null."""
    if cell is None:
        return ""
    return str(cell)
