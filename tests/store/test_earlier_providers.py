"""A database from before providers had a history gets one, and its names belong to the node's admins."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from gateway.store.database import connect, migrate
from gateway.store.repositories import SqlProviders
from gateway.store.serialization import dumps
from gateway.store.store import Store
from tests.builders import at
from tests.registry.builders import a_provider


def test_what_was_registered_before_is_the_first_revision(tmp_path: Path):
    engine = connect(f"sqlite:///{tmp_path / 'old.db'}")
    config = Config()
    config.set_main_option("script_location", "gateway:store/migrations")
    config.set_main_option("path_separator", "os")
    insert = sa.text("INSERT INTO provider (provider_key, document, updated_at) VALUES (:key, :document, :at)")
    old, new = a_provider(), a_provider(version="2.0.0")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0010_job_audit")
        for provider in (old, new):
            row = {"key": provider.key, "document": dumps(provider.document()), "at": at(7).timestamp()}
            connection.execute(insert, row)
    migrate(engine)
    store = Store(engine)
    providers = SqlProviders(store)
    [first] = providers.history(old.key)
    assert (first.number, first.at, first.author, first.provider) == (1, at(7), "", old)
    assert providers.newest(new.key) == 1
    assert providers.owner("acme") == "" and providers.claim("acme", "ann") == ""
    store.close()
