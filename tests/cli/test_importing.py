"""Tables from a MariaDB database, by ``data import``."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from typer.testing import Result

from gateway.cli.data import SOURCE_PASSWORD
from gateway.domain.run import Address
from gateway.errors import Invalid
from gateway.store.source import Source
from tests.cli import call
from tests.contracts.databases import careless_database
from tests.e2e.nodes import free_ports
from tests.inprocess import Node
from tests.world import NodeSetup

pytestmark = pytest.mark.mariadb
NODE = NodeSetup()
# A wrong password, with characters that an address must escape.
SECRET = "p@ss:word/42"


@pytest.fixture(scope="module")
def database(worker_id: str) -> Iterator[sa.URL]:
    """A database with a table, which its user may also change."""
    with careless_database(f"{worker_id}_crm") as text:
        url = sa.make_url(text)
        with (
            pymysql.connect(**connection_arguments(url)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "create table t (id varchar(9), name text character set utf8mb4, "
                "x decimal(9,2), day date)"
            )
            cursor.execute("create sequence s")
            rows = [
                ("007", '王芳, "x"\r\ny', "1.50", "2026-11-23"),
                ("008", "100%", None, None),
            ]
            cursor.executemany("insert into t values (%s, %s, %s, %s)", rows)
            connection.commit()
        yield url


def connection_arguments(url: sa.URL) -> dict[str, Any]:
    """Return the arguments of `pymysql.connect` for an address."""
    arguments = url.translate_connect_args(username="user")
    return {name: value for name, value in arguments.items() if value is not None}


@pytest.fixture
def crm(database: sa.URL) -> str:
    """The address of the database as a user writes it, without a password."""
    return database._replace(password=None).render_as_string()


@pytest.fixture
def password(database: sa.URL) -> str:
    return database.password or ""


def import_table(
    node: Node,
    crm: str,
    password: str,
    query: str,
    *options: str,
) -> Result:
    """Import the rows of a query as the dataset ns#t."""
    words = [
        "data",
        "import",
        "--from",
        crm,
        "--query",
        query,
        "--namespace",
        "ns",
        "--name",
        "t",
        *options,
    ]
    env = {SOURCE_PASSWORD: password}
    return call(*words, "--url", node.addresses()["operator"], env=env)


def test_the_rows_of_a_query_become_a_table(node, crm, password, tmp_path):
    query = "select * from t where name like '%' order by id"
    result = import_table(node, crm, password, query, "--match-id", "id")
    assert result.exit_code == 0, result.output
    assert result.stdout == "stored ns#t: 2 rows, 4 columns, 1 partition\n"
    rows = [
        ["007", '王芳, "x"\r\ny', "1.50", "2026-11-23"],
        ["008", "100%", "", ""],
    ]
    assert list(node.storage.iter_rows(Address("ns", "t"))) == rows
    assert node.datasets.get("ns#t").origin == f"file:{crm}"

    again = import_table(node, crm, password, "select 1 as id")
    assert again.exit_code == 1
    assert "to replace it: --overwrite" in again.stderr

    file = tmp_path / "crm.password"
    file.write_text(f"{password}\n")
    options = ("--password-file", str(file), "--overwrite")
    query = "with a as (select 1 as id) select * from a"
    assert import_table(node, crm, SECRET, query, *options).exit_code == 0
    assert node.datasets.get("ns#t").count == 1


@pytest.mark.parametrize(
    ("query", "field", "cause"),
    [
        ("delete from t", "query: ", "must be one SELECT"),
        ("with a as (select 1) delete from t", "query: ", "failed"),
        ("select 1; drop table t", "query: ", "failed"),
        ("select next value for s", "query: ", "READ ONLY"),
        ("select 1 into @x", "query: ", "does not return rows"),
        ("select nothing from t", "query: ", "(error 1054)"),
        ("select unhex('ff') as b", "query: ", "hex(b)"),
        ("select seq, if(seq > 300, unhex('ff'), 'a') as b from seq_1_to_999", "query: ", "hex(b)"),
        ("select 1 as a, 2 as a", "file:1: ", "another column"),
    ],
)
def test_an_unreadable_query_is_refused_and_changes_nothing(
    node, crm, password, query, field, cause
):
    before = node.datasets.list()
    result = import_table(node, crm, password, query, "--overwrite")
    assert result.exit_code != 0, result.output
    assert field in result.stderr
    assert cause in result.stderr
    assert node.datasets.list() == before
    with Source(crm, password).selected("select count(*) as n from t") as table:
        assert table.read() == b"n\r\n2\r\n"


def test_an_unusable_database_is_refused_without_the_password(crm):
    url = sa.make_url(crm)
    silent = url.set(
        host="127.0.0.1",
        port=free_ports(1)[0],
    )
    wrong_option = url.update_query_dict({"no_such_option": "1"})
    with_password = url.set(password=SECRET)
    for address, password, cause in [
        (crm, SECRET, "Access denied"),
        (silent.render_as_string(), SECRET, "Can't connect"),
        (wrong_option.render_as_string(), SECRET, "no_such_option"),
        (with_password.render_as_string(hide_password=False), "", "must not hold a password"),
        ("sqlite:////etc/passwd", "", "mysql+pymysql://"),
        ("nothing", "", "mysql+pymysql://"),
    ]:
        with pytest.raises(Invalid) as refused, Source(address, password).selected("select 1"):
            pass
        (problem,) = refused.value.problems
        assert problem.path == "from"
        assert cause in problem.rule
        assert refused.value.reason == "SOURCE_UNUSABLE"
        assert SECRET not in str(refused.value)
        assert "p%40ss" not in str(refused.value)


@pytest.mark.slow
def test_many_rows_need_little_memory(crm, password):
    """The rows have 40 MB, which the memory would have to hold if all were fetched at first."""
    code = textwrap.dedent("""
        import re, sys
        from pathlib import Path
        from gateway.store.source import Source

        def most():
            return int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])

        query = "select seq, repeat('x', 1000) from seq_1_to_40000"
        with Source(*sys.argv[1:]).selected(query) as rows:
            rows.read(1)
            before, size = most(), 0
            while data := rows.read(65536):
                size += len(data)
        assert size > 40_000_000, size
        assert most() - before < 8 * 1024, most() - before
    """)
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code, crm, password],
        cwd=root,
        check=True,
    )
