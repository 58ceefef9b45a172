"""Grants, lists of jobs and the audit, on every database."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from gateway.domain.datasets import Grant
from gateway.domain.run import Address
from gateway.store import queries
from gateway.store.queries import Wanted, page
from gateway.store.repositories import SqlAudit, SqlGrants
from gateway.store.store import Store
from tests.builders import a_job, a_local_job, a_spec, at
from tests.contracts.databases import careless_database
from tests.contracts.test_repositories import a_store

TABLE = Address("ns", "t")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Store]:
    with ExitStack() as stack:
        if request.param == "mariadb":
            url = stack.enter_context(careless_database(f"{worker_id}_lists"))
        else:
            url = f"sqlite:///{tmp_path_factory.mktemp('lists') / 'test.db'}"
        yield stack.enter_context(a_store(url))


def test_a_grant_takes_the_place_of_the_earlier_one_and_names_are_exact(store: Store):
    grants = SqlGrants(store)
    ended = Grant(TABLE, "n1", at(1), "bob", "contract", at(9), at(2), "ann")
    other = Grant(Address("ns", "T"), "n1", at(0), "ann")
    for grant in (Grant(TABLE, "n1", at(0), "ann"), ended, other):
        grants.put(grant)
    assert grants.of(TABLE) == [ended]
    assert set(grants.all("n1")) == {ended, other} and grants.all("n2") == []
    grants.forget(TABLE)
    assert grants.all() == [other]


def test_jobs_are_listed_once_by_pages(store: Store, monkeypatch: pytest.MonkeyPatch):
    looked_at: list[str] = []
    takes_part = queries._takes_part
    monkeypatch.setattr(
        queries, "_takes_part", lambda spec, node: looked_at.append(spec) or takes_part(spec, node)
    )
    for i in range(5):
        spec = a_spec("a", {"guest": ("n1",), "host": ("n2" if i % 2 else "n3",)}, job_id=f"job-{i}")
        if i % 2:
            store.jobs.add(replace(a_job(), tasks={}, spec=spec, created_at=at(i)), spec.flow_id)
        store.local_jobs.add(replace(a_local_job(), spec=spec, created_at=at(i)), spec.flow_id)
    found, after = [], None
    while found == [] or after is not None:
        entries, after = page(store, Wanted(partner="n2"), 1, after)
        found += [(entry.job_id, entry.sides) for entry in entries]
    both = ("scheduler", "participant")
    assert found == [("job-3", both), ("job-1", both)]
    assert looked_at and all('"n2"' in spec for spec in looked_at)  # the others stay in the database
    running = page(store, Wanted(statuses=["RUNNING"], since=at(2)), 10).entries
    assert [entry.job_id for entry in running] == ["job-4", "job-2"]


def test_the_audit_is_found_by_what_was_done_and_how_it_went(store: Store):
    audit = SqlAudit(store)
    audit.add(at(0), "ann", "POST /x%y", 200, 404, {})
    audit.add(at(1), "ann", "POST /xzy", 200, None, {})
    assert [e.at for e in audit.list(action="x%")] == [at(0)]
    assert [e.at for e in audit.list(refused=True)] == [at(0)]
    assert [e.at for e in audit.list(refused=False)] == [at(1)]
    assert [e.at for e in audit.list(since=at(1), until=at(2))] == [at(1)]
