"""What the node keeps beside its jobs: providers, datasets, grants, models, lists, the audit, used signatures."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.datasets import Dataset, DatasetRepository, Grant, MemoryDatasets
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.job import Job
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import Conflict, DatabaseAway, TooLarge
from gateway.runtime.loop import wait_for_database
from gateway.store import queries, repositories, timeline
from gateway.store import store as store_module
from gateway.store.audit import SqlAudit
from gateway.store.database import Database, repeat_on_conflict
from gateway.store.models import SqlModels, publish
from gateway.store.queries import JobFilter, page
from gateway.store.records import CachedRecord, RecordCache
from gateway.store.repositories import (
    Gateways,
    SqlDatasets,
    SqlGrants,
    SqlJobAudits,
    SqlProviders,
    SqlRouteVersions,
    SqlUsedSignatures,
)
from gateway.store.store import Store
from provider_registry.model import Provider
from provider_registry.registration import provider_from_request
from provider_registry.registry import Action, Registry, Repository, Revision, Stale
from route_table.editing import Change
from route_table.live import LiveRoutes, Version
from tests.builders import OK, a_job, a_local_job, a_run, a_spec, at, raising
from tests.contracts.databases import a_store, careless_database
from tests.e2e.nodes import example
from tests.registry.builders import a_description, a_provider
from tests.registry.memory import MemoryRepository

pytestmark = pytest.mark.xdist_group("repositories")  # one database for the module

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PLACES = ["memory", "database"]


@pytest.fixture(params=[*PLACES, "database of its own"])
def providers(request: pytest.FixtureRequest, store: Store) -> Repository:
    alone = request.param not in PLACES
    return (
        MemoryRepository() if request.param == "memory" else SqlProviders(store, sole_writer=alone)
    )


@pytest.fixture(params=PLACES)
def datasets(request: pytest.FixtureRequest, store: Store) -> DatasetRepository:
    return MemoryDatasets() if request.param == "memory" else SqlDatasets(store)


def a_dataset(
    namespace: str = "ns",
    name: str = "t",
    **changes: Any,
) -> Dataset:
    values: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "columns": ("id", "y", "x0"),
        "count": 3,
        "partitions": 1,
        "meta": {
            "delimiter": ",",
            "match_id_name": "id",
            "label_name": "y",
            "余": [1, None, {"a": 0.5}],
        },
        "checksum": "0" * 64,
        "size": 17,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "origin": "file:表.csv",
        "types": ("string", "int", "float"),
        "description": "a table 表 \U0001f600",
    }
    return Dataset(**(values | changes))


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do the work in so many threads that begin together; return the results in no order."""
    gate = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda i: (gate.wait(60), work(i))[1], range(count)))


def test_one_of_several_concurrent_uploads_of_a_name_is_recorded(datasets: DatasetRepository):
    tries = [a_dataset(name="race", size=i) for i in range(6)]
    if isinstance(datasets, MemoryDatasets):
        won = [datasets.replace(None, one) for one in tries]
    else:
        won = at_once(len(tries), lambda i: datasets.replace(None, tries[i]))
    first = datasets.get("ns", "race")
    assert sum(won) == 1 and first in tries
    assert not datasets.replace(a_dataset(name="race", size=99), tries[0])
    assert datasets.replace(first, a_dataset(name="race", size=7)) and not datasets.replace(
        first, tries[0]
    )
    kept = datasets.get("ns", "race")
    assert kept is not None and kept.size == 7
    datasets.delete("ns", "race")


# ---------------------------------------------------------------- providers


def a_revision(
    provider: Provider,
    number: int = 1,
    action: Action = Action.UPDATED,
    at: int = 0,
) -> Revision:
    return Revision(
        provider.key, number, AT + timedelta(seconds=at), "ann", action, "why 文", provider
    )


def test_revisions_are_kept_in_order_and_the_newest_is_in_force(providers: Repository):
    first = provider_from_request(example("register_unionpay.json"))
    first = replace(
        first,
        retired=True,
        digests={"unionpay:2.0.0": "sha256:1"},
        images={"HeteroLR": "lr:1"},
    )
    assert providers.get(first.key) is None and providers.newest(first.key) == 0
    providers.write(a_revision(first, at=3))
    assert providers.get(first.key) == first
    old, new = (
        a_provider(),
        a_provider(a_description("Other"), metadata={"image": "acme:1.0.1", "注": "文"}),
    )
    every = [a_revision(p, i + 1, at=i) for i, p in enumerate((old, new, new))]
    for revision in every:
        providers.write(revision)
    assert providers.get(new.key) == new and [p.key for p in providers.list()] == sorted(
        [new.key, first.key]
    )
    assert list(providers.history(new.key)) == every[::-1]
    assert list(providers.history(new.key, before=3, limit=1)) == [every[1]]
    with pytest.raises(Stale):
        providers.write(a_revision(old, 3))
    providers.write(a_revision(new, 4, Action.DELETED))
    assert providers.get(new.key) is None and providers.list() == [first]
    providers.write(a_revision(new, providers.newest(new.key) + 1))
    assert [r.action for r in providers.history(new.key)] == [
        "updated",
        "deleted",
        *["updated"] * 3,
    ]


def test_the_revision_in_force_at_a_moment_is_found(providers: Repository):
    old, new = a_provider(), a_provider(metadata={"image": "acme:2"})
    first, second = a_revision(old, 1, at=10), a_revision(new, 2, at=20)
    providers.write(first)
    assert providers.since(old.key, AT + timedelta(seconds=15)) is None
    providers.write(second)
    told = [providers.since(old.key, AT + timedelta(seconds=s)) for s in (5, 10, 15, 20, 25)]
    assert told == [None, first, first, None, None]


@pytest.mark.parametrize("other", ["ACME", "acmé", "aсme"], ids=["case", "accent", "cyrillic"])
def test_keys_that_only_look_alike_are_different(providers: Repository, other: str):
    """A vendor that takes another's name in other letters replaces nothing, and owns nothing."""
    first, second = a_provider(), a_provider(name=other)
    for provider in (first, second):
        providers.write(a_revision(provider))
        assert providers.claim(provider.name, provider.name) == provider.name
    assert providers.get(first.key) == first and providers.get(second.key) == second
    providers.write(a_revision(second, 2, Action.DELETED))
    assert providers.list() == [first]


def test_a_name_has_one_owner_until_it_is_given(providers: Repository):
    assert providers.owner("acme") is None
    assert [providers.claim("acme", who) for who in ("ann", "bob")] == ["ann", "ann"]
    providers.give("acme", "bob")
    providers.give("acme", "bob")
    providers.give("other", "")
    assert (providers.owner("acme"), providers.owner("other")) == ("bob", "")
    assert len(set(at_once(6, lambda i: providers.claim("new", str(i))))) == 1


def test_concurrent_registrations_each_get_a_revision(providers: Repository):
    registry = Registry(providers)
    said = at_once(
        6, lambda i: registry.register(a_provider(metadata={"image": f"acme:{i}"})).created
    )
    assert sorted(said, key=str) == [False] * 5 + [True], said
    history = providers.history("acme:1.0.0@docker")
    assert [r.number for r in history] == [6, 5, 4, 3, 2, 1]
    assert providers.list() == [history[0].provider]


# ---------------------------------------------------------------- datasets


def test_datasets_are_stored_and_deleted_atomically_by_many_writers(
    datasets: DatasetRepository,
):
    dataset, newer = a_dataset(), a_dataset(count=4, disabled=True)
    assert datasets.get("ns", "t") is None
    datasets.put(dataset)
    assert datasets.get("ns", "t") == dataset and datasets.get("other", "t") is None
    datasets.put(newer)
    alike = [a_dataset(name=name) for name in ("T", "ţ", "т")]  # the storage tells them apart
    for other in alike:
        datasets.put(other)
    assert [d.name for d in datasets.list()] == sorted(["t", "T", "ţ", "т"]) and datasets.get(
        "ns", "t"
    ) == newer
    assert [datasets.delete("ns", one.name) for one in (*alike, alike[0])] == [
        True,
        True,
        True,
        False,
    ]
    assert datasets.list() == [newer]
    said = at_once(6, lambda i: datasets.put(a_dataset(count=i)))
    assert said == [None] * 6
    kept = datasets.list()
    assert len(kept) == 1 and kept[0] == a_dataset(count=kept[0].count)


# ---------------------------------------------------------------- grants, lists, audit, signatures

TABLE = Address("ns", "t")


def test_two_gateways_keep_their_route_files_in_step(store: Store, tmp_path: Path):
    files = [tmp_path / "first.yml", tmp_path / "second.yml"]
    for number, file in enumerate(files):
        file.write_text(f"JG0100001100000010: {{host: h, port: 1{number}}}\n")
        Gateways(store).beat(f"gateway-{number}", f"http://g{number}")

    def follows(number: int) -> LiveRoutes:
        return LiveRoutes(files[number], SqlRouteVersions(store, f"gateway-{number}"))

    first, second = follows(0), follows(1)
    assert first.problems == () and second.rival == "http://g0"
    assert "copy that file here" in str(second.problems[0]) and first.reload() is False
    assert second.table.routes == first.table.routes  # the table that is in force at the node
    files[1].write_text(files[0].read_text())
    second.reload()
    assert second.problems == ()
    first.edit(Change("JG0100003300000030", {"host": "h", "port": 3}), "ann")
    for routes in (second, first, second, first):
        routes.reload()
    files[1].write_text(files[1].read_text().replace("port: 3", "port: 4"))
    for routes in (first, second, first, second):
        routes.reload()
    assert files[0].read_text() == files[1].read_text() and "port: 4" in files[0].read_text()
    assert first.table.version == second.table.version == 3


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
    read: list[str] = []
    takes_part = queries._takes_part
    monkeypatch.setattr(
        queries, "_takes_part", lambda spec, node: read.append(spec) or takes_part(spec, node)
    )
    for i in range(5):
        spec = a_spec(
            "a", {"guest": ("n1",), "host": ("n2" if i % 2 else "n3",)}, job_id=f"job-{i}"
        )
        if i % 2:
            store.jobs.add(
                replace(
                    a_job(),
                    tasks={},
                    spec=spec,
                    created_at=at(i),
                ),
                spec.flow_id,
            )
        store.local_jobs.add(replace(a_local_job(), spec=spec, created_at=at(i)), spec.flow_id)
    found, after = [], None
    while found == [] or after is not None:
        entries, after = page(store, JobFilter(partner="n2"), 1, after)
        found += [(entry.job_id, entry.sides) for entry in entries]
    both = ("scheduler", "participant")
    assert found == [("job-3", both), ("job-1", both)]
    assert read and all('"n2"' in spec for spec in read)  # the others stay in the database
    running = page(store, JobFilter(statuses=["RUNNING"], since=at(2)), 10).entries
    assert [entry.job_id for entry in running] == ["job-4", "job-2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 20])
def test_pages_of_both_sides_are_one_list_also_of_jobs_of_one_moment(store: Store, limit: int):
    there = []
    for i in range(12):
        spec, moment = a_spec("a", job_id=f"job-{i:02}"), at(i // 3)
        if i % 4 < 2:
            store.jobs.add(
                replace(
                    a_job(),
                    tasks={},
                    spec=spec,
                    created_at=moment,
                ),
                spec.flow_id,
            )
        if i % 4:
            store.local_jobs.add(replace(a_local_job(), spec=spec, created_at=moment), spec.flow_id)
        there.append(spec.job_id)
    found, after = [], None
    while found == [] or after is not None:
        entries, after = page(store, JobFilter(), limit, after)
        found += [entry.job_id for entry in entries]
    assert found == there[::-1]


def test_a_list_has_the_end_the_submitter_and_the_progress_of_jobs(store: Store):
    job = a_job("a; b: a", JobStatus.RUNNING, a=TaskStatus.SUCCESS, b=TaskStatus.RUNNING)
    store.jobs.add(replace(job, user="li.na"), job.spec.flow_id)
    spec = a_spec("a", job_id="job-over")
    over = replace(
        a_local_job(status=JobStatus.FINISHED),
        spec=spec,
        created_at=at(9),
        ended_at=at(12),
    )
    store.local_jobs.add(
        replace(over, ending=Ending(Outcome.SUCCEEDED, at(12)), progress=50), spec.flow_id
    )
    listed = [
        (e.job_id, e.user, e.ended_at, e.progress) for e in page(store, JobFilter(), 10).entries
    ]
    assert listed == [("job-over", "", at(12), 100), (job.id, "li.na", None, 50)]


def test_the_audit_is_found_by_what_was_done_and_how_it_went(store: Store):
    audit = SqlAudit(store)
    audit.add(at(0), "ann" * 100, "POST /x%y", 200, 404, {"half": "\ud83d"})
    audit.add(at(1), "ann", "POST /xzy", 200, None, {})
    assert [(e.at, e.who, e.detail) for e in audit.list(action="x%")] == [
        (at(0), "ann" * 85, {"half": "?"})
    ]
    assert [e.at for e in audit.list(refused=True)] == [at(0)]
    assert [e.at for e in audit.list(refused=False)] == [at(1)]
    assert [e.at for e in audit.list(since=at(1), until=at(2))] == [at(1)]


def test_ids_of_audits_are_exact(store: Store):
    audits = SqlJobAudits(store)
    assert [audits.add("n", one, f"job-{i}") for i, one in enumerate("aA名á")] == [
        f"job-{i}" for i in range(4)
    ]
    assert audits.add("n", "A", "job-9") == "job-1"


def test_one_of_several_concurrent_requests_with_one_signature_is_accepted(
    stores: tuple[Store, Store],
):
    used = [SqlUsedSignatures(store, lambda: AT) for store in stores]
    found = at_once(8, lambda i: used[i % 2].first("s", str(i), 120))
    assert len(set(found)) == 1


def test_a_signature_is_remembered_while_it_is_valid(store: Store):
    now = [AT]
    used = SqlUsedSignatures(store, lambda: now[0])
    assert used.first("s0", "a", 120) == "a"
    now[0] += timedelta(seconds=119)
    assert used.first("s0", "b", 120) == "a"
    now[0] += timedelta(seconds=2)
    assert used.first("s0", "b", 120) == "b"


def test_a_version_of_routes_whose_number_is_taken_is_not_added(store: Store):
    kept = SqlRouteVersions(store, "me")
    one = Version(1, at(0), "ann", "", "api", "{}")
    assert kept.add(one) and not kept.add(replace(one, author="li"))
    assert kept.add(replace(one, number=2)) and kept.list(before=2) == [one]


def test_what_is_remembered_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repositories, "MAX_CACHED_READS", 1)
    kept = SqlProviders(store, sole_writer=True)
    assert (kept.get("a"), kept.get("b"), len(kept._cache)) == (None, None, 1)
    cache = RecordCache[Any](capacity=1)
    for number in (1, 2):
        cache.put(f"job-{number}", CachedRecord(1, 0.0, number, 1, 1), 0)
    assert cache.get("job-1") is None and cache.get("job-2") is not None
    monkeypatch.setattr(store_module, "MAX_TASK_IDS", 1)
    for number in (1, 2):
        job = a_job(spec=a_spec("a", job_id=f"job-{number}"))
        tasks = {"a": replace(job.tasks["a"], task_id=f"task-{number}")}
        assert store.jobs.add(replace(job, tasks=tasks), "")
        assert store.job_of_task(f"task-{number}") == f"job-{number}"
    assert len(store._jobs_of_tasks) == 1


# ---------------------------------------------------------------- the database itself


def test_a_transaction_is_repeated_while_another_one_wins_and_not_for_ever():
    tried: list[int] = []

    def failing(*errors: Exception) -> Callable[[], str]:
        left = list(errors)

        def work() -> str:
            tried.append(1)
            if left:
                raise left.pop(0)
            return "done"

        return work

    raced = sa.exc.IntegrityError("insert", {}, Exception("taken"))
    assert repeat_on_conflict(failing(raced, raced)) == "done" and len(tried) == 3
    with pytest.raises(sa.exc.IntegrityError):
        repeat_on_conflict(failing(*[raced] * 20), retries=2)
    with pytest.raises(sa.exc.OperationalError):
        repeat_on_conflict(
            failing(sa.exc.OperationalError("select", {}, Exception(1064, "syntax")))
        )


def test_a_pool_without_a_free_connection_is_a_database_that_is_away():
    with (
        pytest.raises(DatabaseAway, match="every connection to the database is in use"),
        Database(sa.create_engine("sqlite://")).read(),
    ):
        raise sa.exc.TimeoutError("QueuePool limit")


@pytest.fixture
def on_a_server() -> Iterator[Store]:
    with careless_database("packet") as url, a_store(url) as store:
        yield store


@pytest.mark.mariadb
def test_what_is_too_large_for_the_server_is_refused_before_it_is_sent(on_a_server: Store):
    """The server would close the connection, as if it went away, and the same be tried again and again."""
    store, connections, tried = on_a_server, list[str](), list[str]()
    most = store.value(sa.text("select @@max_allowed_packet"))
    sa.event.listen(store._engine, "connect", lambda *_: connections.append("new"))

    def grown(job: Job) -> Job:
        tried.append(job.id)
        return replace(job, warnings=("余" * (most // 3),))

    job = a_job(spec=a_spec("a"))
    large = replace(
        job.spec, job_id="job-large", job_params={"common": {"blob": '"' * (most // 2)}}
    )
    assert store.jobs.add(job, "")
    with pytest.raises(TooLarge, match=f"max_allowed_packet of the database is {most}"):
        store.jobs.add(replace(job, spec=large), "")
    with pytest.raises(TooLarge):
        wait_for_database(lambda: store.jobs.update(job.id, grown))
    assert (tried, connections) == ([job.id], []) and store.jobs.find("job-large") is None
    assert store.jobs.update(
        job.id, lambda job: replace(job, warnings=("w" * (most // 2),))
    ).warnings


def test_a_log_that_cannot_be_written_takes_nothing_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timeline.log, "info", raising(OSError(28, "No space left on device")))
    job = replace(
        a_job(spec=a_spec("a", job_id="job-quiet")).with_note(at(1), "job PENDING"),
        nodes={},
        tasks={},
    )
    assert store.jobs.add(job, "") and [e.event for e in store.timeline("job-quiet")] == [
        "job PENDING"
    ]
    assert queries.drop_job(store, "job-nowhere", at(2), "ann", {}) is False


def test_a_database_with_a_clock_of_its_own_is_asked_for_the_time(store: Store):
    with store.read() as connection:
        sqlite = connection.dialect.name == "sqlite"
    if not sqlite:
        assert abs(queries.database_time(store) - datetime.now(UTC).timestamp()) < 60


# ---------------------------------------------------------------- models

FLOW = Dag(
    (
        DagNode(
            "trees", ComponentRef("vendor", "1.0.0", "Thing"), (), (DagOutput("model", "model0"),)
        ),
    )
)


def trained(
    store: Store,
    job_id: str = "job-1",
    outcome: Outcome = Outcome.SUCCEEDED,
) -> None:
    """Play the last write of a training here."""
    run = a_run(
        "trees",
        RunStatus.SUCCESS,
        to_seal=("model",),
        output_keys={"model0": "model"},
        seal=OK,
    )
    run = replace(
        run,
        run_id=f"run-{job_id}",
        name=f"bfia-{job_id}",
        task_id=f"task_{job_id}",
    )
    run = replace(run, outputs={"model": Address("ns", f"{job_id}-模型")})
    run = replace(run, files=(FileSum("data_0", 3, "aa", "model"),))
    spec = a_spec(FLOW, job_id=job_id, flow_id="流程 1")
    store.local_jobs.add(replace(a_local_job(run), spec=spec), "流程 1")
    stop = StopRequested(at(5), None, Ending(outcome, at(5)), "n1")
    store.local_jobs.update(job_id, lambda local: machine.apply(local, stop))


def test_the_write_that_ends_a_training_stores_its_model_once(store: Store):
    trained(store)
    trained(store, "job-2", Outcome.FAILED)
    models = SqlModels(store)
    (kept,) = models.all()
    assert (kept.model.model_id, kept.model.version, kept.model.party.label) == (
        "流程 1",
        "job-1",
        "guest.0",
    )
    assert kept.deployed_at is None and kept.granted == ()
    assert kept.model.parts[0].files == (FileSum("data_0", 3, "aa"),)
    assert models.addresses() == {Address("ns", "job-1-模型"): "version job-1 of model 流程 1"}
    assert models.delete("流程 1", "job-1")
    store.local_jobs.update("job-1", lambda local: replace(local, closed=True))
    assert models.all() == []


def test_a_version_that_is_there_stays_as_it_is(store: Store):
    trained(store)
    (kept,) = SqlModels(store).all()
    late = replace(store.local_jobs.get("job-1"), created_at=at(99))
    with store.write() as connection:
        publish(connection, None, late)
    assert SqlModels(store).all() == [kept]


def test_a_deployed_version_is_not_deleted(store: Store):
    models = SqlModels(store)
    trained(store)
    assert models.deploy("流程 1", "job-1", 7.5, ["n9", "n3"])
    (kept,) = models.find("流程 1", "job-1")
    assert (kept.deployed_at, kept.granted) == (7.5, ("n3", "n9"))
    assert not models.delete("流程 1", "job-1")
    assert models.deploy("流程 1", "job-1", None, None)
    assert models.find("流程 1", "job-1")[0].granted == ("n3", "n9")
    assert models.delete("流程 1", "job-1") and models.find("流程 1", "job-1") == []
    assert not models.deploy("流程 1", "job-1", 1.0, None)


def test_models_are_added_all_or_none(store: Store):
    models = SqlModels(store)
    trained(store)
    (kept,) = models.all()
    second = replace(kept, model=replace(kept.model, version="v2"))
    with pytest.raises(Conflict, match="was imported at the same time"):
        models.add([second, kept])
    assert models.find("流程 1", "v2") == []
    models.add([second])
    assert [k.model.version for k in models.all("流程 1")] == ["job-1", "v2"]
