"""Task ids: FATE's with a version, and ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.fate.ids import Key, id_of, key_of, name_of
from gateway.domain.retries import following, telling

_JOBS = st.from_regex(r"[0-9]{5,25}|job-[0-9a-f]{8}", fullmatch=True)
_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


@given(_JOBS, _NAMES, st.integers(0, 99))
def test_a_task_comes_back_from_fates_id_and_version(job: str, name: str, version: int):
    ours = telling(job, name, version)
    key = key_of(ours)
    assert key == key_of(ours, job) == Key(job, f"{job}_{name}", version)
    assert (id_of(key), name_of(key)) == (ours, name)


@pytest.mark.parametrize("ours", ["task_0123456789abcdef", "task-a-b", "x"])
def test_another_id_goes_over_as_it_is(ours: str):
    key = key_of(ours, "job-1")
    assert (id_of(key), name_of(key)) == (ours, "")


def test_the_next_attempt_has_an_id_of_the_same_kind():
    assert following("job-1", "a_b", 1, "job-1_a_b_0") == "job-1_a_b_1"
    assert following("job-1", "a", 1, "task_x") == following("job-1", "a", 1, "task_y") != "job-1_a_1"
