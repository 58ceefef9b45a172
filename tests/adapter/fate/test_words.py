"""Ids and states: FATE's and ours, both ways; FATE's page shows the paths that there are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.fate.envelope import PATHS
from adapter.fate.words import (
    OUR_OUTCOME,
    OUR_TASK,
    JobWord,
    Key,
    TaskWord,
    job_word,
    key_of,
    task_word,
)
from gateway.domain.retries import following, numbered_id
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.language.catalogue import translate

DOCS = Path(__file__).resolve().parents[3] / "docs"
_JOBS = st.text("0123456789", min_size=5, max_size=25) | st.text(
    "0123456789abcdef", min_size=8
).map("job-".__add__)
_NAMES = st.text("abz09_", max_size=20).map("a".__add__)


@given(_JOBS, _NAMES, st.integers(0, 99))
def test_a_task_comes_back_from_fates_id_and_version(job, name, version):
    ours = numbered_id(job, name, version)
    key = key_of(ours)
    assert key == key_of(ours, job) == Key(job, f"{job}_{name}", version)
    assert key.local_id == ours
    assert key.name == name


@pytest.mark.parametrize("ours", ["task_0123456789abcdef", "task-a-b", "x"])
def test_another_id_is_sent_as_it_is(ours):
    key = key_of(ours, "job-1")
    assert key.local_id == ours
    assert key.name == ""
    assert following("job-1", "a_b", 1, "job-1_a_b_0") == "job-1_a_b_1"


def test_tasks_and_ended_jobs_come_back_from_fates_words_as_they_were():
    for status in TaskStatus:
        assert OUR_TASK[task_word(status)] is (
            TaskStatus.READY if status is TaskStatus.PENDING else status
        )
    assert set(OUR_TASK) == set(TaskWord)
    for outcome in Outcome:
        rejected = outcome is Outcome.REJECTED
        word = job_word(JobStatus.REJECTED if rejected else JobStatus.FINISHED, outcome)
        assert OUR_OUTCOME[word] is (Outcome.FAILED if rejected else outcome)


@pytest.mark.parametrize(
    ("reason", "word"), [("STOPPED", "canceled"), ("TIMEOUT", "timeout"), ("EXIT_CODE", "failed")]
)
def test_a_failed_task_or_job_says_how_it_failed(reason, word):
    assert task_word(TaskStatus.FAILED, Failure(reason)) == word
    if word != "canceled":
        assert job_word(JobStatus.FINISHED, Outcome.FAILED, Failure(reason)) is JobWord(word)


@pytest.mark.parametrize("name", ["fate.md", "fate.zh-CN.md"])
def test_the_page_about_fate_has_every_path_and_its_codes(name):
    language = "zh" if "zh" in name else "en"
    heads = {"en": "| Path | Here | Refused with |", "zh": "| 路径 | 在本节点 | 拒绝时的应答码 |"}
    lines = [heads[language], "|---|---|---|"]
    for path, (means, codes) in PATHS.items():
        lines.append(
            f"| `{path}` | {translate(means, language)} | {', '.join(map(str, sorted(set(codes.values()))))} |"
        )
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text.partition("<!-- endpoints -->\n")[2].partition("\n<!-- end -->")[0] == "\n".join(
        lines
    )
