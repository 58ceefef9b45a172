"""Brings a database to the newest schema, once, whoever starts first."""

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.store.database import begun, connect

_LOCK = "bfia_gateway_migration"


def opened(url: str) -> sa.Engine:
    """Connect to a database and bring it to the newest schema.

    Raises `Invalid` with the cause, and without the password, for an address that leads to no usable database.
    """
    try:
        engine = connect(url)
    except (sa.exc.SQLAlchemyError, ValueError) as error:
        raise Invalid([_problem(error, None)], reason="DATABASE_UNUSABLE") from error
    try:
        with engine.connect():  # the driver raises TypeError for options that it does not know
            pass
        migrate(engine)
    except (sa.exc.SQLAlchemyError, sqlite3.Error, CommandError, TimeoutError, TypeError, ValueError) as error:
        engine.dispose()
        raise Invalid([_problem(error, engine.url.set(query={}))], reason="DATABASE_UNUSABLE") from error
    return engine


def revisions(url: str) -> tuple[str | None, str]:
    """Return a database's schema (None: there is none yet) and the newest one, and change nothing.

    Raises `Invalid` for an address that leads to no usable database.
    """
    newest = str(ScriptDirectory.from_config(_config()).get_current_head())
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return None, newest
    try:
        engine = connect(url)
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
        engine.dispose()
    except (sa.exc.SQLAlchemyError, sqlite3.Error, TypeError, ValueError) as error:
        raise Invalid([_problem(error, sa.make_url(url).set(query={}))], reason="DATABASE_UNUSABLE") from error
    return current, newest


def _problem(error: Exception, url: sa.URL | None) -> Problem:
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig else error
    shown = url.render_as_string(hide_password=True) if url else None
    return Problem("database.url", f"leads to no usable database: {cause}", shown)


def migrate(engine: sa.Engine) -> None:
    """Run what is missing of the migrations, under a lock on the database."""
    if engine.dialect.name == "sqlite":
        with begun(engine) as connection:
            _upgrade(connection)
        return
    with engine.connect() as connection:
        if not connection.execute(sa.text("select get_lock(:name, 60)"), {"name": _LOCK}).scalar():
            raise TimeoutError("another gateway holds the migration lock for more than 60 s")
        try:
            connection.exec_driver_sql("BEGIN")
            _upgrade(connection)
            connection.commit()
        finally:
            connection.execute(sa.text("select release_lock(:name)"), {"name": _LOCK})
            connection.commit()


def _upgrade(connection: sa.Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "gateway:store/migrations")
    config.set_main_option("path_separator", "os")
    return config
