"""Attacks: a partner names data, jobs and tasks of others, to use them or to learn of them."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import pytest

from adapter.bfia.paths import SCHEDULE
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.run import Address, Audit
from gateway.domain.spec import Amendment
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError
from gateway.store.repositories import SqlDatasets
from provider_registry.registration import provider_from_request
from tests.builders import OK, a_local_job, a_run, a_spec
from tests.contracts.apis import THIRD, bfia, job_audits, registration, two_nodes
from tests.inprocess import ME, PEER, ask, uploaded

ROLES = {
    "guest": (PEER,),
    "host": (ME,),
}
WITH_THIRD = a_spec("a", {"guest": (PEER,), "host": (ME, THIRD)}).parties
TABLE = "id,x\na,1\n"
job_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with two_nodes(tmp_path_factory.mktemp("nodes"), me={"data": {"grants": "open"}}) as world:
        yield world


@pytest.fixture
def earlier_job(world):
    """Give a finished job that `PEER` scheduled with `ME`; its output is still at `ME`."""
    spec = a_spec(
        "a",
        ROLES,
        job_id=f"job-earlier-{next(job_numbers)}",
        scheduler=PEER,
    )
    name = f"run-{spec.job_id}"
    run = a_run(
        "a",
        party=spec.parties[1],
        run_id=name,
        name=name,
        task_id=name,
        launch=OK,
    )
    job = a_local_job(
        run,
        status=JobStatus.FINISHED,
        closed=True,
    )
    assert world.me.store.local_jobs.add(
        replace(job, spec=spec, node=ME),
        spec.flow_id,
    )
    write_table(world, output_of(spec))
    return spec


def write_table(world, address):
    """Write a table at an address of `ME`; return its folder."""
    folder = world.me.storage.path(address)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text(TABLE)
    return folder


def output_of(spec):
    """Return the address of a job's output."""
    return Address(f"{spec.job_id}-host-0", "task-1-data0")


def dataset_of_host(dataset_id):
    """Return task parameters by which the host reads a dataset."""
    return {"host": {"0": {"a": {"dataset_id": dataset_id}}}}


def a_reading_job(spec, **changes):
    """Return a further job that reads an output of the earlier one."""
    address = output_of(spec)
    return replace(
        spec,
        job_id=f"job-reading-{next(job_numbers)}",
        task_params=dataset_of_host(f"{address.namespace}#{address.name}"),
        **changes,
    )


def refusal_of(world, spec):
    """Create a job at `ME`; return the reason of the refusal, or ""."""
    try:
        world.me.participant.create_job(spec, spec.scheduler)
    except GatewayError as error:
        return error.reason
    return ""


# ---------------------------------------------------------------- outputs of earlier jobs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"old_job_id": "earlier"},  # a grant of the earlier job's data may have ended since
        {"old_job_id": "earlier", "scheduler": THIRD},
        {"old_job_id": "earlier", "parties": WITH_THIRD},
        {"old_job_id": "job-of-nobody"},
    ],
    ids=["a new job", "a rerun", "by another scheduler", "with another party", "of no job"],
)
def test_an_output_is_opened_by_its_id_to_no_job_without_a_grant(world, earlier_job, changes):
    if changes.get("old_job_id") == "earlier":
        changes = changes | {"old_job_id": earlier_job.job_id}
    assert refusal_of(world, a_reading_job(earlier_job, **changes)) == "NOT_AUTHORISED"

    world.me.sharing.grant(
        output_of(earlier_job),
        PEER,
        "ann",
    )
    world.me.sharing.grant(
        output_of(earlier_job),
        THIRD,
        "ann",
    )
    assert refusal_of(world, a_reading_job(earlier_job, **changes)) == ""


def test_metadata_of_an_output_does_not_make_it_an_upload(world, earlier_job):
    address = output_of(earlier_job)
    metadata = '{"origin": {"source": "file:t.csv"}}'
    (world.me.storage.path(address) / "metadata").write_text(metadata)
    world.me.datasets.switch(
        address,
        disabled=True,
    )
    world.me.datasets.switch(
        address,
        disabled=False,
    )

    assert refusal_of(world, a_reading_job(earlier_job)) == "NOT_AUTHORISED"


def test_an_output_is_free_for_a_job_without_other_nodes(world, earlier_job):
    parties = a_spec("a", {"guest": (ME,), "host": (ME,)}).parties
    job = a_reading_job(earlier_job, parties=parties)
    assert refusal_of(world, replace(job, scheduler=ME, initiator=ME)) == ""


# ---------------------------------------------------------------- an output at the place of a table


@pytest.mark.parametrize(
    ("job_params", "table", "task_id"),
    [
        ({}, "loans-out", "loans"),
        ({"common": {"checkpoints": True}}, "a-checkpoint", "task-1"),
    ],
    ids=["output", "checkpoint"],
)
def test_a_task_that_would_write_over_a_table_does_not_start(
    world, tmp_path, job_params, table, task_id
):
    """Attack: its container could read and write the table; deleting the job would delete it."""
    job = a_spec(
        "a",
        ROLES,
        job_id=f"bank-{table}",
        scheduler=PEER,
        job_params=job_params,
    )
    folder = write_table(world, Address(f"{job.job_id}-host-0", table))

    with bfia(world.me, tmp_path) as apis:
        partner = apis.participant(PEER)
        partner.create_job(job, PEER)
        partner.start_job(job.job_id, PEER)
        with pytest.raises(GatewayError, match="TASK_ID_CONFLICT"):
            partner.start_task(job.job_id, task_id, "a", PEER)

    assert world.local(job.job_id).runs == ()
    assert (folder / "data_0").read_text() == TABLE


# ---------------------------------------------------------------- other data by new parameters

REVOKED = Address("space", "revoked")


def start_job_on_granted_data(world):
    """Upload and grant two tables, start a job of `PEER` that reads the first; return the job."""
    for name in ("granted", "revoked"):
        uploaded(world.me, "space", name)
        world.me.sharing.grant(
            Address("space", name),
            PEER,
            "ann",
        )
    params = dataset_of_host("space#granted")
    spec = a_spec(
        "a",
        ROLES,
        job_id="job-amended",
        task_params=params,
    )
    world.me.participant.create_job(spec, PEER)
    world.me.participant.start_job(spec.job_id, PEER)
    return spec


def an_amendment(amendment_id):
    """Build new parameters, by which the host reads the other table."""
    params = dataset_of_host("space#revoked")
    return Amendment(
        amendment_id,
        params,
        PEER,
        "",
        datetime.now(UTC),
    )


def test_new_parameters_open_no_data_after_the_grant_has_ended(tmp_path):
    with two_nodes(tmp_path / "nodes", me={"data": {"grants": "listed"}}) as world:
        spec = start_job_on_granted_data(world)
        participant = world.me.participant
        participant.offer_parameters(
            spec.job_id,
            an_amendment("one"),
            [],
            PEER,
        )
        assert world.me.sharing.jobs_using(REVOKED) == [spec.job_id]

        world.me.sharing.revoke(REVOKED, PEER, "ann")
        with pytest.raises(GatewayError) as refusal:
            participant.start_task(
                spec.job_id,
                "task-amended",
                "a",
                PEER,
                ["one"],
            )
        assert refusal.value.reason == "NOT_AUTHORISED"
        assert world.local(spec.job_id).runs == ()

        world.me.sharing.grant(REVOKED, PEER, "ann")
        participant.start_task(
            spec.job_id,
            "task-amended",
            "a",
            PEER,
            ["one"],
        )


def test_few_offered_parameters_are_remembered(tmp_path):
    """Attack: the scheduling node offers parameters again and again, and never records them."""
    with two_nodes(tmp_path / "nodes", me={"data": {"grants": "listed"}}) as world:
        spec = start_job_on_granted_data(world)
        for number in range(12):
            amendment = an_amendment(f"never-{number}")
            world.me.participant.offer_parameters(
                spec.job_id,
                amendment,
                [],
                PEER,
            )
        assert len(world.local(spec.job_id).offered) < 12

        world.me.participant.offer_parameters(
            spec.job_id,
            an_amendment("one"),
            [],
            PEER,
        )
        assert world.me.sharing.jobs_using(REVOKED) == [spec.job_id]


# ---------------------------------------------------------------- a job with the id of a task


def test_no_job_has_the_id_of_another_jobs_task(world, tmp_path):
    """Attack: it would share the task's session."""
    first = a_spec(
        "a; b",
        ROLES,
        job_id="job-first",
        scheduler=PEER,
    )
    with_id_of_task = replace(first, job_id="task-first")
    with bfia(world.me, tmp_path) as apis:
        partner = apis.participant(PEER)
        for job_id in ("job-first", "job-second"):
            partner.create_job(replace(first, job_id=job_id), PEER)
            partner.start_job(job_id, PEER)
        partner.start_task("job-first", "task-first", "a", PEER)

        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.create_job(with_id_of_task, PEER)
        with pytest.raises(Conflict, match="is the id of another job or task here"):
            job_audits(world.me).apply(with_id_of_task, Audit("audit-1"), PEER)
        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.start_task("job-first", "job-second", "b", PEER)


# ---------------------------------------------------------------- guessed names of datasets

# Versions of the component that can use no table of the node: for its storage, for its format.
UNFITTING = {
    "2.0.0": {"storageEngine": ["s3"]},
    "3.0.0": {
        "inputData": [
            {
                "name": "in",
                "category": "dataset",
                "dataFormat": ["parquet"],
            }
        ]
    },
}
UNKNOWN = "space#none"
UNGRANTED = "space#ungranted"
GRANTED_TO_OTHERS = "space#others"
NO_LONGER_GRANTED = "space#ended"
DISABLED = "space#off"


def register_unfitting_versions(node):
    """Register the versions of the component that can use no table."""
    for version, description in UNFITTING.items():
        request = registration() | {"version": version}
        thing = request["components_description"]["Thing"]
        thing = thing | {"version": version} | description
        request["components_description"] = {"Thing": thing}
        node.registry.register(provider_from_request(request))


@pytest.fixture(
    scope="module",
    params=["listed", "open"],
)
def guessing_world(request, tmp_path_factory):
    """Two nodes; `ME` has datasets, and none is granted to `PEER`."""
    home = tmp_path_factory.mktemp("nodes")
    storage = {
        "url": f"file://{home / 'storage'}",
        "stand_in": "none",
    }
    settings = {
        "data": {"grants": request.param},
        "storage": storage,
    }
    with two_nodes(home, me=settings) as world:
        register_unfitting_versions(world.me)
        sharing = world.me.sharing
        for dataset in (GRANTED_TO_OTHERS, NO_LONGER_GRANTED, DISABLED):
            address = Address(*dataset.split("#"))
            uploaded(world.me, address.namespace, address.name)
            sharing.grant(address, THIRD, "ann")
        if request.param == "listed":  # "open" grants to all a dataset without a list
            uploaded(world.me, *UNGRANTED.split("#"))
        ended = Address(*NO_LONGER_GRANTED.split("#"))
        sharing.grant(ended, PEER, "ann")
        sharing.revoke(ended, PEER, "ann")
        world.me.datasets.switch(Address(*DISABLED.split("#")), disabled=True)
        datasets = SqlDatasets(world.me.store)
        record = datasets.get(ended.namespace, ended.name)
        datasets.put(replace(record, format="parquet"))
        yield world


def response_to_guess(world, command, dataset, version):
    """Send `ME` a job of `PEER` about a dataset; return the response with the name masked."""
    component = ComponentRef("vendor", version, "Thing")
    task = DagNode(
        "a",
        component,
        (),
        (DagOutput("dataset", "out"),),
    )
    body = create_body(
        a_spec(Dag((task,)), ROLES),
        PROFILES["spec"],
    )
    body["job_id"] = f"job-oracle-{next(job_numbers)}"
    body["config"]["task_params"] = dataset_of_host(dataset)
    path = f"{SCHEDULE}/job/{command}"
    response = ask(
        world.me,
        "peer",
        "POST",
        path,
        json=body,
        headers={"x-source-node-id": PEER},
    )
    return json.loads(response.text.replace(dataset, "(name)"))


@pytest.mark.parametrize("command", ["plan", "create"])
@pytest.mark.parametrize(
    "dataset",
    [UNGRANTED, GRANTED_TO_OTHERS, NO_LONGER_GRANTED, DISABLED],
)
@pytest.mark.parametrize("version", ["1.0.0", *UNFITTING])
def test_a_dataset_without_a_grant_looks_like_an_unknown_one(
    guessing_world, command, dataset, version
):
    unknown = response_to_guess(guessing_world, command, UNKNOWN, version)
    assert "NOT_AUTHORISED" in str(unknown)
    assert response_to_guess(guessing_world, command, dataset, version) == unknown
