"""The bytes exchanged with partners: counted in memory, saved now and then, added up by day."""

from datetime import UTC, date, datetime, timedelta

import pytest

from gateway.domain.volumes import DayVolume, Volume
from gateway.errors import DatabaseAway
from gateway.runtime.volume_counter import VolumeCounter

ME = "me"
PARTNER = "partner"
DEFAULT = "default"
DAY = date(2026, 11, 29)
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
FIRST = date(2026, 11, 1)
OCTOBER = date(2026, 10, 31)
ONE = Volume(1, 2)
TWO = Volume(2, 4)


class Store:
    """The saved volumes, in memory."""

    def __init__(self):
        self.saved = []
        self.is_away = False
        self.deleted_before = None

    def add(self, volumes):
        if self.is_away:
            raise DatabaseAway("away")
        self.saved += volumes

    def since(self, partner, day):
        volumes = []
        for volume in self.saved:
            if volume.partner == partner and volume.day >= day:
                volumes.append(volume)
        return volumes

    def delete_before(self, day):
        self.deleted_before = day


def saved(volume, day=DAY):
    """Return a volume of the partner as the store has it."""
    return DayVolume(PARTNER, day, volume)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


class Node:
    """A counter, with its store, its clock and its routes."""

    def __init__(self):
        self.store = Store()
        self.clock = Clock()
        self.entries = {PARTNER}
        self.counter = VolumeCounter(
            ME,
            self.routes,
            DEFAULT,
            self.store,
            self.clock,
        )

    def routes(self):
        return self.entries

    def count(self, volume):
        self.counter.add(PARTNER, volume)

    def save(self):
        self.counter.save()

    def recent(self):
        return self.counter.recent(PARTNER)


@pytest.fixture
def node():
    return Node()


def test_the_bytes_of_a_partner_are_saved_once(node):
    node.count(Volume(1, 20))
    node.count(Volume(300, 4000))
    assert node.store.saved == []

    node.save()
    node.save()

    assert node.store.saved == [saved(Volume(301, 4020))]


def test_saved_and_new_bytes_add_up_by_day_and_month(node):
    node.store.saved = [
        saved(Volume(1, 1), OCTOBER),
        saved(Volume(10, 20), FIRST),
        saved(Volume(100, 200)),
        DayVolume("other", DAY, Volume(5, 5)),
    ]

    node.count(Volume(1000, 2000))

    recent = node.recent()
    assert recent.today == Volume(1100, 2200)
    assert recent.month == Volume(1110, 2220)


def test_bytes_count_on_the_day_on_which_they_passed(node):
    node.count(Volume(1, 1))
    node.clock.now += timedelta(days=2)
    node.count(Volume(5, 6))

    recent = node.recent()
    assert recent.today == Volume(5, 6)
    assert recent.month == recent.today
    node.save()
    assert node.store.saved[0] == saved(Volume(1, 1))


def test_bytes_are_kept_while_the_database_is_away(node):
    node.count(ONE)
    node.store.is_away = True
    with pytest.raises(DatabaseAway):
        node.save()
    node.count(Volume(10, 20))

    node.store.is_away = False
    node.save()

    assert node.store.saved == [saved(Volume(11, 22))]


@pytest.mark.parametrize(
    ("entries", "counted"),
    [
        ({PARTNER}, {}),
        ({PARTNER, DEFAULT}, {DEFAULT: Volume(200, 400)}),
    ],
)
def test_strangers_never_make_the_counter_grow(node, entries, counted):
    node.entries = entries
    for number in range(200):
        node.counter.add(f"stranger-{number}", ONE)

    assert node.counter.since_start() == counted


def test_the_node_itself_is_not_counted(node):
    node.entries = {ME, DEFAULT}
    node.counter.add(ME, ONE)

    assert node.counter.since_start() == {}


def test_figures_for_prometheus_do_not_fall_when_they_are_saved(node):
    node.count(ONE)
    node.save()
    node.count(ONE)

    assert node.counter.since_start() == {PARTNER: TWO}


def test_days_are_deleted_after_thirteen_months(node):
    node.save()

    assert node.store.deleted_before == date(2025, 10, 25)
