"""The kinds of databases on which a test of the store runs, if these are not all three.

A test whose statements other tests execute on every kind, too, runs on SQLite alone.
"""

import pytest

on_sqlite = pytest.mark.parametrize("shared_url", ["sqlite"], indirect=True)


def with_implementations(fixture: str, *names: str) -> pytest.MarkDecorator:
    """Return a mark that runs tests with a fixture's implementations.

    They run on SQLite, and with the implementation "database" on servers, too.
    """
    servers = [
        pytest.param("mariadb", "database", marks=pytest.mark.mariadb),
        pytest.param("postgresql", "database", marks=pytest.mark.postgresql),
    ]
    return pytest.mark.parametrize(
        ("shared_url", fixture),
        [*(("sqlite", name) for name in names), *servers],
        indirect=True,
    )
