"""Applications in the database: their ids, concurrent decisions, and the count of their uses."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gateway.domain.applications import APPROVED, IllegalMove, Kind, Side, record_decision
from gateway.errors import NotFound
from gateway.store.applications import SqlApplications
from tests.domain.test_applications import NOW, an_application
from tests.store.kinds import on_sqlite

JOBS = [f"job-{number}" for number in range(8)]


def test_an_id_is_unique_per_partner_side_and_kind(store):
    applications = SqlApplications(store)
    first = applications.add(an_application())

    assert first is not None
    assert applications.get(first.number) == first
    assert applications.add(an_application()) is None
    variants = [
        replace(first, partner="b"),
        replace(
            first,
            side=Side.MINE,
        ),
        replace(
            first,
            kind=Kind.MODEL,
        ),
    ]
    for variant in variants:
        assert applications.find(variant.side, variant.partner, variant.kind, variant.id) is None
        assert applications.add(variant) is not None
    assert applications.find(Side.THEIRS, "B", Kind.DATASET, "a1") == first


@on_sqlite
def test_applications_are_listed_by_pages_and_filters(store):
    applications = SqlApplications(store)
    first = applications.add(an_application())
    applications.add(an_application(partner="b"))
    applications.add(an_application(side=Side.MINE))
    applications.add(an_application(kind=Kind.MODEL))

    all_applications = applications.list()
    assert len(all_applications) == 4
    assert applications.list(limit=2) == all_applications[:2]
    assert applications.list(after=all_applications[1].number) == all_applications[2:]
    assert applications.list(Side.THEIRS, Kind.DATASET, partner="B") == [first]


@on_sqlite
def test_an_unknown_number_is_not_found(store):
    applications = SqlApplications(store)

    with pytest.raises(NotFound):
        applications.get(99)
    with pytest.raises(NotFound):
        applications.change(99, replace)


def test_of_concurrent_decisions_one_counts(stores):
    gateways = [SqlApplications(store) for store in stores]
    application = gateways[0].add(an_application())
    assert application is not None

    def decide(number):
        def approve(current):
            return record_decision(
                current,
                True,
                str(number),
                "",
                NOW,
                "t",
                "d",
            )

        try:
            gateways[number % 2].change(application.number, approve)
        except IllegalMove:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        decisions = list(pool.map(decide, range(8)))

    assert sum(decisions) == 1
    assert gateways[0].due(NOW) == [str(application.number)]


def test_concurrent_jobs_never_use_more_than_allowed(stores):
    gateways = [SqlApplications(store) for store in stores]
    application = gateways[0].add(an_application(status=APPROVED, most_jobs=3))
    assert application is not None

    def create_job(number):
        """Use the application for a job; each job is created twice, once by each gateway."""
        job_id = JOBS[number // 2]
        return gateways[number % 2].use(
            application,
            job_id,
            permit=True,
        )

    with ThreadPoolExecutor(4) as pool:
        permitted = list(pool.map(create_job, range(2 * len(JOBS))))

    assert gateways[0].get(application.number).jobs == 3
    using_jobs = [job_id for job_id in JOBS if gateways[0].used_by(job_id)]
    assert len(using_jobs) == 3
    assert sum(permitted) == 6, "the two creations of one job count once"
