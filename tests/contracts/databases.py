"""MariaDB databases for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import sqlalchemy as sa


@contextmanager
def careless_database(name: str) -> Iterator[str]:
    """Create a database with the defaults of an old server, on which nothing may depend; yield its address."""
    base = sa.make_url(os.environ["BFIA_TEST_DB_URL"])
    full = f"bfia_test_{os.getpid()}_{name}"
    with pymysql.connect(host=base.host, port=base.port, user=base.username, password=base.password) as connection:
        cursor = connection.cursor()
        cursor.execute(f"create database `{full}` character set latin1 collate latin1_swedish_ci")
        try:
            yield base.set(database=full).render_as_string(hide_password=False)
        finally:
            cursor.execute(f"drop database `{full}`")
