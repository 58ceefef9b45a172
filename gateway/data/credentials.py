"""Temporary credentials of S3 for one run: they only read its inputs and write its outputs.

No server revokes such credentials. So from the run's end on, the bucket's policy denies them, in
statements that the gateway adds: one per day, for the sessions of the runs that ended on that day.
A statement is removed, at the next change, once all its sessions have expired.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gateway.data.remote import FILE, Remote, client_error_code
from gateway.domain.run import Address, Run
from gateway.errors import StorageAway, StorageFailed

# Lengths of a session in seconds, by the limits of STS.
_MAX_SECONDS = 12 * 3600  # no role allows more
_SAFE_SECONDS = 3600  # every role allows this length
_MIN_SECONDS = 900  # no role allows less

_ID_PREFIX = "BfiaEndedRuns"  # of the ids of our statements in a bucket's policy
# Sessions that the statement of a day denies at most, the newest ones: the policy of a bucket may
# have 20 KiB.
_MAX_DENIED = 150
# A policy can only be replaced as a whole, so another gateway may overwrite a change. After a pause
# the policy is read again, and a change that is gone is repeated, at most this often.
_TRIES = 10
PAUSE = 0.2  # seconds between two of these tries
_POLICY_LOCK = threading.Lock()  # held while a policy is read and replaced
_READ_ACTIONS = ["s3:GetObject"]
_WRITE_ACTIONS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]

Statement = dict[str, Any]


def for_run(
    remote: Remote,
    run: Run,
    longest: float | None = None,
) -> Remote:
    """Return a storage with temporary credentials for one run.

    A storage without a role is returned unchanged if it shares the node's own credentials with
    runs. ``longest`` is the time in seconds that the run may take; None if it has no limit. Raises
    `StorageFailed` if the role cannot be assumed, and with the reason STORAGE_KEY_NOT_SHARED
    without a role and without shared credentials.
    """
    if not remote.serves_runs:
        raise StorageFailed(key_not_shared(remote), reason="STORAGE_KEY_NOT_SHARED")
    if not remote.role:
        return remote
    request = {
        "RoleArn": remote.role,
        "RoleSessionName": _session(run),
        "Policy": json.dumps(
            policy(remote.folder, run),
            separators=(",", ":"),
        ),
    }
    credentials = _assume_role(remote, request, longest or _MAX_SECONDS)["Credentials"]
    return replace(
        remote,
        username=credentials["AccessKeyId"],
        password=credentials["SecretAccessKey"],
        token=credentials["SessionToken"],
    )


def key_not_shared(remote: Remote) -> str:
    """Return why no run may use a storage, with both remedies."""
    return (
        f"runs at storage {remote.name} ({remote.kind}) would get the node's own key, which opens "
        "all of it: set role (S3 with STS) or share_key: true in the settings of that storage"
    )


def end(remote: Remote, run: Run, now: datetime) -> None:
    """Have the bucket's policy deny a run's credentials from now on.

    Does nothing for a storage without a role. Raises `StorageFailed`, also if the node's key may
    not change that policy.
    """
    if not remote.role:
        return
    pattern = f"*:{_session(run)}"  # a session's ``aws:userid`` is the role's id and its own name
    with remote.client("s3", "does not let this node change the policy of its bucket") as client:
        # The change is done once a try finds the pattern of an earlier try in the policy.
        for _ in range(_TRIES):
            with _POLICY_LOCK:
                statements = _statements(client, remote.folder)
                denied = _denied_on(now, statements)
                if pattern in denied:
                    return
                today = _denial(remote.folder, [*denied, pattern], now)
                _put_policy(client, remote.folder, [*_remaining(statements, now), today])
            time.sleep(PAUSE)  # another gateway's change may overwrite this one
    raise StorageAway(
        f"storage {remote.name} does not keep what this node adds to the policy of its bucket"
    )


def check_policy_readable(remote: Remote) -> None:
    """Check that the node's key may read the policy of the bucket, as `end` does.

    Raises `StorageFailed`.
    """
    with remote.client("s3", "does not let this node read the policy of its bucket") as client:
        _statements(client, remote.folder)


def policy(bucket: str, run: Run) -> dict[str, Any]:
    """Return the policy of a run's session: read its inputs, write its outputs, list both.

    A checkpoint in the storage counts as an output.
    """
    data = run.data
    outputs = list(data.outputs.values())
    if data.checkpoint and data.checkpoint.storage:
        outputs.append(data.checkpoint)
    permissions = [
        (_READ_ACTIONS, _object_patterns(data.inputs.values())),
        (_WRITE_ACTIONS, _object_patterns(outputs)),
    ]
    statements: list[Statement] = []
    prefixes: list[str] = []
    for actions, patterns in permissions:
        if patterns:
            resources = [f"arn:aws:s3:::{bucket}/{pattern}" for pattern in patterns]
            statements.append({"Effect": "Allow", "Action": actions, "Resource": resources})
            prefixes += patterns
    if prefixes:
        statements.append(_listing(bucket, prefixes))
    return {"Version": "2012-10-17", "Statement": statements}


def _object_patterns(addresses: Iterable[Address]) -> list[str]:
    """Return the patterns of the objects at some addresses, each once.

    A table that is a single file has a pattern for that object and one for a folder of its name.
    """
    patterns: dict[str, None] = {}
    for address in addresses:
        path = f"{_literal(address.namespace)}/{_literal(address.name)}"
        if address.in_place == FILE:
            patterns[path] = None
        patterns[f"{path}/*"] = None
    return list(patterns)


def _listing(bucket: str, prefixes: Sequence[str]) -> Statement:
    """Return the statement that allows listing objects with some prefixes."""
    return {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringLike": {"s3:prefix": prefixes}},
    }


def _literal(name: str) -> str:
    """Return a name with the wildcards of policies escaped."""
    # The dollar sign first, as the other replacements add dollar signs.
    return name.replace("$", "${$}").replace("*", "${*}").replace("?", "${?}")


def _assume_role(
    remote: Remote,
    request: Mapping[str, str],
    run_seconds: float,
) -> Mapping[str, Any]:
    """Assume a storage's role for the time of a run.

    If the role does not allow so long a time, the role is assumed for `_SAFE_SECONDS`.
    ``run_seconds`` is brought within the limits of STS. Returns the response of STS. Raises
    `StorageFailed`.
    """
    seconds = min(_MAX_SECONDS, max(_MIN_SECONDS, math.ceil(run_seconds)))
    with remote.client("sts", f"does not let this node assume {remote.role}") as client:
        try:
            response: Mapping[str, Any] = client.assume_role(**request, DurationSeconds=seconds)
        except client.exceptions.ClientError as error:
            is_too_long = client_error_code(error) in ("ValidationError", "InvalidArgument")
            if seconds <= _SAFE_SECONDS or not is_too_long:
                raise
            response = client.assume_role(**request, DurationSeconds=_SAFE_SECONDS)
    return response


def _session(run: Run) -> str:
    """Return the name of a run's session, by which the bucket's policy denies it."""
    return f"bfia-{run.run_id[:32]}"


def _denial(
    bucket: str,
    patterns: Sequence[str],
    now: datetime,
) -> Statement:
    """Return the statement of the day of ``now``, which denies the bucket to some sessions.

    ``patterns`` match the sessions' ``aws:userid``, from the oldest one on.
    """
    return {
        "Sid": _statement_id(now),
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:*"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
        "Condition": {"StringLike": {"aws:userid": patterns[-_MAX_DENIED:]}},
    }


def _put_policy(
    client: Any,
    bucket: str,
    statements: Sequence[Statement],
) -> None:
    """Replace a bucket's policy."""
    document = {"Version": "2012-10-17", "Statement": statements}
    client.put_bucket_policy(
        Bucket=bucket,
        Policy=json.dumps(document, separators=(",", ":")),
    )


def _denied_on(
    day: datetime,
    statements: Iterable[Statement],
) -> list[str]:
    """Return the patterns of the sessions that a day's statement denies; empty without one."""
    for statement in statements:
        if _sid(statement) == _statement_id(day):
            patterns: list[str] = statement["Condition"]["StringLike"]["aws:userid"]
            return patterns
    return []


def _remaining(
    statements: Iterable[Statement],
    now: datetime,
) -> Iterator[Statement]:
    """Yield the statements of a policy that stay when today's statement is replaced.

    These are all statements of other programs, and ours of yesterday: older sessions have expired.
    """
    yesterday = _statement_id(now - timedelta(days=1))
    for statement in statements:
        sid = _sid(statement)
        is_foreign = not sid.startswith(_ID_PREFIX)
        is_recent = sid >= yesterday and sid != _statement_id(now)
        if is_foreign or is_recent:
            yield statement


def _statement_id(day: datetime) -> str:
    """Return the id of our statement of a day; ids sort by day."""
    return f"{_ID_PREFIX}{day:%Y%m%d}"


def _statements(client: Any, bucket: str) -> list[Statement]:
    """Return the statements of a bucket's policy; empty without a policy."""
    try:
        document = json.loads(client.get_bucket_policy(Bucket=bucket)["Policy"])
    except client.exceptions.ClientError as error:
        if client_error_code(error) == "NoSuchBucketPolicy":
            return []
        raise
    statements = document["Statement"]
    return statements if isinstance(statements, list) else [statements]


def _sid(statement: Mapping[str, Any]) -> str:
    """Return the id of a statement; "" without one."""
    return str(statement.get("Sid", ""))
