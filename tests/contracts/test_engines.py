"""The engine contract over every engine but that of `tests.memory_engine`, and the names of runs."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import CommandNotFound, belongs_to, is_name, labels, run_name, safe_name
from tests.contracts.engine_contract import EngineContract
from tests.contracts.harnesses import DockerHarness, InSandboxes, ProcessHarness


class TestProcess(EngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[ProcessHarness]:
        with contextlib.closing(ProcessHarness(tmp_path / "runs")) as harness:
            yield harness

    def test_what_env_is_to_run_has_to_be_there_as_well(self, harness):
        missing, here = ["env", "A=b", "/no/such/program"], ["env", "A=b", "PATH=/bin", "sh"]
        options = ["/usr/bin/env", "-u", "A", "program-of-nobody"]
        engine = harness.engine(
            images={
                "missing": missing,
                "here": here,
                "options": options,
                "bare": ["env"],
            }
        )
        with pytest.raises(CommandNotFound, match="/no/such/program"):
            engine.image_digest("missing")
        assert len({engine.image_digest(image) for image in ("here", "options", "bare")}) == 3


@pytest.mark.docker
class TestDocker(EngineContract):
    """With the harness that the tests of the Docker engine share."""


@pytest.mark.docker
class TestDockerInSandboxes:
    """What a sandbox makes different: how a run begins and ends, and what is left of it."""

    engine, run = EngineContract.engine, EngineContract.run
    test_launching_from_many_threads = (
        EngineContract.test_launching_from_many_threads_is_launching_once
    )
    test_a_missing_program = EngineContract.test_a_missing_program_is_named_and_leaves_nothing
    test_a_run_is_stopped = EngineContract.test_a_run_is_stopped
    test_removing_ends_what_runs = EngineContract.test_removing_ends_what_runs
    test_the_list = EngineContract.test_the_list_is_of_this_node_and_installation
    test_a_new_object = EngineContract.test_a_new_object_takes_up_the_runs_of_the_old

    @pytest.fixture
    def harness(self, network: str) -> Iterator[DockerHarness]:
        with contextlib.closing(DockerHarness(network, InSandboxes)) as harness:
            yield harness


texts = st.text(max_size=40)
identities = st.tuples(texts, texts, texts, texts, st.integers(0, 9), st.integers(1, 9))


@given(identities, identities)
def test_a_name_stands_for_one_identity(one, other):
    assert (run_name(*one) == run_name(*other)) == (one == other)
    assert re.fullmatch("bfia-[0-9a-f]{16}", run_name(*one))
    assert is_name(run_name(*one))


def test_a_name_never_changes():
    """Runs are found again by it after an upgrade."""
    assert (
        run_name("JG0100001100000010", "job-1", "task_1", "guest", 0, 1) == "bfia-365a8db3eb329d31"
    )


def test_labels_tell_the_whole_identity():
    found = labels("node", "installation", "job-1", "task_1", "host", 2, 3)
    names = ("node", "installation", "job", "task", "role", "index", "attempt")
    values = ("node", "installation", "job-1", "task_1", "host", "2", "3")
    assert found == {f"bfia.{name}": value for name, value in zip(names, values, strict=True)}
    assert belongs_to(found, "node", "installation")
    assert not belongs_to({}, "node", "installation")
    assert not belongs_to(found, "node", "other")
    assert not belongs_to(found, "other", "installation")


@given(texts, texts)
def test_a_safe_name_is_safe_and_tells_nodes_apart(one, other):
    assert re.fullmatch("bfia-[A-Za-z0-9_.-]{0,58}", safe_name("bfia", one))
    assert (safe_name("bfia", one) == safe_name("bfia", other)) == (one == other)
