"""Databases for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import sqlalchemy as sa

from gateway.store.database import open_database
from gateway.store.store import Store


@contextmanager
def careless_database(name: str) -> Iterator[str]:
    """Create a MariaDB database with an old server's defaults and yield its URL.

    The gateway must not depend on the defaults of the server.
    """
    base = sa.make_url(os.environ["BFIA_TEST_DB_URL"])
    database = f"bfia_test_{os.getpid()}_{name}"
    with pymysql.connect(
        host=base.host,
        port=base.port,
        user=base.username,
        password=base.password,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute(
            f"create database `{database}` character set latin1 collate latin1_swedish_ci"
        )
        try:
            yield base.set(database=database).render_as_string(hide_password=False)
        finally:
            cursor.execute(f"drop database `{database}`")


@contextmanager
def careless_postgresql(name: str) -> Iterator[str]:
    """Create a PostgreSQL database that sorts texts by English rules, and yield its URL."""
    options = "template template0 encoding 'UTF8' locale_provider icu icu_locale 'en-US'"
    with postgresql_database(f"bfia_test_{os.getpid()}_{name}", options) as url:
        yield url


@contextmanager
def postgresql_database(
    name: str,
    options: str = "",
) -> Iterator[str]:
    """Create a PostgreSQL database and yield its URL; ``options``: options of CREATE DATABASE."""
    base = sa.make_url(os.environ["BFIA_TEST_PG_URL"])
    server = sa.create_engine(
        base.set(database="postgres"),
        poolclass=sa.NullPool,
        isolation_level="AUTOCOMMIT",
    )
    with server.connect() as connection:
        connection.exec_driver_sql(f'create database "{name}" {options}')
        try:
            yield base.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f'drop database "{name}" with (force)')


@contextmanager
def a_store(url: str) -> Iterator[Store]:
    """Open a store on a database."""
    store = Store(open_database(url))
    try:
        yield store
    finally:
        store.close()
