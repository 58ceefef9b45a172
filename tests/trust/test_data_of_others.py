"""A partner names data, jobs and tasks so that its job gets at, or learns of, what is another's."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.peer import INTERCONN
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.run import Address, Audit
from gateway.domain.spec import Amendment, JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError
from gateway.store.repositories import SqlDatasets
from provider_registry.registration import provider_from_request
from tests.builders import OK, a_local_job, a_run, a_spec
from tests.contracts.apis import THIRD, World, bfia, job_audits, registration, two_nodes
from tests.inprocess import ME, PEER, ask, uploaded

ROLES = {"guest": (PEER,), "host": (ME,)}
WITH_THIRD = a_spec("a", {"guest": (PEER,), "host": (ME, THIRD)}).parties
_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_nodes(tmp_path_factory.mktemp("nodes"), me={"data": {"grants": "open"}}) as world:
        yield world


@pytest.fixture
def earlier(world: World) -> JobSpec:
    """A job that `PEER` scheduled with `ME`, over, which left an output at `ME`."""
    spec = a_spec("a", ROLES, job_id=f"job-earlier-{next(_numbers)}", scheduler=PEER)
    name = f"run-{spec.job_id}"
    run = a_run(
        "a",
        party=spec.parties[1],
        run_id=name,
        name=name,
        task_id=name,
        launch=OK,
    )
    local = replace(a_local_job(run, status=JobStatus.FINISHED, closed=True), spec=spec, node=ME)
    assert world.me.store.local_jobs.add(local, spec.flow_id)
    place = world.me.storage.root / output(spec).namespace / output(spec).name
    place.mkdir(parents=True)
    (place / "data_0").write_text("id,x\na,1\n")
    return spec


def output(spec: JobSpec) -> Address:
    return Address(f"{spec.job_id}-host-0", "task-1-data0")


def reading(spec: JobSpec, **changes: Any) -> JobSpec:
    """Return a further job that names an output of the earlier one as its data."""
    where = {"dataset_id": f"{output(spec).namespace}#{output(spec).name}"}
    params = {"host": {"0": {"a": where}}}
    return replace(
        spec,
        job_id=f"job-reading-{next(_numbers)}",
        task_params=params,
        **changes,
    )


def reason(world: World, spec: JobSpec) -> str:
    try:
        world.me.participant.create_job(spec, spec.scheduler)
    except GatewayError as error:
        return error.reason
    return ""


# ---------------------------------------------------------------- what another job left


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"old_job_id": "earlier"},  # a grant of the earlier job's data may have ended since
        {"old_job_id": "earlier", "scheduler": THIRD},
        {"old_job_id": "earlier", "parties": WITH_THIRD},
        {"old_job_id": "job-of-nobody"},
    ],
)
def test_an_output_is_opened_by_its_id_to_no_job_without_a_grant(
    world: World,
    earlier: JobSpec,
    changes: dict[str, Any],
):
    if changes.get("old_job_id") == "earlier":
        changes = changes | {"old_job_id": earlier.job_id}
    assert reason(world, reading(earlier, **changes)) == "NOT_AUTHORISED"
    world.me.sharing.grant(output(earlier), PEER, "ann")
    world.me.sharing.grant(output(earlier), THIRD, "ann")
    assert reason(world, reading(earlier, **changes)) == ""


def test_metadata_of_an_output_does_not_make_it_an_upload(world: World, earlier: JobSpec):
    place = world.me.storage.root / output(earlier).namespace / output(earlier).name
    (place / "metadata").write_text('{"origin": {"source": "file:t.csv"}}')
    for disabled in (True, False):
        world.me.datasets.switch(output(earlier), disabled=disabled)
    assert reason(world, reading(earlier)) == "NOT_AUTHORISED"


def test_an_output_is_free_for_a_job_without_other_nodes(world: World, earlier: JobSpec):
    own = a_spec("a", {"guest": (ME,), "host": (ME,)})
    assert (
        reason(
            world,
            replace(
                reading(earlier),
                parties=own.parties,
                scheduler=ME,
                initiator=ME,
            ),
        )
        == ""
    )


# ---------------------------------------------------------------- an output where a table was uploaded


@pytest.mark.parametrize(
    ("job_params", "table", "task_id"),
    [({}, "loans-out", "loans"), ({"common": {"checkpoints": True}}, "a-checkpoint", "task-1")],
    ids=["output", "checkpoint"],
)
def test_a_task_whose_outputs_would_lie_where_data_is_does_not_start(
    world: World,
    tmp_path: Path,
    job_params: dict[str, Any],
    table: str,
    task_id: str,
):
    """The container would get the table to read and to write, and deleting the job would delete it."""
    job = a_spec(
        "a",
        ROLES,
        job_id=f"bank-{table}",
        scheduler=PEER,
        job_params=job_params,
    )
    place = world.me.storage.path(Address(f"{job.job_id}-host-0", table))
    place.mkdir(parents=True)
    (place / "data_0").write_text("id,x\na,1\n")
    with bfia(world.me, tmp_path) as apis:
        partner = apis.participant(PEER)
        partner.create_job(job, PEER)
        partner.start_job(job.job_id, PEER)
        with pytest.raises(GatewayError, match="TASK_ID_CONFLICT"):
            partner.start_task(job.job_id, task_id, "a", PEER)
    assert world.local(job.job_id).runs == ()
    assert (place / "data_0").read_text() == "id,x\na,1\n"


# ---------------------------------------------------------------- other data by new parameters


def test_new_parameters_open_no_data_that_was_taken_back(tmp_path: Path):
    spec, taken = a_spec("a", ROLES, job_id="job-amended"), Address("space", "taken")
    of_host = lambda name: {"host": {"0": {"a": {"dataset_id": f"space#{name}"}}}}  # noqa: E731
    with two_nodes(tmp_path / "nodes", me={"data": {"grants": "listed"}}) as world:
        for name in ("kept", "taken"):
            uploaded(world.me, "space", name)
            world.me.sharing.grant(Address("space", name), PEER, "ann")
        participant = world.me.participant
        participant.create_job(replace(spec, task_params=of_host("kept")), PEER)
        participant.start_job(spec.job_id, PEER)
        offered = Amendment("one", of_host("taken"), PEER, "", datetime.now(UTC))
        for number in range(12):  # which the scheduling node never records
            participant.offer_parameters(
                spec.job_id, replace(offered, id=f"never-{number}"), [], PEER
            )
        assert len(world.local(spec.job_id).offered) < 12
        participant.offer_parameters(spec.job_id, offered, [], PEER)
        assert world.me.sharing.users(taken) == [spec.job_id]
        start = (spec.job_id, "task-amended", "a", PEER, ["one"])
        world.me.sharing.revoke(taken, PEER, "ann")
        with pytest.raises(GatewayError) as refused:
            participant.start_task(*start)
        assert refused.value.reason == "NOT_AUTHORISED" and world.local(spec.job_id).runs == ()
        world.me.sharing.grant(taken, PEER, "ann")
        participant.start_task(*start)


# ---------------------------------------------------------------- a job with the id of a task


def test_no_job_has_the_id_of_another_jobs_task(world: World, tmp_path: Path):
    """It would share the task's session."""
    first = a_spec("a; b", ROLES, job_id="job-first", scheduler=PEER)
    with bfia(world.me, tmp_path) as apis:
        partner = apis.participant(PEER)
        for job_id in ("job-first", "job-second"):
            partner.create_job(replace(first, job_id=job_id), PEER)
            partner.start_job(job_id, PEER)
        partner.start_task("job-first", "task-first", "a", PEER)
        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.create_job(replace(first, job_id="task-first"), PEER)
        with pytest.raises(Conflict, match="is the id of another job or task here"):
            job_audits(world.me).apply(replace(first, job_id="task-first"), Audit("audit-1"), PEER)
        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.start_task("job-first", "job-second", "b", PEER)


# ---------------------------------------------------------------- guessed names of datasets

UNFITTING: dict[str, dict[str, Any]] = {
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
"""versions of the component that work with no table of the node: for its storage, or for its format"""
UNKNOWN, THERE, OTHERS, EXPIRED, DISABLED = (
    f"space#{n}" for n in ("none", "there", "others", "ended", "off")
)


@pytest.fixture(scope="module", params=["listed", "open"])
def oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """`ME` has datasets: one that nobody was granted, one of `THIRD`, one that `PEER` had, one out of use."""
    home = tmp_path_factory.mktemp("nodes")
    storage = {"url": f"file://{home / 'storage'}", "stand_in": "none"}
    with two_nodes(home, me={"data": {"grants": request.param}, "storage": storage}) as world:
        for version, description in UNFITTING.items():
            provider = registration() | {"version": version}
            thing = provider["components_description"]["Thing"]
            provider["components_description"] = {
                "Thing": thing | {"version": version} | description
            }
            world.me.registry.register(provider_from_request(provider))
        for name in ("others", "ended", "off", *(["there"] if request.param == "listed" else [])):
            uploaded(world.me, "space", name)
            if name != "there":
                world.me.sharing.grant(Address("space", name), THIRD, "ann")
        world.me.sharing.grant(Address("space", "ended"), PEER, "ann")
        world.me.sharing.revoke(Address("space", "ended"), PEER, "ann")
        world.me.datasets.switch(Address("space", "off"), disabled=True)
        known = SqlDatasets(world.me.store)
        known.put(replace(known.get("space", "ended"), format="parquet"))
        yield world


def asked(
    world: World,
    command: str,
    dataset: str,
    version: str = "1.0.0",
) -> dict[str, Any]:
    """Return what `ME` answers to a job of `PEER` that names a dataset; without the name itself."""
    task = DagNode(
        "a", ComponentRef("vendor", version, "Thing"), (), (DagOutput("dataset", "out"),)
    )
    spec: JobSpec = a_spec(Dag((task,)), ROLES)
    params = {"host": {"0": {"a": {"dataset_id": dataset}}}}
    body = create_body(spec, PROFILES["spec"]) | {"job_id": f"job-oracle-{next(_numbers)}"}
    body["config"]["task_params"] = params
    answer = ask(
        world.me,
        "peer",
        "POST",
        f"{INTERCONN}/job/{command}",
        json=body,
        headers={"x-source-node-id": PEER},
    )
    return dict(json.loads(answer.text.replace(dataset, "(asked)")))


@pytest.mark.parametrize("command", ["plan", "create"])
@pytest.mark.parametrize("dataset", [THERE, OTHERS, EXPIRED, DISABLED])
@pytest.mark.parametrize("version", ["1.0.0", *UNFITTING])
def test_one_that_is_not_granted_is_answered_as_one_that_is_not_there(
    oracle: World,
    command: str,
    dataset: str,
    version: str,
):
    told = asked(oracle, command, UNKNOWN, version)
    assert "NOT_AUTHORISED" in str(told)
    assert asked(oracle, command, dataset, version) == told
