"""FATE's states and ours, both ways."""

import pytest

from adapter.fate.states import (
    JOB_MOVES,
    OUR_OUTCOME,
    OUR_TASK,
    TASK_MOVES,
    JobWord,
    TaskWord,
    job_word,
    task_word,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus


def test_the_tables_know_every_word():
    assert set(JOB_MOVES) == set(JobWord) and set(TASK_MOVES) == set(OUR_TASK) == set(TaskWord)


@pytest.mark.parametrize("status", TaskStatus)
def test_a_task_comes_back_from_fates_words_as_it_was(status: TaskStatus):
    alike = TaskStatus.READY if status is TaskStatus.PENDING else status
    assert OUR_TASK[task_word(status)] is alike


@pytest.mark.parametrize(
    ("reason", "word"), [("STOPPED", "canceled"), ("TIMEOUT", "timeout"), ("EXIT_CODE", "failed")]
)
def test_a_failed_task_says_how_it_failed(reason: str, word: str):
    assert task_word(TaskStatus.FAILED, Failure(reason)) == word


@pytest.mark.parametrize("outcome", Outcome)
def test_an_ended_job_comes_back_as_it_ended(outcome: Outcome):
    status = JobStatus.REJECTED if outcome is Outcome.REJECTED else JobStatus.FINISHED
    alike = Outcome.FAILED if outcome is Outcome.REJECTED else outcome
    assert OUR_OUTCOME[job_word(status, outcome)] is alike


def test_a_job_that_took_too_long_says_so():
    assert job_word(JobStatus.FINISHED, Outcome.FAILED, Failure("TIMEOUT")) is JobWord.TIMEOUT


def test_a_task_is_begun_before_it_fails():
    assert TaskWord.FAILED not in TASK_MOVES[TaskWord.WAITING]
