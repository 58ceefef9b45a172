"""SQL that each kind of database writes differently.

Each class is an expression for any query. Compiled by the dialect's name, so that no dialect is
imported which the node does not use.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class _Now(FunctionElement[float]):
    """The database's time in seconds since the epoch, with fractions."""

    type = sa.Double()
    inherit_cache = True


class _Position(FunctionElement[int]):
    """The position, from 1, of a text in another one; 0 if it does not occur."""

    type = sa.Integer()
    inherit_cache = True


class _JsonMember(FunctionElement[str]):
    """A member of a JSON object in a text column, as JSON."""

    type = sa.String()
    inherit_cache = True


def now() -> sa.ColumnElement[float]:
    """Return the database's time in seconds since the epoch, as of the statement's start."""
    return _Now()


def position(
    text: sa.ColumnElement[str],
    part: str,
) -> sa.ColumnElement[int]:
    """Return the position of ``part`` in ``text``, counted from 1; 0 if it does not occur.

    Case matters, and no character has a special meaning.
    """
    return _Position(text, sa.literal(part, sa.String()))


def json_member(
    text: sa.ColumnElement[str],
    name: str,
) -> sa.ColumnElement[str]:
    """Return a member of the JSON object that a column holds, as JSON text.

    A missing member is null, or the JSON text ``null``. ``name`` is an identifier.
    """
    return _JsonMember(text, sa.literal(name, sa.String()))


# ------------------------------------------------------------ MariaDB and MySQL


@compiles(_Now)
def _now(*_: Any, **_options: Any) -> str:
    # Adding 0e0 makes a double of the server's decimal number.
    return "(unix_timestamp(now(6)) + 0e0)"


@compiles(_Position)
def _instr(element: Any, compiler: Any, **options: Any) -> str:
    return f"instr({compiler.process(element.clauses, **options)})"


@compiles(_JsonMember)
def _json_extract(element: Any, compiler: Any, **options: Any) -> str:
    text, name = _arguments(element, compiler, options)
    # A text by `concat`: MariaDB compares the result of json_extract itself without its quotes.
    return f"concat(json_extract({text}, concat('$.', {name})), '')"


# ------------------------------------------------------------ SQLite


@compiles(_Now, "sqlite")
def _now_of_sqlite(*_: Any, **_options: Any) -> str:
    # days, counted from 2440587.5 at the epoch
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(_JsonMember, "sqlite")
def _json_extract_of_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    text, name = _arguments(element, compiler, options)
    return f"json_quote(json_extract({text}, '$.' || {name}))"


# ------------------------------------------------------------ PostgreSQL


@compiles(_Now, "postgresql")
def _now_of_postgresql(*_: Any, **_options: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS DOUBLE PRECISION)"


@compiles(_Position, "postgresql")
def _strpos(element: Any, compiler: Any, **options: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **options)})"


@compiles(_JsonMember, "postgresql")
def _json_operator(element: Any, compiler: Any, **options: Any) -> str:
    text, name = _arguments(element, compiler, options)
    # The operator fails if any text of the object contains a NUL character.
    without_nul = rf"replace({text}, '\u0000', '\ufffd')"
    return f"CAST(CAST({without_nul} AS JSON) -> {name} AS TEXT)"


def _arguments(element: Any, compiler: Any, options: dict[str, Any]) -> list[str]:
    """Return the arguments of an expression as SQL."""
    return [compiler.process(clause, **options) for clause in element.clauses]
