"""Changes of a provider during a job: the job goes on with the version from its beginning."""

import pytest

from gateway.errors import Invalid
from gateway.providers.registration import Requester
from provider_registry.registration import provider_from_request
from tests.adapter.bfia.site import SPEC, a_job_with, serving_site
from tests.contracts.apis import IMAGE, registration

KEY = "vendor:1.0.0@docker"


@pytest.fixture
def node(tmp_path):
    with serving_site(tmp_path) as site:
        yield site.node


def test_a_job_keeps_its_version_and_a_retired_one_takes_no_new_jobs(node):
    early, late, refused = [a_job_with(SPEC, scheduler=SPEC) for _ in range(3)]
    moved = registration() | {"metadata": {"image": "moved:2"}}
    node.participant.create_job(early, SPEC)
    node.registry.register(provider_from_request(moved))
    node.participant.create_job(late, SPEC)

    response = node.post(
        "/v2/provider/delete",
        json={"name": "vendor"},
    )

    assert response.json()["data"] == {
        "deleted": 0,
        "retired": [KEY],
    }
    assert early.job_id in node.registry.history(KEY)[0].reason
    with pytest.raises(Invalid, match="PROVIDER_RETIRED"):
        node.participant.create_job(refused, SPEC)
    assert images_of_started(node, early) == {IMAGE}
    assert images_of_started(node, late) == {"moved:2"}

    node.providers.unretire(KEY, Requester())
    node.participant.create_job(refused, SPEC)


def images_of_started(node, spec):
    """Start a job and its task; return the images of its runs."""
    node.participant.start_job(spec.job_id, SPEC)
    node.participant.start_task(
        spec.job_id,
        f"task_{spec.job_id}",
        "a",
        SPEC,
    )
    return {run.software.image for run in node.store.local_jobs.get(spec.job_id).runs}
