"""``doctor --database``: tries every form of statement on a server, and leaves nothing there."""

import json
import os

import pytest
import sqlalchemy as sa

from gateway.diagnostics import database_trial
from gateway.store.statement_forms import FORMS
from tests.cli import call


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ]
)
def server_url(request, tmp_path):
    """The address of a database on which a node could run."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'none.db'}"
    return request.getfixturevalue(f"{request.param}_url")


def test_every_form_is_tried_and_nothing_is_left(server_url, tmp_path):
    before = schemas_of(server_url)
    result = call("doctor", "--json", "--database", server_url)

    report = json.loads(result.stdout)
    failures = [step for step in report["steps"] if step["result"] != "ok"]
    names = [step["name"] for step in report["steps"]]
    assert failures == []
    assert result.exit_code == 0
    assert names == ["scratch space", "tables", *FORMS]
    assert schemas_of(server_url) == before


def test_what_a_server_lacks_is_listed_with_its_cause(monkeypatch, tmp_path):
    def lacking(stores):
        stores.first.rows(sa.text("select no_such_function()"))

    forms = {**FORMS, "clock": lacking}
    monkeypatch.setattr(database_trial, "FORMS", forms)
    result = call("doctor", "--json", "--database", f"sqlite:///{tmp_path / 'none.db'}")

    steps = json.loads(result.stdout)["steps"]
    assert result.exit_code == 1
    [failure] = [step for step in steps if step["result"] == "failed"]
    assert failure["name"] == "clock"
    assert "no_such_function" in failure["cause"]


@pytest.mark.mariadb
def test_a_user_without_the_right_to_create_is_told():
    url = sa.make_url(os.environ["BFIA_TEST_DB_URL"]).set(database="other")
    text = url.render_as_string(hide_password=False)
    result = call("doctor", "--database", text)

    assert result.exit_code == 1
    assert "scratch space" in result.stdout
    assert "give the user the right to create" in result.stdout
    assert "bfia:bfia" not in result.output


def schemas_of(url):
    """Return the names of all schemas of a server, without those of other tests."""
    if url.startswith("sqlite"):
        return []
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    own = sa.make_url(url).database
    names = sa.inspect(engine).get_schema_names()
    if engine.dialect.name == "postgresql":
        return names
    return [name for name in names if own in name]
