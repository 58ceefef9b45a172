"""Applications in the database: found by what a partner names, changed by one at a time, counted exactly."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gateway.domain import applications
from gateway.domain.applications import APPROVED, Kind, Side
from gateway.errors import NotFound
from gateway.store.applications import SqlApplications
from gateway.store.store import Store
from tests.domain.test_applications import NOW, an_application


def test_an_id_means_what_its_partner_its_side_and_its_kind_mean(store: Store):
    kept = SqlApplications(store)
    one = kept.add(an_application())
    assert one is not None and kept.get(one.number) == one
    assert kept.add(an_application()) is None
    for other in (
        replace(one, partner="b"),
        replace(one, side=Side.MINE),
        replace(one, kind=Kind.MODEL),
    ):
        assert kept.find(other.side, other.partner, other.kind, one.id) is None
        assert kept.add(other) is not None
    assert kept.find(Side.THEIRS, "B", Kind.DATASET, "a1") == one
    every = kept.list()
    assert (
        len(every) == 4
        and kept.list(limit=2) == every[:2]
        and kept.list(after=every[1].number) == every[2:]
    )
    assert kept.list(Side.THEIRS, Kind.DATASET, partner="B") == [one]
    with pytest.raises(NotFound):
        kept.get(99)
    with pytest.raises(NotFound):
        kept.change(99, lambda one: one)


def test_of_concurrent_decisions_one_counts(stores: tuple[Store, Store]):
    kept = [SqlApplications(store) for store in stores]
    made = kept[0].add(an_application())
    assert made is not None

    def decide(number: int) -> bool:
        try:
            kept[number % 2].change(
                made.number,
                lambda known: applications.record_decision(
                    known, True, str(number), "", NOW, "t", "d"
                ),
            )
        except applications.IllegalMove:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(decide, range(8))) == 1
    assert kept[0].due(NOW) == [str(made.number)]


def test_concurrent_jobs_never_use_more_than_allowed(stores: tuple[Store, Store]):
    kept = [SqlApplications(store) for store in stores]
    made = kept[0].add(an_application(status=APPROVED, most_jobs=3))
    assert made is not None
    with ThreadPoolExecutor(4) as pool:
        used = list(
            pool.map(lambda n: kept[n % 2].use(made, f"job-{n // 2}", permit=True), range(16))
        )
    assert (
        kept[0].get(made.number).jobs
        == 3
        == sum(bool(kept[0].used_by(f"job-{n}")) for n in range(8))
    )
    assert sum(used) == 6, "the two creations of one job count once"
