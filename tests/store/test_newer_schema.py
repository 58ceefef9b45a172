"""Gateways of two versions use one database: the newer migrates it, the older goes on."""

import ast
from pathlib import Path

import pytest

from gateway.errors import Invalid
from gateway.store import migrations
from gateway.store.database import (
    SchemaRevisions,
    connect,
    migrate,
    newest_revision,
    open_database,
    schema_revisions,
)
from gateway.store.store import Store
from tests.builders import a_job

# The first revision that may only add; versions before 0.1.0 are not used beside later ones.
FIRST_ADDING = "0024"
ADDING = {"add_column", "create_index", "create_table", "get_bind"}
NEXT = "0099_next"  # a revision of a later version that only adds
BREAKING = "0100_other"


def set_revision(url, revision):
    """Leave a database as a newer version did, but for its additions."""
    engine = connect(url)
    migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"update alembic_version set version_num = '{revision}'")
    engine.dispose()


def test_a_database_with_additions_of_a_newer_version_is_used(database_url, caplog):
    set_revision(database_url, NEXT)

    store = Store(open_database(database_url))

    assert store.jobs.add(a_job("a"), "flow")
    store.close()
    assert schema_revisions(database_url) == (NEXT, newest_revision())
    assert f"the schema {NEXT} is of a newer version" in caplog.text


def test_a_database_that_a_newer_version_has_changed_is_refused(database_url):
    set_revision(database_url, BREAKING)

    with pytest.raises(Invalid, match=f"its schema is {BREAKING}") as refusal:
        open_database(database_url)

    assert refusal.value.reason == "DATABASE_NEWER"
    assert not schema_revisions(database_url).are_compatible


@pytest.mark.parametrize(
    ("revision", "is_newer"),
    [
        (None, False),
        ("0020_gpus", False),
        ("0023_unknown", False),  # of nobody: it is in no version
        (NEXT, True),
        (BREAKING, False),
    ],
)
def test_only_additions_count_as_newer(revision, is_newer):
    revisions = SchemaRevisions(revision, newest_revision())
    assert revisions.is_newer == is_newer
    assert revisions.are_compatible == is_newer


def adding_revisions():
    """Return the files of the revisions that other versions may meet at one database."""
    files = sorted(Path(migrations.__file__).parent.glob("versions/0*.py"))
    return [file for file in files if file.name >= FIRST_ADDING]


@pytest.mark.parametrize("file", adding_revisions(), ids=lambda file: file.stem)
def test_a_revision_only_adds(file):
    """An older gateway at the same database neither lacks anything nor has to fill it."""
    calls = list(calls_of_alembic(file))

    assert {call.func.attr for call in calls} <= ADDING
    for call in calls:
        if call.func.attr == "add_column":
            assert can_stay_empty(call.args[1])


def calls_of_alembic(file):
    """Yield the calls of functions of `alembic.op` in a revision."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("op."):
            yield node


def can_stay_empty(column):
    """Return whether rows can be inserted without a new column."""
    options = {option.arg: ast.unparse(option.value) for option in column.keywords}
    return options.get("nullable") != "False" or "server_default" in options
