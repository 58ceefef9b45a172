"""Tables from databases other than MariaDB, by ``data import``."""

import sys

import pytest
import sqlalchemy as sa

from gateway.errors import Invalid
from gateway.store.source import Source
from tests.contracts.databases import postgresql_database

ROWS = (
    "create table t (id varchar(9), name text, x decimal(9,2), day date, tags text[], doc jsonb)",
    "create sequence s",
    "insert into t values ('007', '王芳, \"x\"', 1.50, '2026-11-23', '{a,b}', '{}')",
    "insert into t values ('008', '100%', null, null, null, null)",
)


@pytest.fixture(scope="module")
def crm(worker_id):
    """The address of a PostgreSQL database with a table, and the user's password."""
    with postgresql_database(f"bfia_test_{worker_id}_crm") as text:
        url = sa.make_url(text)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            for statement in ROWS:
                connection.exec_driver_sql(statement.replace("%", "%%"))
        engine.dispose()
        yield url._replace(password=None).render_as_string(), url.password


@pytest.mark.postgresql
def test_rows_of_postgresql_become_a_table(crm):
    query = "select id, name, x, day from t where name like '%' order by id"
    with Source(*crm).selected(query) as table:
        text = table.read().decode()
    assert text == 'id,name,x,day\r\n007,"王芳, ""x""",1.50,2026-11-23\r\n008,100%,,\r\n'


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("query", "cause"),
    [
        ("delete from t", "must be one SELECT"),
        ("with a as (delete from t returning id) select * from a", "data-modifying"),
        ("select 1; drop table t", "multiple commands"),
        ("select nextval('s')", "read-only transaction"),
        ("select set_config('transaction_read_only', 'off', false)", "read-write mode"),
        ("select nothing from t", "(error 42703)"),
        ("select 'x'::bytea as b", "hex(b)"),
        ("select tags from t", "column tags holds several values"),
        ("select doc from t", "column doc holds several values"),
    ],
)
def test_an_unreadable_query_of_postgresql_is_refused_and_changes_nothing(crm, query, cause):
    source = Source(*crm)
    with pytest.raises(Invalid) as refused, source.selected(query) as table:
        table.read()
    (problem,) = refused.value.problems
    assert problem.path == "query"
    assert cause in problem.rule
    with source.selected("select count(*) as n from t") as table:
        assert table.read() == b"n\r\n2\r\n"


@pytest.mark.parametrize(
    ("address", "module", "remedy"),
    [
        ("postgresql+psycopg://ann@db/crm", "psycopg", "'bfia-gateway[postgres]'"),
        ("oracle+oracledb://ann@db/?service_name=crm", "oracledb", "pip install oracledb"),
        ("dm+dmPython://ann@db:5236", "dmPython", "dmSQLAlchemy"),
    ],
)
def test_a_missing_driver_of_a_source_is_named(monkeypatch, address, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Invalid) as refused, Source(address, "secret").selected("select 1"):
        pass
    (problem,) = refused.value.problems
    assert problem.path == "from"
    assert remedy in problem.rule
