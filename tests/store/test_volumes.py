"""The bytes exchanged with partners in the database: several gateways add up."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from gateway.domain.volumes import DayVolume, Volume
from gateway.store.volumes import SqlVolumes

pytestmark = pytest.mark.xdist_group("volumes")  # one database for the module

DAY = date(2026, 11, 29)
PARTNERS = ("p2", "p1")
TURNS = 10


def test_two_gateways_add_up_at_the_same_time(stores):
    def count(store):
        volumes = SqlVolumes(store)
        for _ in range(TURNS):
            volumes.add([DayVolume(partner, DAY, Volume(1, 2**40)) for partner in PARTNERS])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(count, stores))

    for partner in PARTNERS:
        stored = SqlVolumes(stores[0]).since(partner, DAY)
        assert stored == [DayVolume(partner, DAY, Volume(2 * TURNS, 2 * TURNS * 2**40))]


def test_days_are_read_from_one_on_and_deleted_before_one(store):
    volumes = SqlVolumes(store)
    days = [date(2025, 12, 31), date(2026, 1, 1), date(2026, 11, 29)]
    stored = [DayVolume("p1", day, Volume(day.year, day.day)) for day in days]
    volumes.add(stored)

    assert volumes.since("p1", days[1]) == stored[1:]
    assert volumes.since("p2", days[0]) == []
    volumes.delete_before(days[2])
    assert volumes.since("p1", days[0]) == stored[2:]
