"""How the suite is dealt out to its workers."""

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.conftest import KeptTogether


def test_a_module_whose_tests_share_a_fixture_is_one_piece_of_work():
    dealt = KeptTogether.__new__(KeptTogether)._split_scope
    assert dealt("tests/e2e/test_compose.py::test_one") == dealt("tests/e2e/test_compose.py::test_two[a::b]")
    assert dealt("tests/contracts/test_lists.py::test_one") == dealt("tests/contracts/test_lists.py::test_two")
    assert dealt("tests/domain/test_dag.py::test_one") != dealt("tests/domain/test_dag.py::test_two")


def test_the_last_of_several_runs_takes_the_networks_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    removed: list[bool] = []
    monkeypatch.setattr(conftest, "_RUNS", tmp_path / "lock")
    monkeypatch.setattr(conftest, "remove_networks", lambda: removed.append(True))
    session: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    with (tmp_path / "lock").open("w") as another:
        fcntl.flock(another, fcntl.LOCK_SH)
        conftest.pytest_sessionstart(session)
        conftest.pytest_sessionfinish(session)
        assert removed == []
    conftest.pytest_sessionstart(session)
    conftest.pytest_sessionfinish(session)
    assert removed == [True]
