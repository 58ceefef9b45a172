"""Ids of tasks and their attempts, and ids of jobs that are timestamps."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from gateway.domain.task_ids import TaskIds, first_task_id, next_task_id
from gateway.jobs.ids import TimestampIds, random_job_id

HEX = "0123456789abcdef" * 2
NOW = datetime(2026, 11, 29, 12, 30, 59, 123456, tzinfo=UTC)

# A name of an object in Kubernetes (RFC 1123)
KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("form", "first"),
    [
        (TaskIds.OPAQUE, f"task_{HEX}"),
        (TaskIds.KUBERNETES, f"task-{HEX}"),
        (TaskIds.NUMBERED, "job-1_a_0"),
    ],
)
def test_all_attempts_of_a_task_have_ids_of_one_form(form, first):
    task_id = first_task_id(form, "job-1", "a", HEX)
    assert task_id == first
    ids = [task_id]
    for attempt in (1, 2):
        ids.append(next_task_id("job-1", "a", attempt, ids[-1]))

    assert len(set(ids)) == 3
    if form is TaskIds.NUMBERED:
        assert ids == ["job-1_a_0", "job-1_a_1", "job-1_a_2"]
    else:
        assert all(re.fullmatch(form.value + "[0-9a-f]{32}", each) for each in ids)


def test_ids_for_kuscia_are_names_of_kubernetes():
    job_id = random_job_id()
    first = first_task_id(TaskIds.KUBERNETES, job_id, "A_b", HEX)
    second = next_task_id(job_id, "A_b", 1, first)

    for each in (job_id, first, second):
        assert KUBERNETES_NAME.fullmatch(each)


@pytest.mark.parametrize(
    ("needed", "form"),
    [
        ({TaskIds.OPAQUE}, TaskIds.OPAQUE),
        ({TaskIds.OPAQUE, TaskIds.KUBERNETES}, TaskIds.KUBERNETES),
        ({TaskIds.KUBERNETES, TaskIds.NUMBERED}, TaskIds.NUMBERED),
    ],
)
def test_nodes_of_different_needs_get_the_strictest_form(needed, form):
    assert TaskIds.strictest(needed) is form


def test_timestamps_have_21_digits_and_never_repeat_while_the_clock_stands():
    ids = TimestampIds(lambda: NOW)

    new_ids = [ids.new() for _ in range(50)]

    assert new_ids[0].startswith("20261129123059123456")
    assert all(re.fullmatch(r"\d{21}", each) for each in new_ids)
    assert len({each[:20] for each in new_ids}) == 50


def test_a_timestamp_sorts_last_even_if_the_clock_goes_back():
    times = iter([NOW, NOW - timedelta(hours=1)])
    ids = TimestampIds(lambda: next(times))

    first, second = ids.new(), ids.new()

    assert second > first
