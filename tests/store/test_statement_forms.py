"""``doctor --database`` tries every construct of SQL that the store uses."""

import ast
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from gateway.store import database, queries
from gateway.store.statement_forms import FORMS, open_stores, scratch_space

STORE = Path(database.__file__).parent
# Modules without queries: the tables, and what differs between the kinds of databases.
WITHOUT_QUERIES = {"schema.py", "dialects.py", "functions.py"}
CLASSES = (sa.Select, sa.CompoundSelect, sa.Update, sa.Insert, sa.Delete, sa.Subquery, sa.Column)
# Other objects have methods of these names, too. Each write is an insert or an update with values.
AMBIGUOUS = {name for kind in (str, dict, list, set, Path) for name in dir(kind)}
METHODS = {name for kind in CLASSES for name in dir(kind)} - AMBIGUOUS
# They change no SQL, or have SQL as text.
NOT_SQL = {"bindparam", "compile", "create_engine", "info", "inline", "inspect", "make_url", "text"}
# The form "restores" has them on PostgreSQL alone.
ONLY_ON_POSTGRESQL = {"func.pg_get_serial_sequence", "func.setval"}


def test_every_construct_of_the_store_is_in_a_form():
    executed = lines_that_the_forms_execute()
    places = defaultdict(list)
    tried = set()
    for file in sorted(STORE.glob("*.py")):
        if file.name in WITHOUT_QUERIES:
            continue
        for construct, lines in constructs_in(file):
            places[construct].append(f"{file.name}:{lines[0]}")
            if executed[str(file)].intersection(lines):
                tried.add(construct)

    assert len(tried) > 20
    untried = {
        construct: places[construct] for construct in places.keys() - tried - ONLY_ON_POSTGRESQL
    }
    assert untried == {}, "add them to a form of gateway/store/statement_forms.py"


def lines_that_the_forms_execute() -> dict[str, set[int]]:
    """Run every form on SQLite; return the lines of the store's modules that ran, by file."""
    for value in vars(queries).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    with scratch_space("sqlite://") as url, traced() as lines:
        stores = open_stores(url)
        for form in FORMS.values():
            form(stores)
        stores.first.close()
        stores.second.close()
    return lines


@contextmanager
def traced() -> Iterator[dict[str, set[int]]]:
    """Note the lines of the store's modules that run, in every thread."""
    lines: dict[str, set[int]] = defaultdict(set)

    def note(frame, event, _argument):
        if not frame.f_code.co_filename.startswith(str(STORE)):
            return None
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return note

    earlier = sys.gettrace()
    threading.settrace(note)
    sys.settrace(note)
    try:
        yield lines
    finally:
        sys.settrace(earlier)
        threading.settrace(None)


def constructs_in(file: Path) -> Iterator[tuple[str, range]]:
    """Yield the constructs that a module calls, each with the lines of its statement."""
    tree = ast.parse(file.read_text())
    imported = names_from_sqlalchemy(tree)
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt) or isinstance(statement, ast.ClassDef):
            continue
        lines = range(statement.lineno, statement.end_lineno + 1)
        for expression in ast.iter_child_nodes(statement):
            if not isinstance(expression, ast.expr):
                continue
            for node in ast.walk(expression):
                construct = construct_of(node, imported)
                if construct:
                    yield construct, lines


def names_from_sqlalchemy(tree: ast.Module) -> set[str]:
    """Return the names that a module imports from SQLAlchemy."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy":
            names.update(alias.name for alias in node.names)
    return names


def construct_of(node: ast.AST, imported: set[str]) -> str:
    """Return the name of the construct that a call makes; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Name) and function.id in imported - NOT_SQL:
        return function.id
    if not isinstance(function, ast.Attribute) or function.attr in NOT_SQL:
        return ""
    origin = ast.unparse(function.value)
    if origin == "func":
        return f"func.{function.attr}"
    is_of_sqlalchemy = origin == "sa" and function.attr[0].islower()
    if is_of_sqlalchemy or function.attr in METHODS:
        return function.attr
    return ""
