"""A run's temporary credentials open its inputs and outputs and nothing else, at a real server."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from botocore.exceptions import ClientError

from gateway.data import credentials
from gateway.data.credentials import policy
from gateway.data.remote import Remote
from gateway.domain.run import Address
from gateway.errors import StorageAway, StorageFailed
from tests import storages as real
from tests.builders import a_run
from tests.contracts.test_storage import remote_of
from tests.plain import NO_TLS

OWN, OTHER = "job-a-guest-0", "job-b-guest-0"
RUN = a_run(
    run_id="r" * 64,
    inputs={"data": Address("bank", "customers.1f", "lake")},
    outputs={"out": Address(OWN, "t-out", "lake")},
)


@pytest.fixture(scope="module")
def place() -> Iterator[real.Place]:
    with real.bucket() as made:
        in_place = ("warehouse/2026/c.csv", "warehouse/2026/c.csv.bak")
        for key in (
            "bank/customers.1f/data_0",
            "bank/customers.1fx/data_0",
            f"{OTHER}/t-out/data_0",
            *in_place,
        ):
            made.operator.write(key, b"secret")
        yield made


@pytest.fixture(scope="module")
def remote(place: real.Place) -> Remote:
    return replace(remote_of(place), role=os.environ["BFIA_TEST_S3_ROLE"])


@pytest.fixture(scope="module")
def client(remote: Remote) -> Any:
    placed = Address("warehouse/2026", "c.csv", "lake", "file")
    seen = credentials.of(remote, replace(RUN, inputs={**RUN.inputs, "placed": placed}))
    assert (
        seen.token
        and seen.username != remote.username
        and f"token={quote(seen.token, safe='')}" in seen.url()
    )
    return real.client(
        aws_access_key_id=seen.username,
        aws_secret_access_key=seen.password,
        aws_session_token=seen.token,
    )


@pytest.mark.s3
def test_a_run_reads_its_inputs_and_writes_its_outputs(client: Any, place: real.Place) -> None:
    bucket = place.name
    assert (
        client.get_object(Bucket=bucket, Key="bank/customers.1f/data_0")["Body"].read() == b"secret"
    )
    assert client.get_object(Bucket=bucket, Key="warehouse/2026/c.csv")["Body"].read() == b"secret"
    with pytest.raises(client.exceptions.NoSuchKey):  # an image that looks for a folder first
        client.get_object(Bucket=bucket, Key="warehouse/2026/c.csv/metadata")
    client.put_object(
        Bucket=bucket,
        Key=f"{OWN}/t-out/data_0",
        Body=b"mine",
    )
    assert client.get_object(Bucket=bucket, Key=f"{OWN}/t-out/data_0")["Body"].read() == b"mine"
    assert client.list_objects_v2(Bucket=bucket, Prefix=f"{OWN}/t-out/")["KeyCount"] == 1


ATTACKS: dict[str, Callable[[Any, str], Any]] = {
    "a dataset whose name begins alike": lambda s3, bucket: s3.get_object(
        Bucket=bucket, Key="bank/customers.1fx/data_0"
    ),
    "a file beside one that was registered where it lies": lambda s3, bucket: s3.get_object(
        Bucket=bucket, Key="warehouse/2026/c.csv.bak"
    ),
    "all buckets": lambda s3, bucket: s3.create_bucket(Bucket=f"{bucket}-more"),
    "changing an input": lambda s3, bucket: s3.put_object(
        Bucket=bucket,
        Key="bank/customers.1f/data_0",
        Body=b"",
    ),
}


@pytest.mark.s3
@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_else_it_tries_the_server_denies(
    attack: str,
    client: Any,
    place: real.Place,
) -> None:
    with pytest.raises(ClientError) as denied:
        ATTACKS[attack](client, place.name)
    assert denied.value.response["Error"]["Code"] == "AccessDenied"
    assert place.operator.read("bank/customers.1f/data_0") == b"secret"


@pytest.mark.s3
def test_they_end_with_the_run_and_nothing_else_does(remote: Remote, place: real.Place) -> None:
    admin, now = real.client(), datetime(2026, 11, 23, tzinfo=UTC)
    sessions = [credentials.of(remote, replace(RUN, run_id=f"{n}" * 64), 60.0) for n in range(3)]

    def reads(session: Remote) -> bool:
        keys = {"aws_access_key_id": session.username, "aws_secret_access_key": session.password}
        client = real.client(**keys, aws_session_token=session.token)
        try:
            return bool(client.get_object(Bucket=place.name, Key="bank/customers.1f/data_0"))
        except ClientError as error:
            assert error.response["Error"]["Code"] == "AccessDenied"
            return False

    resource = [f"arn:aws:s3:::{place.name}/closed/*"]
    admins = {
        "Sid": "admins",
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": resource,
    }
    admin.put_bucket_policy(
        Bucket=place.name, Policy=json.dumps({"Version": "2012-10-17", "Statement": admins})
    )
    assert [reads(session) for session in sessions] == [True, True, True]
    for n, at in ((0, now - timedelta(days=2)), (1, now), (2, now), (1, now)):
        credentials.end(remote, replace(RUN, run_id=f"{n}" * 64), at)
        if n == 0:
            assert [reads(session) for session in sessions] == [False, True, True]
    assert [reads(session) for session in sessions[1:]] == [False, False]
    statements = json.loads(admin.get_bucket_policy(Bucket=place.name)["Policy"])["Statement"]
    assert [rule["Sid"] for rule in statements] == [
        "admins",
        "BfiaEndedRuns20261123",
    ]  # older ones are over anyway
    assert len(statements[1]["Condition"]["StringLike"]["aws:userid"]) == 2
    assert admin.get_object(Bucket=place.name, Key="bank/customers.1f/data_0")
    admin.delete_bucket_policy(Bucket=place.name)


class Raced(Remote):
    """A bucket into whose policy another gateway writes what it read before: the first change is taken back."""

    @contextmanager
    def client(self, service: str, what: str = "") -> Iterator[Any]:
        policies, taken_back = [{"Statement": []}], [True]

        def put(Bucket: str, Policy: str) -> None:
            policies.append({"Statement": []} if taken_back.pop() else json.loads(Policy))
            taken_back.append(False)

        yield SimpleNamespace(
            get_bucket_policy=lambda Bucket: {"Policy": json.dumps(policies[-1])},
            put_bucket_policy=put,
            exceptions=SimpleNamespace(ClientError=ClientError),
        )
        assert len(policies) == 3 and RUN.run_id[:32] in json.dumps(policies[-1])


def test_a_change_that_is_always_taken_back_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_statements", lambda *_: [])
    monkeypatch.setattr(credentials, "_put_policy", lambda *_: None)
    monkeypatch.setattr(credentials, "PAUSE", 0.0)
    monkeypatch.setattr(Remote, "client", lambda *_: nullcontext())
    remote = Remote("lake", "s3", "h", 1, "joint", role="arn:aws:iam:::role/bfia-run")
    with pytest.raises(StorageAway, match="does not keep what this node adds to the policy"):
        credentials.end(remote, RUN, datetime.now(UTC))


def test_a_change_that_another_gateway_takes_back_is_made_again() -> None:
    raced = Raced("lake", "s3", "h", 1, "joint", role="arn:aws:iam:::role/bfia-run")
    credentials.end(raced, RUN, datetime.now(UTC))


@pytest.mark.parametrize(("status", "again"), [(409, True), (503, True), (403, False)])
def test_what_a_busy_server_refuses_is_tried_again(status: int, again: bool) -> None:
    answer: Any = {
        "Error": {"Code": "OperationAborted"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    remote = Remote("lake", "s3", "127.0.0.1", 1, "joint")
    with pytest.raises(StorageFailed, match="OperationAborted") as failed, remote.client("s3"):
        raise ClientError(answer, "PutBucketPolicy")
    assert isinstance(failed.value, StorageAway) is again


@pytest.mark.s3
def test_they_last_as_long_as_the_run_may_take(remote: Remote) -> None:
    request = {"RoleArn": remote.role, "RoleSessionName": "bfia-test"}
    for longest, seconds in ((60.0, 900), (1800.5, 1801), (5000.0, 3600), (43200.0, 3600)):
        given = credentials._assume_role(remote, request, longest)["Credentials"]
        assert abs((given["Expiration"] - datetime.now(UTC)).total_seconds() - seconds) < 300


@pytest.mark.hdfs
def test_hdfs_believes_the_name_that_a_client_gives() -> None:
    """Separate users for runs would not restrict access: ADR 39."""
    with real.folder() as place:
        url = f"{real.hdfs()[1]}/webhdfs/v1{place.name}/own"

        def ask(
            method: str,
            op: str,
            user: str,
            **more: str,
        ) -> int:
            params = {
                "op": op,
                "user.name": user,
                **more,
            }
            return httpx.request(
                method,
                url,
                params=params,
                timeout=120,
                trust_env=False,
                verify=NO_TLS,
            ).status_code

        assert ask("PUT", "MKDIRS", real.HDFS_USER, permission="700") == 200
        assert ask("PUT", "SETOWNER", real.HDFS_USER, owner="run-b") == 200
        assert (
            ask("GET", "LISTSTATUS", "run-a")
            == ask("GET", "LISTSTATUS", "run-a", doas="run-b")
            == 403
        )
        assert ask("GET", "LISTSTATUS", "run-b") == ask("GET", "LISTSTATUS", real.HDFS_USER) == 200


@pytest.mark.s3
def test_a_role_that_may_not_be_assumed_is_named(remote: Remote) -> None:
    with pytest.raises(StorageFailed, match="no-such-role") as denied:
        credentials.of(replace(remote, role="arn:aws:iam:::role/no-such-role"), RUN)
    assert denied.value.reason == "STORAGE_DENIED" and remote.password not in denied.value.message


def test_a_policy_fits_the_servers_limits_and_no_role_shares_the_key() -> None:
    assert "bank/a${*}/*" in str(policy("joint", replace(RUN, inputs={"x": Address("bank", "a*")})))
    many = {f"output{n}": Address(OWN, f"task_20260101_{n}-output{n}", "lake") for n in range(4)}
    assert (
        len(json.dumps(policy("joint", replace(RUN, outputs=many)), separators=(",", ":"))) <= 2048
    )
    plain = Remote("lake", "s3", "h", 1, "joint", "key", "a/b&c")
    assert credentials.of(plain, RUN) is plain
    assert plain.url() == "s3://h:1?username=key&password=a%2Fb%26c&bucket=joint"
    assert (
        Remote("c", "hdfs", "h", 1, "/bfia", "bank").url() == "hdfs://h:1?username=bank&dir=%2Fbfia"
    )
