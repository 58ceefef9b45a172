"""A signature is good for one request, whichever gateway of the node hears it first."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from adapter.fate.signing import App, Signatures, Site, UsedSignatures
from gateway.errors import NotAllowed
from gateway.store import schema
from gateway.store.repositories import SqlUsedSignatures
from gateway.store.store import Store
from tests.contracts.databases import careless_database
from tests.contracts.test_repositories import a_store

APP = App("1", "secret")
US = Signatures({"there": Site(sends=APP)})


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, 8, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def stores(request: pytest.FixtureRequest, tmp_path: Path, worker_id: str) -> Iterator[list[Store]]:
    """Yield the stores of two gateways on one database."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path / 'test.db'}"
        else:
            url = stack.enter_context(careless_database(f"{worker_id}_heard"))
        yield [stack.enter_context(a_store(url)) for _ in range(2)]


def gateway(store: Store) -> Signatures:
    return Signatures(
        {"us": Site(expects=APP)}, UsedSignatures(SqlUsedSignatures(store, lambda: datetime.now(UTC)).first)
    )


def test_what_one_gateway_heard_is_used_at_the_other(stores: list[Store]):
    one, other = map(gateway, stores)
    signed = US.sign("there", "9999")
    one.check("us", signed, "/v2/partner/job/create", b"{}")
    other.check("us", signed, "/v2/partner/job/create", b"{}")  # FATE repeats it where no answer came
    for _ in range(2):  # the second time it remembers by itself
        with pytest.raises(NotAllowed) as caught:
            other.check("us", signed, "/v2/partner/job/stop", b"{}")
        assert caught.value.reason == "SIGNATURE_USED"
    other.check("us", US.sign("there", "9999"), "/v2/partner/job/stop", b"{}")


def test_of_requests_that_race_with_one_signature_one_is_taken(stores: list[Store]):
    heard = [SqlUsedSignatures(store, lambda: datetime.now(UTC)) for store in stores]
    gate = threading.Barrier(8)

    def work(number: int) -> bool:
        gate.wait(60)
        return heard[number % 2].first("s", str(number), 120) == str(number)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1


def test_what_holds_no_longer_is_forgotten(stores: list[Store]):
    clock = Hands()
    heard = SqlUsedSignatures(stores[0], clock)
    for number in range(5):
        assert heard.first(f"s{number}", "a", 120) == "a"
    clock.now += timedelta(seconds=119)
    assert heard.first("s0", "b", 120) == "a"
    clock.now += timedelta(seconds=2)
    assert heard.first("s0", "b", 120) == "b"
    clock.now += timedelta(seconds=60)
    assert heard.first("another", "c", 120) == "c"
    with stores[0].read() as connection:
        left = connection.execute(sa.select(schema.used_signature.c.signature)).scalars().all()
    assert sorted(left) == ["another", "s0"]
