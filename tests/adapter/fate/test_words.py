"""Ids and states translate to FATE's and back; FATE's documentation page lists every path."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.fate.envelope import PATHS
from adapter.fate.words import (
    OUR_OUTCOME,
    OUR_TASK_STATUS,
    JobWord,
    Key,
    TaskWord,
    job_word,
    key_of,
    task_word,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.task_ids import next_task_id, numbered_id
from gateway.language.catalogue import translate

DOCS = Path(__file__).resolve().parents[3] / "docs"
TABLE_HEADS = {
    "en": "| Path | Here | Refused with |",
    "zh": "| 路径 | 在本节点 | 拒绝时的应答码 |",
}
FATE_JOB_IDS = st.text(
    "0123456789",
    min_size=5,
    max_size=25,
)
OUR_JOB_IDS = st.text("0123456789abcdef", min_size=8).map("job-".__add__)
TASK_NAMES = st.text("abz09_", max_size=20).map("a".__add__)


@given(
    FATE_JOB_IDS | OUR_JOB_IDS,
    TASK_NAMES,
    st.integers(0, 99),
)
def test_a_task_id_survives_the_way_to_fate_and_back(job, name, version):
    task_id = numbered_id(job, name, version)

    key = key_of(task_id)

    assert key == Key(job, f"{job}_{name}", version)
    assert key_of(task_id, job) == key
    assert key.local_id == task_id
    assert key.name == name


@pytest.mark.parametrize(
    "task_id",
    ["task_0123456789abcdef", "task-a-b", "x"],
)
def test_a_task_id_of_another_form_is_sent_unchanged(task_id):
    key = key_of(task_id, "job-1")

    assert key.local_id == task_id
    assert key.name == ""


def test_the_next_attempt_has_the_next_number():
    assert next_task_id("job-1", "a_b", 1, "job-1_a_b_0") == "job-1_a_b_1"


@pytest.mark.parametrize("status", TaskStatus)
def test_a_task_status_survives_the_way_to_fate_and_back(status):
    # FATE has no state before "waiting", its word for both of ours.
    expected = TaskStatus.READY if status is TaskStatus.PENDING else status

    assert OUR_TASK_STATUS[task_word(status)] is expected


def test_every_task_state_of_fate_has_a_status():
    assert set(OUR_TASK_STATUS) == set(TaskWord)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_survives_the_way_to_fate_and_back(outcome):
    status = JobStatus.FINISHED
    expected = outcome
    if outcome is Outcome.REJECTED:
        status = JobStatus.REJECTED
        expected = Outcome.FAILED  # FATE knows no rejection

    assert OUR_OUTCOME[job_word(status, outcome)] is expected


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("STOPPED", "canceled"),
        ("TIMEOUT", "timeout"),
        ("EXIT_CODE", "failed"),
    ],
)
def test_the_word_for_a_failed_task_tells_its_reason(reason, word):
    assert task_word(TaskStatus.FAILED, Failure(reason)) == word


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("TIMEOUT", JobWord.TIMEOUT),
        ("EXIT_CODE", JobWord.FAILED),
    ],
)
def test_the_word_for_a_failed_job_tells_its_reason(reason, word):
    assert job_word(JobStatus.FINISHED, Outcome.FAILED, Failure(reason)) is word


@pytest.mark.parametrize(
    ("page", "language"),
    [
        ("fate.md", "en"),
        ("fate.zh-CN.md", "zh"),
    ],
)
def test_the_page_about_fate_has_every_path_and_its_codes(page, language):
    lines = [TABLE_HEADS[language], "|---|---|---|"]
    for path, (meaning, codes) in PATHS.items():
        numbers = sorted(set(codes.values()))
        refused_with = ", ".join(str(int(number)) for number in numbers)
        lines.append(f"| `{path}` | {translate(meaning, language)} | {refused_with} |")

    text = (DOCS / page).read_text(encoding="utf-8")

    _, _, after_start = text.partition("<!-- endpoints -->\n")
    table, _, _ = after_start.partition("\n<!-- end -->")
    assert table == "\n".join(lines)
