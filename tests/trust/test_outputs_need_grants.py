"""A partner's job reads what another job left here, by its id, at a node whose ``data.grants`` is open."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError
from tests.builders import OK, a_local_job, a_run, a_spec
from tests.contracts.apis import THIRD, World, two_nodes
from tests.inprocess import ME, PEER

ROLES = {"guest": (PEER,), "host": (ME,)}
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
    run = a_run("a", party=spec.parties[1], run_id=name, name=name, task_id=name, launch=OK)
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
    return replace(spec, job_id=f"job-reading-{next(_numbers)}", task_params=params, **changes)


def reason(world: World, spec: JobSpec) -> str:
    try:
        world.me.participant.create_job(spec, spec.scheduler)
    except GatewayError as error:
        return error.reason
    return ""


def test_another_job_of_a_partner_does_not_get_an_output_by_its_id(world: World, earlier: JobSpec):
    assert reason(world, reading(earlier)) == "NOT_AUTHORISED"


def test_a_grant_lets_it(world: World, earlier: JobSpec):
    world.me.sharing.grant(output(earlier), PEER, "ann")
    assert reason(world, reading(earlier)) == ""


def test_the_same_parties_go_on_with_what_their_own_job_left(world: World, earlier: JobSpec):
    assert reason(world, reading(earlier, old_job_id=earlier.job_id)) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler": THIRD},
        {"parties": a_spec("a", {"guest": (PEER,), "host": (ME, THIRD)}).parties},
        {"old_job_id": "job-of-nobody"},
    ],
)
def test_old_job_id_opens_it_to_nobody_else(world: World, earlier: JobSpec, changes: dict[str, Any]):
    assert reason(world, reading(earlier, **{"old_job_id": earlier.job_id, **changes})) == "NOT_AUTHORISED"


def test_what_an_output_says_of_itself_does_not_make_it_an_upload(world: World, earlier: JobSpec):
    place = world.me.storage.root / output(earlier).namespace / output(earlier).name
    (place / "metadata").write_text('{"origin": {"source": "file:t.csv"}}')
    for disabled in (True, False):
        world.me.sharing.switch(output(earlier), disabled=disabled)
    assert reason(world, reading(earlier)) == "NOT_AUTHORISED"


def test_an_output_is_free_for_a_job_without_other_nodes(world: World, earlier: JobSpec):
    own = a_spec("a", {"guest": (ME,), "host": (ME,)})
    assert reason(world, replace(reading(earlier), parties=own.parties, scheduler=ME, initiator=ME)) == ""


def test_a_job_gets_checkpoints_only_of_its_own_family(world: World, earlier: JobSpec):
    follows = world.me.planner.follows
    assert follows(replace(earlier, job_id="job-new", old_job_id=earlier.job_id))
    assert not follows(replace(earlier, job_id="job-new", old_job_id=earlier.job_id, scheduler=THIRD))
