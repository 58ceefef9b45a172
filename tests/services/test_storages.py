"""The storage servers are what the gateway's tests take them for."""

import contextlib
import json
import os

import botocore.exceptions
import opendal.exceptions
import pytest

from tests import storages
from tests.services import own_docker


@pytest.mark.s3
def test_an_assumed_role_does_in_s3_what_its_policy_says_and_no_more() -> None:
    with storages.bucket() as place:
        place.operator.write("in/data_0", b"x,y\n")
        statement = {
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": [f"arn:aws:s3:::{place.name}/in/*"],
        }
        given = storages.client("sts").assume_role(
            RoleArn=os.environ["BFIA_TEST_S3_ROLE"],
            RoleSessionName="a-run",
            DurationSeconds=900,
            Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":")),
        )["Credentials"]
        narrow = storages.client(
            aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"],
            aws_session_token=given["SessionToken"],
        )
        assert narrow.get_object(Bucket=place.name, Key="in/data_0")["Body"].read() == b"x,y\n"
        for refused in (
            lambda: narrow.list_objects_v2(Bucket=place.name),
            lambda: narrow.put_object(Bucket=place.name, Key="in/data_0", Body=b""),
            lambda: narrow.create_bucket(Bucket="of-its-own"),
        ):
            with pytest.raises(botocore.exceptions.ClientError, match="AccessDenied"):
                refused()


@pytest.mark.hdfs
def test_hdfs_keeps_files_of_odd_names_and_guards_folders_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "数据 a%2F+b"
    native, web = storages.hdfs()
    with storages.folder() as place:
        place.operator.write(name, b"x,y\n")
        other = opendal.Operator(
            "webhdfs", endpoint=web, root=place.name, user_name="bob", disable_list_batch="true"
        )
        assert bytes(other.read(name)) == b"x,y\n"
        with pytest.raises(opendal.exceptions.PermissionDenied):
            other.write("mine", b"x")
        monkeypatch.setenv("HADOOP_USER_NAME", "bob")
        with pytest.raises(opendal.exceptions.Unexpected, match="Permission denied: user=bob"):
            opendal.Operator("hdfs-native", name_node=native, root=place.name).write("mine", b"")


@pytest.mark.docker
@pytest.mark.s3
@pytest.mark.hdfs
def test_a_container_reaches_the_storages_at_the_address_of_the_host() -> None:
    where = [os.environ["BFIA_TEST_S3"], *storages.hdfs()]
    code = "import socket,sys\nfor to in sys.argv[1:]: socket.create_connection(to.split('/')[2].split(':'), 60)"
    with contextlib.closing(own_docker.Daemon()) as client:
        client.containers.run(own_docker.BASE, ["python3", "-c", code, *where], remove=True)
