"""The engine contract over processes and Docker, and the names and labels of runs."""

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

    def test_a_program_that_env_is_to_start_must_exist(self, harness):
        images = {
            "missing": ["env", "A=b", "/no/such/program"],
            "present": ["env", "A=b", "PATH=/bin", "sh"],
            "options": ["/usr/bin/env", "-u", "A", "program-of-nobody"],
            "bare": ["env"],
        }
        engine = harness.engine(images=images)

        with pytest.raises(CommandNotFound, match="/no/such/program"):
            engine.image_digest("missing")

        digests = {engine.image_digest(image) for image in ("present", "options", "bare")}
        assert len(digests) == 3


@pytest.mark.docker
class TestDocker(EngineContract):
    """With the harness of `tests.contracts.conftest`."""


@pytest.mark.docker
class TestDockerInSandboxes:
    """The part of the contract that a sandbox touches: start, end and removal of a run."""

    engine = EngineContract.engine
    run = EngineContract.run
    test_launching_from_many_threads = (
        EngineContract.test_launching_from_many_threads_is_launching_once
    )
    test_a_missing_program = EngineContract.test_a_missing_program_is_named_and_leaves_nothing
    test_a_run_is_stopped = EngineContract.test_a_run_is_stopped
    test_removing = EngineContract.test_removing_ends_a_run_and_frees_its_name
    test_the_list = EngineContract.test_the_list_is_of_this_node_and_installation
    test_a_new_object = EngineContract.test_a_new_object_takes_up_the_runs_of_the_old

    @pytest.fixture
    def harness(self, network: str) -> Iterator[DockerHarness]:
        with contextlib.closing(DockerHarness(network, InSandboxes)) as harness:
            yield harness


texts = st.text(max_size=40)
identities = st.tuples(
    texts,
    texts,
    texts,
    texts,
    st.integers(0, 9),
    st.integers(1, 9),
)


@given(identities, identities)
def test_a_name_stands_for_one_identity(first, second):
    is_same_name = run_name(*first) == run_name(*second)

    assert is_same_name == (first == second)
    assert re.fullmatch("bfia-[0-9a-f]{16}", run_name(*first))
    assert is_name(run_name(*first))


def test_a_name_never_changes():
    """After an upgrade of the gateway, the name has to lead to the same run."""
    name = run_name(
        "JG0100001100000010",
        "job-1",
        "task_1",
        "guest",
        0,
        1,
    )

    assert name == "bfia-365a8db3eb329d31"


def test_labels_hold_the_full_identity():
    run_labels = labels(
        "node",
        "installation",
        "job-1",
        "task_1",
        "host",
        2,
        3,
    )

    assert run_labels == {
        "bfia.node": "node",
        "bfia.installation": "installation",
        "bfia.job": "job-1",
        "bfia.task": "task_1",
        "bfia.role": "host",
        "bfia.index": "2",
        "bfia.attempt": "3",
    }
    assert belongs_to(run_labels, "node", "installation")
    assert not belongs_to({}, "node", "installation")
    assert not belongs_to(run_labels, "node", "other")
    assert not belongs_to(run_labels, "other", "installation")


@given(texts, texts)
def test_a_safe_name_is_safe_and_differs_between_nodes(first, second):
    is_same_name = safe_name("bfia", first) == safe_name("bfia", second)

    assert re.fullmatch("bfia-[A-Za-z0-9_.-]{0,58}", safe_name("bfia", first))
    assert is_same_name == (first == second)
