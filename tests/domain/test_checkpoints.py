"""The decision which checkpoints of a task are old enough to be removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.checkpoints import superseded_entries


def test_the_newest_checkpoints_stay_and_older_ones_go():
    names = ["step-9", "step-10", "step-2", "step-11"]

    assert superseded_entries(names, keep=3) == ["step-2"]
    assert superseded_entries(names, keep=1) == ["step-10", "step-2", "step-9"]
    assert superseded_entries(names, keep=4) == []


def test_all_entries_of_one_step_are_one_checkpoint():
    names = ["step-1.model", "step-1.state", "step-2.model", "step-2.state"]

    assert superseded_entries(names, keep=1) == ["step-1.model", "step-1.state"]
    assert superseded_entries(names, keep=2) == []


def test_steps_of_different_words_are_counted_apart():
    names = ["step-100", "step-101", "epoch_1", "epoch_2", "7#loss", "8#loss"]

    assert superseded_entries(names, keep=1) == ["7#loss", "epoch_1", "step-100"]


@pytest.mark.parametrize(
    "name",
    ["data_0", "part-0", "0.bin", "half", "step-", "step-1-of-4", "my-step-1", "latest", "5"],
)
def test_entries_that_are_no_checkpoints_stay(name):
    newer = ["step-2", "step-3", "8#a", "9#a"]

    assert name not in superseded_entries([name, *newer], keep=1)


@given(
    st.lists(st.integers(0, 10**6), unique=True),
    st.integers(1, 10),
)
def test_the_requested_number_stays_and_is_newer_than_the_rest(steps, keep):
    names = [f"checkpoint-{step}" for step in steps]

    old = {int(name.partition("-")[2]) for name in superseded_entries(names, keep)}

    remaining = set(steps) - old
    assert len(remaining) == min(keep, len(steps))
    assert max(old, default=-1) < min(remaining, default=0)
