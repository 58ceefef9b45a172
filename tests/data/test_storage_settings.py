"""The settings of storages elsewhere: refused mistakes, and the judgement of doctor."""

import contextlib
import json
import os

import pytest
import yaml

from engines.docker import ContainerdEngine, DockerOptions
from gateway.bootstrap.parts import storages
from gateway.config.loader import load
from gateway.diagnostics.machine import storages_of
from gateway.errors import Invalid
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result
from tests.contracts.storage_sites import remote_of
from tests.storages import HDFS_USER, bucket, client, folder, hdfs

S3 = {
    "url": "s3://10.0.0.5:9000/joint",
    "username": "key",
    "password_file": "lake.key",
}
HDFS = {
    "url": "hdfs://h/joint",
    "datanodes": ["10.0.8.0/24:9866"],
}


@pytest.fixture
def write_settings(tmp_path):
    """A function that writes a node's settings with storages of their names; returns the file."""
    (tmp_path / "lake.key").write_text("the-secret\n")

    def write(engine="process", **storages):
        file = tmp_path / "node.yml"
        settings = {
            "node": {"id": "JG0100001100000010", "institution": "a"},
            "engine": {"kind": engine},
            "storages": storages,
        }
        file.write_text(yaml.safe_dump(settings))
        return file

    return write


def test_a_storage_is_read_from_the_settings(write_settings):
    remote = storages(load(write_settings(lake=S3))).remotes["lake"].remote

    assert remote.host == "10.0.0.5"
    assert remote.port == 9000
    assert remote.folder == "joint"
    assert remote.password == "the-secret"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/x",
        "s3://h:9000",
        "s3://key:secret@h/joint",
        "s3://h/joint/below",
        "s3://h:0/joint",
    ],
    ids=["protocol", "no bucket", "key in the address", "folder", "port 0"],
)
def test_a_wrong_address_is_named_without_its_key(write_settings, url):
    file = write_settings(lake=S3 | {"url": url})

    with pytest.raises(Invalid) as refusal:
        load(file)
    assert "storages.lake.url" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_storage_needs_a_password(write_settings):
    without_password = {name: value for name, value in S3.items() if name != "password_file"}

    with pytest.raises(Invalid, match="password_file"):
        load(write_settings(lake=without_password))


def test_a_missing_file_of_the_password_is_named(write_settings, tmp_path):
    file = write_settings(lake=S3)
    (tmp_path / "lake.key").unlink()

    with pytest.raises(Invalid, match=r"storages\.lake\.password_file"):
        storages(load(file))


def test_hdfs_for_containers_needs_its_data_nodes(write_settings):
    without_nodes = {"url": "hdfs://h/joint", "username": "bank"}

    with pytest.raises(Invalid, match=r"storages\.lake\.datanodes"):
        load(write_settings("docker", lake=without_nodes))


@pytest.mark.parametrize(
    "data_node",
    ["10.0.8.0/24", "10.0.8/33:9866", ":9866", "h:0"],
)
def test_a_malformed_data_node_is_refused(write_settings, data_node):
    file = write_settings(
        "docker",
        lake=HDFS | {"datanodes": [data_node]},
    )

    with pytest.raises(Invalid, match="datanodes"):
        load(file)


def test_name_node_and_data_nodes_are_the_services_of_hdfs(write_settings):
    settings = load(write_settings("docker", lake=HDFS))

    remote = storages(settings).remotes["lake"].remote

    assert remote.services == ("h:8020", "10.0.8.0/24:9866")


# ------------------------------------------------------------ doctor


@pytest.mark.hdfs
def test_doctor_warns_that_hdfs_is_open_to_every_container(write_settings):
    with folder() as place:
        name_node, _ = hdfs()
        cluster = {
            "url": f"{name_node}{place.name}",
            "username": HDFS_USER,
            "share_key": True,
        }

        step = storages_of(load(write_settings(cluster=cluster)))

    assert step.result is Result.WARNING
    assert "change all of cluster" in step.cause


@pytest.fixture
def lake():
    """A bucket of the suite's S3, as the settings of a storage without a role."""
    with bucket() as place:
        remote = remote_of(place)
        yield {
            "url": f"s3://{remote.host}:{remote.port}/{place.name}",
            "region": "default",
            "username": remote.username,
            "password": remote.password,
        }


@pytest.fixture
def role():
    """A role of the suite's S3, which keys of runs assume."""
    return {"role": os.environ["BFIA_TEST_S3_ROLE"]}


@pytest.mark.s3
def test_doctor_finds_nothing_wrong_with_a_storage_that_has_a_role(write_settings, lake, role):
    assert storages_of(load(write_settings(lake=lake | role))).result is Result.OK


@pytest.mark.s3
def test_doctor_names_a_storage_that_containers_cannot_reach(write_settings, lake, role):
    settings = load(write_settings(lake=lake | role))
    nowhere = DockerOptions(base_url="tcp://127.0.0.1:1")

    with contextlib.closing(ContainerdEngine("n", "i", nowhere)) as engine:
        step = storages_of(settings, engine)

    assert step.cause.startswith("containers cannot reach storage lake: ")


@pytest.mark.s3
def test_doctor_warns_that_runs_get_the_nodes_own_key(write_settings, lake):
    step = storages_of(load(write_settings(lake=lake | {"share_key": True})))

    assert step.result is Result.WARNING
    assert "the node's own key of lake" in step.cause


@pytest.mark.s3
def test_doctor_names_a_storage_that_no_run_may_use(write_settings, lake):
    step = storages_of(load(write_settings(lake=lake)))

    assert step.result is Result.FAILED
    assert step.cause == "STORAGE_KEY_NOT_SHARED: jobs with data in lake are refused"
    assert step.remedy.startswith("Set role in storages")
    assert "share_key: true" in step.remedy


@pytest.mark.s3
def test_doctor_names_a_wrong_key_and_the_settings_to_check(write_settings, lake, role):
    wrong_key = {"password": "not-the-key"}

    step = storages_of(load(write_settings(lake=lake | role | wrong_key)))

    assert step.result is Result.FAILED
    assert step.cause.startswith("STORAGE_DENIED: storage lake (s3)")
    assert step.remedy.startswith("Check username and password_file in storages")
    in_chinese = translate(step.remedy, "zh")
    assert in_chinese.startswith("检查 storages 中的 username 与 password_file")


@pytest.mark.s3
def test_doctor_warns_that_credentials_of_runs_outlast_them(write_settings, lake, role):
    name = lake["url"].rpartition("/")[2]
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:GetBucketPolicy"],
        "Resource": f"arn:aws:s3:::{name}",
    }
    policy = {
        "Version": "2012-10-17",
        "Statement": [statement],
    }
    client().put_bucket_policy(Bucket=name, Policy=json.dumps(policy))

    step = storages_of(load(write_settings(lake=lake | role)))

    assert step.result is Result.WARNING
    assert "credentials of runs outlast them" in step.cause
