"""Stored data apart from jobs: datasets, grants, routes, the audit, used signatures."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from gateway.domain.datasets import Dataset, Grant, MemoryDatasets
from gateway.domain.run import Address
from gateway.identity.audit_chain import hash_of
from gateway.store.audit import SqlAudit
from gateway.store.repositories import (
    Gateways,
    SqlDatasets,
    SqlGrants,
    SqlJobAudits,
    SqlRouteVersions,
    SqlUsedSignatures,
)
from route_table.editing import Change
from route_table.live import LiveRoutes, Version
from tests.builders import at
from tests.store.kinds import on_sqlite, with_implementations
from tests.store.parallel import in_parallel

pytestmark = pytest.mark.xdist_group("repositories")  # one database for the module

on_each = with_implementations("datasets", "memory", "database")

AT = datetime(
    2026,
    1,
    2,
    3,
    4,
    5,
    tzinfo=UTC,
)
TABLE = Address("ns", "t")
# The signature of a request is accepted again after this many seconds.
VALIDITY = 120


# ------------------------------------------------------------ datasets


@pytest.fixture
def datasets(request, store):
    if request.param == "memory":
        return MemoryDatasets()
    return SqlDatasets(store)


def a_dataset(name="t", **changes):
    fields = {
        "namespace": "ns",
        "name": name,
        "columns": ("id", "y", "x0"),
        "types": ("string", "int", "float"),
        "count": 3,
        "partitions": 1,
        "meta": {
            "delimiter": ",",
            "match_id_name": "id",
            "label_name": "y",
            "余": [
                1,
                None,
                {"a": 0.5},
            ],
        },
        "checksum": "0" * 64,
        "size": 17,
        "created_at": datetime(
            2026,
            1,
            2,
            3,
            4,
            5,
            678901,
            tzinfo=UTC,
        ),
        "origin": "file:表.csv",
        "description": "a table 表 \U0001f600",
    }
    return Dataset(**(fields | changes))


@on_each
def test_a_dataset_is_stored_and_replaced(datasets):
    assert datasets.get("ns", "t") is None

    datasets.put(a_dataset())
    assert datasets.get("ns", "t") == a_dataset()
    assert datasets.get("other", "t") is None

    newer = a_dataset(
        count=4,
        disabled=True,
    )
    datasets.put(newer)
    assert datasets.get("ns", "t") == newer


@on_each
def test_names_of_datasets_that_only_look_alike_are_different(datasets):
    lookalikes = ["T", "ţ", "т"]  # the storage tells them apart as well
    for name in ("t", *lookalikes):
        datasets.put(a_dataset(name))
    listed = [dataset.name for dataset in datasets.list()]
    assert listed == sorted(["t", *lookalikes])

    for name in lookalikes:
        assert datasets.delete("ns", name)
    assert not datasets.delete("ns", "T")
    assert datasets.list() == [a_dataset()]


@on_each
def test_concurrent_writers_leave_one_dataset(datasets):
    def put(number):
        datasets.put(a_dataset(count=number))

    in_parallel(6, put)

    [stored] = datasets.list()
    assert stored == a_dataset(count=stored.count)


@on_each
def test_one_of_several_concurrent_uploads_of_a_name_is_recorded(datasets):
    uploads = [a_dataset("race", size=size) for size in range(6)]

    def record(number):
        return datasets.replace(None, uploads[number])

    if isinstance(datasets, MemoryDatasets):  # made for one thread
        recorded = [record(number) for number in range(6)]
    else:
        recorded = in_parallel(6, record)

    assert sum(recorded) == 1
    assert datasets.get("ns", "race") in uploads


@on_each
def test_a_dataset_is_replaced_only_if_it_is_the_expected_one(datasets):
    first = a_dataset("race", size=1)
    second = a_dataset("race", size=7)
    never_stored = a_dataset("race", size=99)
    datasets.put(first)

    assert not datasets.replace(never_stored, second)
    assert datasets.replace(first, second)
    assert not datasets.replace(first, never_stored)
    assert datasets.get("ns", "race") == second


@pytest.mark.parametrize(
    "shared_url",
    [pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
def test_an_upload_recorded_after_the_look_is_not_overwritten(stores, engines):
    """Elsewhere the look locks the missing row."""
    mine, theirs = a_dataset("race", size=1), a_dataset("race", size=2)
    ours, others = map(SqlDatasets, stores)

    def record_theirs(_connection, _cursor, text, *_):
        if text.endswith("FOR UPDATE") and others.get("ns", "race") is None:
            others.put(theirs)

    sa.event.listen(engines[0], "after_cursor_execute", record_theirs)
    try:
        is_stored = ours.replace(None, mine)
    finally:
        sa.event.remove(engines[0], "after_cursor_execute", record_theirs)

    assert not is_stored
    assert others.get("ns", "race") == theirs


# ------------------------------------------------------------ routes


@on_sqlite
def test_two_gateways_keep_their_route_files_in_step(store, tmp_path):
    files = [tmp_path / "first.yml", tmp_path / "second.yml"]
    for number, file in enumerate(files):
        file.write_text(f"JG0100001100000010: {{host: h, port: 1{number}}}\n")
        Gateways(store).beat(f"gateway-{number}", f"http://g{number}")

    first = LiveRoutes(
        files[0],
        SqlRouteVersions(store, "gateway-0"),
    )
    second = LiveRoutes(
        files[1],
        SqlRouteVersions(store, "gateway-1"),
    )
    assert first.problems == ()
    assert second.rival == "http://g0"
    assert "copy that file here" in str(second.problems[0])
    assert first.reload() is False
    assert second.table.routes == first.table.routes, "the node's table is in force"

    files[1].write_text(files[0].read_text())
    second.reload()
    assert second.problems == ()

    new_route = Change(
        "JG0100003300000030",
        {"host": "h", "port": 3},
    )
    first.edit(new_route, "ann")
    reload_all(second, first, second, first)
    files[1].write_text(files[1].read_text().replace("port: 3", "port: 4"))
    reload_all(first, second, first, second)
    assert files[0].read_text() == files[1].read_text()
    assert "port: 4" in files[0].read_text()
    assert first.table.version == 3
    assert second.table.version == 3


def reload_all(*gateways):
    for routes in gateways:
        routes.reload()


@on_sqlite
def test_a_version_of_routes_with_an_existing_number_is_not_added(store):
    versions = SqlRouteVersions(store, "me")
    first = Version(
        1,
        at(0),
        "ann",
        "",
        "api",
        "{}",
    )

    assert versions.add(first)
    assert not versions.add(replace(first, author="li"))
    assert versions.add(replace(first, number=2))
    assert versions.list(before=2) == [first]


# ------------------------------------------------------------ grants


def test_a_grant_takes_the_place_of_the_earlier_one_and_names_are_exact(store):
    grants = SqlGrants(store)
    earlier = Grant(TABLE, "n1", at(0), "ann")
    ended = Grant(
        TABLE,
        "n1",
        at(1),
        "bob",
        "contract",
        at(9),
        at(2),
        "ann",
    )
    of_lookalike = Grant(
        Address("ns", "T"),
        "n1",
        at(0),
        "ann",
    )

    for grant in (earlier, ended, of_lookalike):
        grants.put(grant)

    assert grants.of(TABLE) == [ended]
    assert set(grants.all("n1")) == {ended, of_lookalike}
    assert grants.all("n2") == []
    grants.forget(TABLE)
    assert grants.all() == [of_lookalike]


# ------------------------------------------------------------ the audit


def test_the_audit_shortens_long_names_and_replaces_half_characters(store):
    audit = SqlAudit(store)
    audit.add(at(0), "ann" * 100, "POST /x%y", 200, 404, {"half": "\ud83d"})
    audit.add(
        at(1),
        "ann",
        "POST /xzy",
        200,
        None,
        {},
    )

    [entry] = audit.list(action="x%")  # no wildcard
    assert entry.at == at(0)
    assert entry.who == "ann" * 85
    assert entry.detail == {"half": "?"}


def test_a_line_of_the_audit_with_nul_is_stored_as_it_is_hashed(store):
    audit = SqlAudit(store)
    audit.add(
        at(0),
        "a\0n",
        "POST /x\0",
        200,
        None,
        {"nul": "\0"},
    )

    [entry] = audit.list()
    assert entry.who == "a\ufffdn"
    assert entry.action == "POST /x\ufffd"
    assert entry.detail == {"nul": "\0"}
    assert entry.hash == hash_of(entry.line(), "")


@pytest.mark.parametrize(
    ("filters", "moment"),
    [
        ({"refused": True}, at(0)),
        ({"refused": False}, at(1)),
        (
            {
                "since": at(1),
                "until": at(2),
            },
            at(1),
        ),
    ],
    ids=["refused", "accepted", "period"],
)
@on_sqlite
def test_the_audit_is_filtered(store, filters, moment):
    audit = SqlAudit(store)
    audit.add(
        at(0),
        "ann",
        "POST /x",
        200,
        404,
        {},
    )
    audit.add(
        at(1),
        "ann",
        "POST /y",
        200,
        None,
        {},
    )

    [entry] = audit.list(**filters)

    assert entry.at == moment


def test_ids_of_job_audits_are_exact(store):
    audits = SqlJobAudits(store)

    for number, audit_id in enumerate("aA名á"):
        assert audits.add("n", audit_id, f"job-{number}") == f"job-{number}"
    assert audits.add("n", "A", "job-9") == "job-1"


# ------------------------------------------------------------ signatures


def test_one_of_several_concurrent_requests_with_one_signature_is_accepted(stores):
    signatures = [SqlUsedSignatures(store, lambda: AT) for store in stores]

    def use_signature(number):
        return signatures[number % 2].first(
            "s",
            str(number),
            VALIDITY,
        )

    first_users = in_parallel(8, use_signature)

    assert len(set(first_users)) == 1


@on_sqlite
def test_a_signature_is_remembered_while_it_is_valid(store):
    now = AT
    signatures = SqlUsedSignatures(store, lambda: now)

    assert signatures.first("s0", "a", VALIDITY) == "a"
    now += timedelta(seconds=VALIDITY - 1)
    assert signatures.first("s0", "b", VALIDITY) == "a"
    now += timedelta(seconds=2)
    assert signatures.first("s0", "b", VALIDITY) == "b"
