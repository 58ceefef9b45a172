"""A partner names its job and task so that an output's place is that of a table that was uploaded here.

The container would get the table to read and to write, and deleting the job would delete it.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError
from tests.builders import a_spec
from tests.contracts.apis import bfia, two_nodes
from tests.inprocess import ME, PEER

JOB = a_spec("a", {"guest": (PEER,), "host": (ME,)}, job_id="bank", scheduler=PEER)


@pytest.mark.parametrize(
    ("job", "table", "task_id"),
    [
        (JOB, "loans-out", "loans"),
        (replace(JOB, job_params={"common": {"checkpoints": True}}), "a-checkpoint", "task-1"),
    ],
    ids=["output", "checkpoint"],
)
def test_a_task_whose_outputs_would_lie_where_data_is_does_not_start(
    tmp_path: Path, job: JobSpec, table: str, task_id: str
):
    with two_nodes(tmp_path / "nodes") as world, bfia(world.me, tmp_path) as apis:
        place = world.me.storage.path(Address("bank-host-0", table))
        place.mkdir(parents=True)
        (place / "data_0").write_text("id,x\na,1\n")
        partner = apis.participant(PEER)
        partner.create_job(job, PEER)
        partner.start_job("bank", PEER)
        with pytest.raises(GatewayError, match="TASK_ID_CONFLICT"):
            partner.start_task("bank", task_id, "a", PEER)
        assert world.local("bank").runs == ()
        assert (place / "data_0").read_text() == "id,x\na,1\n"
