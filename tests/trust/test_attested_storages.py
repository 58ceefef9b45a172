"""Attested runs with data at S3: the gateway reads their inputs there and encrypts them."""

import copy
import os
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.errors import StorageFailed
from tests import storages as real
from tests.contracts.storage_sites import remote_of
from tests.core.example_jobs import IMAGE
from tests.e2e.test_storages import names, settings_of
from tests.inprocess import uploaded
from tests.memory_engine import Script
from tests.trust.attested import TABLE, TEE, started_run, submit_example
from tests.trust.software_tee import policy
from tests.world import NodeSetup

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def bucket():
    with real.bucket() as place:
        yield place


@pytest.fixture
def make_node(shared_world, bucket, tmp_path):
    """Make a node whose data is in the bucket; ``fields`` are settings of that storage."""

    def make_node(**fields):
        key = TEE.write_key(tmp_path / "tee.pem")
        provider = copy.deepcopy(A_PROVIDER)
        for description in provider["components_description"].values():
            description["storageEngine"] = ["s3"]
        setup = NodeSetup(
            scripts={IMAGE: Script(code=None)},
            providers=[provider],
            settings={
                "storages": settings_of(bucket, **fields),
                "tee": {
                    "providers": {"example": policy()},
                    "software_keys": [str(key)],
                },
            },
        )
        node = shared_world.node(setup)
        uploaded(node, "ns", "table", TABLE)
        return node

    return make_node


def test_an_input_at_s3_is_given_by_the_gateway_alone(make_node, bucket):
    node = make_node(role=os.environ["BFIA_TEST_S3_ROLE"])
    run = started_run(node, submit_example(node))
    url = urlsplit(run.launch.environment["system.storage"])
    fields = {name: values[0] for name, values in parse_qs(url.query).items()}
    session = replace(
        remote_of(bucket),
        username=fields["username"],
        password=fields["password"],
        token=fields["token"],
    )
    [file] = [name for name in names(bucket) if name.endswith("/data_0")]
    with (
        pytest.raises(StorageFailed, match="is denied to the run"),
        session.client("s3", "is denied to the run") as s3,
    ):
        s3.get_object(Bucket=bucket.name, Key=file)

    assert run.submit(run.report())["code"] == 0

    assert b"a,1" in run.input()
    run.end()


def test_a_shared_key_of_a_storage_is_not_given_to_a_run(make_node):
    node = make_node()
    launched = list(node.engine.launches)

    with pytest.raises(AssertionError, match="TEE_STORAGE") as refused:
        submit_example(node)

    assert "dag.components.echo_1: " in str(refused.value)
    assert "in S3 with a role" in str(refused.value)
    assert node.engine.launches == launched
