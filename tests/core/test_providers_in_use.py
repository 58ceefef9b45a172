"""A provider changes while a job is under way: the job goes on with what there was when it began."""

from pathlib import Path

import pytest

from gateway.errors import Invalid
from gateway.providers.registration import Requester
from provider_registry.registration import provider_from_request
from tests.adapter.bfia.site import SPEC, a_job_with, serving_site
from tests.contracts.apis import IMAGE, registration
from tests.inprocess import ask

KEY = "vendor:1.0.0@docker"


def test_a_job_keeps_its_version_and_a_retired_one_takes_no_new_jobs(tmp_path: Path):
    with serving_site(tmp_path) as site:
        node = site.node
        early, late, after = (a_job_with(SPEC, scheduler=SPEC) for _ in range(3))
        node.participant.create_job(early, SPEC)
        node.registry.register(
            provider_from_request(registration() | {"metadata": {"image": "moved:2"}})
        )
        node.participant.create_job(late, SPEC)
        asked = ask(node, "operator", "POST", "/v2/provider/delete", json={"name": "vendor"}).json()
        assert asked["data"] == {"deleted": 0, "retired": [KEY]}
        assert early.job_id in node.registry.history(KEY)[0].reason
        with pytest.raises(Invalid, match="PROVIDER_RETIRED"):
            node.participant.create_job(after, SPEC)
        for spec, image in ((early, IMAGE), (late, "moved:2")):
            node.participant.start_job(spec.job_id, SPEC)
            node.participant.start_task(spec.job_id, f"task_{spec.job_id}", "a", SPEC)
            assert {run.image for run in node.store.local_jobs.get(spec.job_id).runs} == {image}
        node.providers.unretire(KEY, Requester())
        node.participant.create_job(after, SPEC)
