"""The models of responses describe all fields that the responses have."""

from typing import get_type_hints

import pytest

from gateway.admin.responses import jobs, node, partners
from gateway.domain.applications import Application
from gateway.ports import JobView
from gateway.store.audit import AuditEntry
from gateway.store.timeline import TimelineEntry

# Fields that responses leave out.
RELIABILITY = {"is_inferred", "never_ends_callback_jobs"}
SECRETS = {"token", "digest", "tries", "answer", "signing", "keys"}
SHOWN_ELSEWHERE = {
    "announced",  # by /api/v1/announcements, and the next one
    "announcing",
    "tee_approved",  # in `tee`
}


@pytest.mark.parametrize(
    ("model", "record", "left_out", "added"),
    [
        (node.AuditEntry, AuditEntry, set(), {"in_words"}),
        (jobs.TimelineEntry, TimelineEntry, set(), {"in_words"}),
        (
            partners.Application,
            Application,
            SECRETS | SHOWN_ELSEWHERE,
            {"key", "signed", "jobs_in_words", "tasks", "tee_agreed"},
        ),
    ],
)
def test_a_model_has_the_fields_of_its_record(model, record, left_out, added):
    fields = get_type_hints(record).keys() - left_out
    assert model.model_fields.keys() == fields | added


def test_a_job_has_the_fields_of_its_view():
    fields = get_type_hints(JobView).keys() - RELIABILITY
    assert fields <= jobs.Job.model_fields.keys()
