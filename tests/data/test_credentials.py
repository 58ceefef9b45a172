"""A run's temporary credentials open its inputs and outputs and nothing else, at a real server."""

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest
from botocore.exceptions import ClientError

from gateway.data import credentials
from gateway.data.credentials import policy
from gateway.data.remote import Remote
from gateway.domain.run import Address, RunData
from gateway.errors import StorageAway, StorageFailed
from tests.builders import a_run, with_data
from tests.contracts.storage_sites import remote_of
from tests.plain import NO_TLS
from tests.storages import HDFS_USER, bucket, client, folder, hdfs

INPUT = "bank/customers.1f/data_0"
REGISTERED_FILE = "warehouse/2026/c.csv"  # registered in place, not copied
OUTPUT = "job-a-guest-0/t-out/data_0"
# Objects that the run may not read, with names that begin like those it may read.
FOREIGN_OBJECTS = (
    "bank/customers.1fx/data_0",
    "warehouse/2026/c.csv.bak",
    "job-b-guest-0/t-out/data_0",
)
RUN = a_run(
    run_id="r" * 64,
    data=RunData(
        inputs={"data": Address("bank", "customers.1f", "lake")},
        outputs={"out": Address("job-a-guest-0", "t-out", "lake")},
    ),
)
ROLE = "arn:aws:iam:::role/bfia-run"
MAX_POLICY = 2048  # characters of the policy of a session
EMPTY_POLICY = {"Version": "2012-10-17", "Statement": []}


@pytest.fixture(scope="module")
def place():
    with bucket() as place:
        for key in (INPUT, REGISTERED_FILE, *FOREIGN_OBJECTS):
            place.operator.write(key, b"secret")
        yield place


@pytest.fixture(scope="module")
def remote(place):
    return replace(
        remote_of(place),
        role=os.environ["BFIA_TEST_S3_ROLE"],
    )


def client_of(session):
    """Return a client of S3 with the credentials of a run."""
    return client(
        aws_access_key_id=session.username,
        aws_secret_access_key=session.password,
        aws_session_token=session.token,
    )


@pytest.fixture(scope="module")
def s3(remote):
    """A client with the credentials of a run that also reads a file registered in place."""
    registered = Address("warehouse/2026", "c.csv", "lake", "file")
    run = with_data(RUN, inputs={**RUN.data.inputs, "registered": registered})
    session = credentials.for_run(remote, run)
    assert session.token
    assert session.username != remote.username
    assert f"token={quote(session.token, safe='')}" in session.url()
    return client_of(session)


def read(s3, place, key):
    return s3.get_object(Bucket=place.name, Key=key)["Body"].read()


@pytest.mark.s3
@pytest.mark.parametrize("key", [INPUT, REGISTERED_FILE])
def test_a_run_reads_its_inputs(s3, place, key):
    assert read(s3, place, key) == b"secret"


@pytest.mark.s3
def test_a_run_without_its_report_writes_and_cannot_read_its_inputs(remote, place):
    attested = with_data(RUN, inputs={})

    s3 = client_of(credentials.for_run(remote, attested))

    s3.put_object(
        Bucket=place.name,
        Key=OUTPUT,
        Body=b"mine",
    )
    with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
        read(s3, place, INPUT)


@pytest.mark.s3
def test_a_missing_object_is_missing_and_not_denied(s3, place):
    """Some images look for a folder at the place of a file first."""
    with pytest.raises(s3.exceptions.NoSuchKey):
        read(s3, place, f"{REGISTERED_FILE}/metadata")


@pytest.mark.s3
def test_a_run_writes_and_lists_its_outputs(s3, place):
    s3.put_object(
        Bucket=place.name,
        Key=OUTPUT,
        Body=b"mine",
    )

    assert read(s3, place, OUTPUT) == b"mine"
    listing = s3.list_objects_v2(
        Bucket=place.name,
        Prefix="job-a-guest-0/t-out/",
    )
    assert listing["KeyCount"] == 1


def read_similar_dataset(s3, place):
    read(s3, place, "bank/customers.1fx/data_0")


def read_similar_file(s3, place):
    read(s3, place, "warehouse/2026/c.csv.bak")


def read_other_jobs_output(s3, place):
    read(s3, place, "job-b-guest-0/t-out/data_0")


def create_bucket(s3, place):
    s3.create_bucket(Bucket=f"{place.name}-more")


def change_input(s3, place):
    s3.put_object(
        Bucket=place.name,
        Key=INPUT,
        Body=b"",
    )


@pytest.mark.s3
@pytest.mark.parametrize(
    "attack",
    [
        read_similar_dataset,
        read_similar_file,
        read_other_jobs_output,
        create_bucket,
        change_input,
    ],
)
def test_whatever_else_it_tries_the_server_denies(s3, place, attack):
    with pytest.raises(ClientError) as denial:
        attack(s3, place)

    assert denial.value.response["Error"]["Code"] == "AccessDenied"
    assert place.operator.read(INPUT) == b"secret"


# ------------------------------------------------------------ the end of credentials


def may_read(session, place):
    """True if a run's credentials still open its input."""
    try:
        read(client_of(session), place, INPUT)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied"
        return False
    return True


@pytest.mark.s3
def test_they_end_with_the_run_and_nothing_else_does(remote, place):
    admin = client()
    runs = [replace(RUN, run_id=digit * 64) for digit in "012"]
    sessions = [credentials.for_run(remote, run, 60.0) for run in runs]
    admins_statement = {
        "Sid": "admins",
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{place.name}/closed/*"],
    }
    admins_policy = EMPTY_POLICY | {"Statement": admins_statement}
    admin.put_bucket_policy(
        Bucket=place.name,
        Policy=json.dumps(admins_policy),
    )
    assert [may_read(session, place) for session in sessions] == [True, True, True]

    today = datetime(
        2026,
        11,
        23,
        tzinfo=UTC,
    )
    credentials.end(
        remote,
        runs[0],
        today - timedelta(days=2),
    )
    assert [may_read(session, place) for session in sessions] == [False, True, True]

    for run in (runs[1], runs[2], runs[1]):  # a repeated end changes nothing
        credentials.end(remote, run, today)
    assert [may_read(session, place) for session in sessions[1:]] == [False, False]

    stored_policy = json.loads(admin.get_bucket_policy(Bucket=place.name)["Policy"])
    admins_rule, todays_rule = stored_policy["Statement"]
    assert admins_rule["Sid"] == "admins"
    # Sessions of earlier days have expired.
    assert todays_rule["Sid"] == "BfiaEndedRuns20261123"
    assert len(todays_rule["Condition"]["StringLike"]["aws:userid"]) == 2
    assert read(admin, place, INPUT) == b"secret"
    admin.delete_bucket_policy(Bucket=place.name)


class RacedRemote(Remote):
    """A bucket with a policy that another gateway overwrites after some of our changes.

    The other gateway writes the policy that it has read before, which has no statement.
    """

    overwritten = 1  # changes

    @contextmanager
    def client(self, service, denial=""):
        self.policies.append(EMPTY_POLICY)
        yield SimpleNamespace(
            get_bucket_policy=self.get_policy,
            put_bucket_policy=self.put_policy,
            exceptions=SimpleNamespace(ClientError=ClientError),
        )

    @property
    def policies(self):
        """The policies of the bucket, the current one last."""
        return vars(self).setdefault("_policies", [])  # a frozen class has no other way

    def get_policy(self, Bucket):
        return {"Policy": json.dumps(self.policies[-1])}

    def put_policy(self, Bucket, Policy):
        is_overwritten = len(self.policies) <= self.overwritten
        self.policies.append(EMPTY_POLICY if is_overwritten else json.loads(Policy))


class LosingRemote(RacedRemote):
    """A bucket with a policy that keeps no change of ours."""

    overwritten = 1000


def test_a_change_that_another_gateway_overwrites_is_made_again():
    remote = RacedRemote(
        "lake",
        "s3",
        "h",
        1,
        "joint",
        role=ROLE,
    )

    credentials.end(remote, RUN, datetime.now(UTC))

    assert len(remote.policies) == 3
    assert RUN.run_id[:32] in json.dumps(remote.policies[-1])


def test_a_change_that_is_always_overwritten_is_a_failure(monkeypatch):
    monkeypatch.setattr(credentials, "PAUSE", 0.0)
    remote = LosingRemote(
        "lake",
        "s3",
        "h",
        1,
        "joint",
        role=ROLE,
    )

    message = "does not keep what this node adds to the policy"
    with pytest.raises(StorageAway, match=message):
        credentials.end(remote, RUN, datetime.now(UTC))


@pytest.mark.parametrize(
    ("status", "is_temporary"),
    [
        (409, True),
        (503, True),
        (403, False),
    ],
    ids=["conflict", "busy", "denied"],
)
def test_a_refusal_of_a_busy_server_is_temporary(status, is_temporary):
    response = {
        "Error": {"Code": "OperationAborted"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    remote = Remote("lake", "s3", "127.0.0.1", 1, "joint")

    with pytest.raises(StorageFailed, match="OperationAborted") as failure, remote.client("s3"):
        raise ClientError(response, "PutBucketPolicy")

    assert isinstance(failure.value, StorageAway) is is_temporary


# ------------------------------------------------------------ sessions


@pytest.mark.s3
@pytest.mark.parametrize(
    ("longest", "seconds"),
    [
        (60.0, 900),
        (1800.5, 1801),
        (5000.0, 3600),
        (43200.0, 3600),
    ],
    ids=["shorter than allowed", "exact", "longer than allowed", "longest run"],
)
def test_they_last_as_long_as_the_run_may_take(remote, longest, seconds):
    request = {
        "RoleArn": remote.role,
        "RoleSessionName": "bfia-test",
    }

    session = credentials._assume_role(remote, request, longest)["Credentials"]

    lifetime = session["Expiration"] - datetime.now(UTC)
    assert lifetime.total_seconds() == pytest.approx(
        seconds,
        abs=300,
    )


@pytest.mark.s3
def test_a_role_that_may_not_be_assumed_is_named(remote):
    unknown_role = replace(remote, role="arn:aws:iam:::role/no-such-role")

    with pytest.raises(StorageFailed, match="no-such-role") as denial:
        credentials.for_run(unknown_role, RUN)
    assert denial.value.reason == "STORAGE_DENIED"
    assert remote.password not in denial.value.message


def test_a_policy_takes_the_names_of_inputs_literally():
    run = with_data(
        RUN,
        inputs={"x": Address("bank", "a*")},
    )

    assert "bank/a${*}/*" in str(policy("joint", run))


def test_a_policy_fits_the_servers_limit():
    outputs = {}
    for number in range(4):
        name = f"task_20260101_{number}-output{number}"
        outputs[f"output{number}"] = Address("job-a-guest-0", name, "lake")

    text = json.dumps(
        policy("joint", with_data(RUN, outputs=outputs)),
        separators=(",", ":"),
    )

    assert len(text) <= MAX_POLICY


@pytest.fixture
def without_role():
    """A storage that shares the node's key, as runs have none of their own."""
    return Remote(
        "lake",
        "s3",
        "h",
        1,
        "joint",
        "key",
        "a/b&c",
        share_key=True,
    )


def test_without_a_role_runs_may_share_the_nodes_key(without_role):
    assert credentials.for_run(without_role, RUN) is without_role
    assert without_role.url() == "s3://h:1?username=key&password=a%2Fb%26c&bucket=joint"


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_no_run_gets_a_key_that_the_admin_has_not_shared(without_role, kind):
    secretive = replace(
        without_role,
        kind=kind,
        share_key=False,
    )

    with pytest.raises(StorageFailed, match="share_key: true") as refusal:
        credentials.for_run(secretive, RUN)
    assert refusal.value.reason == "STORAGE_KEY_NOT_SHARED"
    assert without_role.password not in refusal.value.message


# ------------------------------------------------------------ HDFS


def test_hdfs_has_a_user_and_a_folder_in_its_address():
    remote = Remote("c", "hdfs", "h", 1, "/bfia", "bank")

    assert remote.url() == "hdfs://h:1?username=bank&dir=%2Fbfia"


@pytest.mark.hdfs
def test_hdfs_trusts_the_name_that_a_client_claims():
    """Separate users for runs would not restrict access: ADR 39."""
    with folder() as place:
        url = f"{hdfs()[1]}/webhdfs/v1{place.name}/own"

        def request(method, operation, user, **params):
            """Return the status of a request under a user's name."""
            response = httpx.request(
                method,
                url,
                params={"op": operation, "user.name": user, **params},
                timeout=120,
                trust_env=False,
                verify=NO_TLS,
            )
            return response.status_code

        assert request("PUT", "MKDIRS", HDFS_USER, permission="700") == 200
        assert request("PUT", "SETOWNER", HDFS_USER, owner="run-b") == 200
        assert request("GET", "LISTSTATUS", "run-a") == 403
        assert request("GET", "LISTSTATUS", "run-a", doas="run-b") == 403
        assert request("GET", "LISTSTATUS", "run-b") == 200
        assert request("GET", "LISTSTATUS", HDFS_USER) == 200
