"""A partner gives its job the id of another's task, whose session it would then share, or the other way round."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from tests.builders import a_spec
from tests.contracts.apis import bfia, two_nodes
from tests.inprocess import ME, PEER

ROLES = {"guest": (PEER,), "host": (ME,)}


def test_no_job_has_the_id_of_another_jobs_task(tmp_path: Path):
    first = a_spec("a; b", ROLES, job_id="job-first", scheduler=PEER)
    with two_nodes(tmp_path / "nodes") as world, bfia(world.me, tmp_path) as apis:
        partner = apis.participant(PEER)
        for job_id in ("job-first", "job-second"):
            partner.create_job(replace(first, job_id=job_id), PEER)
            partner.start_job(job_id, PEER)
        partner.start_task("job-first", "task-first", "a", PEER)
        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.create_job(replace(first, job_id="task-first"), PEER)
        with pytest.raises(GatewayError, match="JOB_ID_CONFLICT"):
            partner.start_task("job-first", "job-second", "b", PEER)
