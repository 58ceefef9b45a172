"""Reads the rows of a query from a database elsewhere, as a file of CSV. Nothing is changed there."""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.store.database import cause_of

DRIVERS = ("mysql+pymysql", "mariadb+pymysql")
_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_ROWS = 100
"""that are in memory at the same time"""


class Source:
    """A database elsewhere. Every method raises `Invalid`, which never names the password."""

    def __init__(self, url: str, password: str) -> None:
        try:
            given = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise _wrong(
                "from", f"must be an address such as {DRIVERS[0]}://user@host:3306/database"
            ) from None
        if given.drivername not in DRIVERS:
            raise _wrong(
                "from", f"must begin with one of {', '.join(f'{one}://' for one in DRIVERS)}"
            )
        if given.password is not None:
            raise _wrong("from", "must not hold a password, which others on this machine could see")
        self.name = given.set(query={}).render_as_string()
        self._url = given.set(password=password or None)

    @contextmanager
    def selected(self, query: str) -> Iterator["Table"]:
        """Give the rows of a query, which are fetched as they are read."""
        if not _SELECT.match(query):
            raise _wrong("query", "must be one SELECT")
        try:
            # it sends a server no file of this machine, whatever the address says
            engine = sa.create_engine(
                self._url, poolclass=sa.NullPool, connect_args={"local_infile": False}
            )
            connection = engine.connect()
        except (sa.exc.SQLAlchemyError, TypeError, ValueError, OSError, RuntimeError) as error:
            # TypeError: an unknown option; RuntimeError: it asks for a file
            rule = (
                f"{self.name} cannot be used: {cause_of(error)}; compare address, user and password"
            )
            raise _wrong("from", rule) from None
        with connection:
            with _explained():
                connection.exec_driver_sql("set session transaction read only")
                connection.commit()
                options = {
                    "no_parameters": True,
                    "stream_results": True,
                    "max_row_buffer": _ROWS,
                }
                result = connection.exec_driver_sql(query, execution_options=options)
            with closing(
                result
            ):  # before the connection, which would not stop in the middle of rows
                yield Table(result)


class Table(io.RawIOBase):
    """Rows as a file of CSV: UTF-8, comma, with a header; NULL is an empty cell."""

    def __init__(self, result: sa.CursorResult[Any]) -> None:
        self._chunks = _chunks(result)
        self._left = b""

    def readinto(self, buffer: Any, /) -> int:
        """Read what fits. Raises `Invalid`."""
        self._left = self._left or next(self._chunks, b"")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _chunks(result: sa.CursorResult[Any]) -> Iterator[bytes]:
    text = io.StringIO(newline="")
    out = csv.writer(text)
    with _explained():
        columns = list(result.keys())
        out.writerow(columns)
        for rows in result.partitions(_ROWS):
            for row in rows:
                for column, value in zip(columns, row, strict=True):
                    if isinstance(value, bytes):
                        raise _wrong(
                            "query",
                            f"column {column} holds bytes; select hex({column}) or text instead",
                        )
                out.writerow(row)
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (sa.exc.SQLAlchemyError, RuntimeError) as error:
        raise _wrong(
            "query", f"failed: {cause_of(error)}; try it in a client of the database"
        ) from None


def _wrong(field: str, rule: str) -> Invalid:
    return Invalid([Problem(field, rule)], reason="SOURCE_UNUSABLE")
