"""Lists of jobs: one entry per job, page by page, with the fields of its records."""

from dataclasses import replace

import pytest

from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.store import schema
from gateway.store.queries import JobFilter, page
from tests.builders import a_job, a_local_job, a_spec, at
from tests.store.kinds import on_sqlite

pytestmark = pytest.mark.xdist_group("job lists")  # one database for the module


def test_jobs_are_listed_once_by_pages(store):
    add_jobs_with_partners(store)

    entries = all_entries(store, JobFilter(partner="n2"), 1)
    assert [entry.job_id for entry in entries] == ["job-3", "job-1"]
    assert [entry.sides for entry in entries] == [("scheduler", "participant")] * 2

    running = page(store, JobFilter(statuses=["RUNNING"], since=at(2)), 10).entries
    assert [entry.job_id for entry in running] == ["job-4", "job-2"]


@on_sqlite
def test_a_list_of_a_partners_jobs_parses_no_other_jobs(store):
    add_jobs_with_partners(store)
    table = schema.local_job
    is_other_partners = table.c.job_id.in_(["job-0", "job-2", "job-4"])
    with store.write() as connection:
        connection.execute(table.update().where(is_other_partners).values(spec="not JSON"))

    entries = page(store, JobFilter(partner="n2"), 10).entries

    assert [entry.job_id for entry in entries] == ["job-3", "job-1"]


def test_nodes_and_components_beyond_the_stored_words_are_found(store):
    hosts = tuple(f"node-{number:03}" for number in range(100))
    spec = a_spec("a", {"guest": ("n1",), "host": hosts}, job_id="job-large")
    add_scheduled(store, spec, at(1))
    add_scheduled(store, a_spec("a", job_id="job-small"), at(2))

    for filters in (JobFilter(partner=hosts[-1]), JobFilter(component="thing", partner="n1")):
        assert [entry.job_id for entry in all_entries(store, filters, 1)][-1:] == ["job-large"]
    assert all_entries(store, JobFilter(component="other"), 10) == []


def test_jobs_of_an_older_gateway_are_found_by_their_nodes(store):
    add_jobs_with_partners(store)
    with store.write() as connection:
        for table in (schema.job, schema.local_job):
            default = table.c.words.server_default.arg
            connection.execute(table.update().values(words=default))

    entries = page(store, JobFilter(partner="n2"), 10).entries

    assert [entry.job_id for entry in entries] == ["job-3", "job-1"]


@pytest.mark.parametrize(
    "limit",
    [1, 2, 3, 20],
)
@on_sqlite
def test_jobs_of_both_sides_and_of_one_moment_are_one_list(store, limit):
    job_ids = []
    for number in range(12):
        spec = a_spec("a", job_id=f"job-{number:02}")
        moment = at(number // 3)  # three jobs each
        if number % 4 < 2:
            add_scheduled(store, spec, moment)
        if number % 4:
            add_local(store, spec, moment)
        job_ids.append(spec.job_id)

    entries = all_entries(store, JobFilter(), limit)

    assert [entry.job_id for entry in entries] == job_ids[::-1]


def test_jobs_of_one_moment_are_sorted_by_the_codes_of_characters(store):
    job_ids = [
        "job-A",
        "job-B",
        "job-a",
        "job_A",
    ]
    for job_id in job_ids:
        spec = a_spec("a", job_id=job_id)
        add_scheduled(store, spec, at(0))

    entries = all_entries(store, JobFilter(), 1)

    assert [entry.job_id for entry in entries] == job_ids[::-1]


def test_a_job_of_a_submitter_with_nul_is_listed(store):
    user = "li\0na"
    job = replace(
        a_job(),
        user=user,
    )
    store.jobs.add(job, job.spec.flow_id)

    filters = JobFilter(user=user)
    [entry] = page(store, filters, 10).entries
    assert entry.user.startswith("li")  # each kind of database shows the rest in another way


def test_a_list_has_the_end_the_submitter_and_the_progress_of_jobs(store):
    job = a_job(
        "a; b: a",
        JobStatus.RUNNING,
        a=TaskStatus.SUCCESS,
        b=TaskStatus.RUNNING,
    )
    store.jobs.add(
        replace(job, user="li.na"),
        job.spec.flow_id,
    )
    finished = replace(
        a_local_job(status=JobStatus.FINISHED),
        spec=a_spec(
            "a",
            job_id="job-over",
        ),
        created_at=at(9),
        ended_at=at(12),
        ending=Ending(Outcome.SUCCEEDED, at(12)),
        progress=50,
        run_warnings=2,
    )
    store.local_jobs.add(finished, finished.spec.flow_id)

    newest, oldest = page(store, JobFilter(), 10).entries
    assert newest.job_id == "job-over"
    assert newest.user == ""
    assert newest.ended_at == at(12)
    assert newest.progress == 100
    assert newest.warning_count == 2
    assert oldest.warning_count == 0
    assert oldest.job_id == job.id
    assert oldest.user == "li.na"
    assert oldest.ended_at is None
    assert oldest.progress == 50


def add_jobs_with_partners(store):
    """Store job-0 to job-4.

    This node schedules the odd ones, with the partner n2; the partner of the others is n3.
    """
    for number in range(5):
        is_odd = bool(number % 2)
        host = "n2" if is_odd else "n3"
        spec = a_spec(
            "a",
            {
                "guest": ("n1",),
                "host": (host,),
            },
            job_id=f"job-{number}",
        )
        if is_odd:
            add_scheduled(store, spec, at(number))
        add_local(store, spec, at(number))


def add_scheduled(store, spec, created_at):
    job = replace(
        a_job(),
        tasks={},
        spec=spec,
        created_at=created_at,
    )
    store.jobs.add(job, spec.flow_id)


def add_local(store, spec, created_at):
    local = replace(
        a_local_job(),
        spec=spec,
        created_at=created_at,
    )
    store.local_jobs.add(local, spec.flow_id)


def all_entries(store, filters, limit):
    """Return the entries of all pages."""
    entries, cursor = page(store, filters, limit)
    while cursor is not None:
        following = page(store, filters, limit, cursor)
        entries += following.entries
        cursor = following.next
    return entries
