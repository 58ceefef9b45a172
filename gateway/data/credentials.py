"""Temporary credentials of S3 for one run: they read its inputs, write its outputs, and open nothing else.

No server takes them back. So the bucket's policy denies them from the run's end on, in statements of the gateway's
own: one for each day, with the names of the sessions that ended then, removed once all of these are over.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gateway.data.remote_storage import FILE, Remote
from gateway.domain.run import Address, Run
from gateway.errors import StorageAway

_LONGEST, _ALLOWED, _SHORTEST = 12 * 3600, 3600, 900
"""seconds for which any role may be assumed, every role may, and no role may be for less"""
_ENDED = "BfiaEndedRuns"
_MOST_ENDED = 150
"""sessions of one day that are denied, the newest: a bucket's policy has 20 KiB"""
_TRIES, _SETTLES = 10, 0.2
"""times that a change is looked for, and seconds between them: of two at the same time, the last one wins"""
_ENDING = threading.Lock()
_READS = ["s3:GetObject"]
_WRITES = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


def of(
    remote: Remote,
    run: Run,
    longest: float | None = None,
) -> Remote:
    """Return a storage as a run may use it, for so many seconds at most.

    Raises `StorageFailed` where the role cannot be assumed.
    """
    if not remote.role:
        return remote
    request = {
        "RoleArn": remote.role,
        "RoleSessionName": _session(run),
        "Policy": json.dumps(policy(remote.folder, run), separators=(",", ":")),
    }
    made = _assumed(remote, request, longest or _LONGEST)["Credentials"]
    key, secret, token = made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"]
    return replace(
        remote,
        username=key,
        password=secret,
        token=token,
    )


def end(
    remote: Remote,
    run: Run,
    now: datetime,
) -> None:
    """Have the bucket deny a run's credentials from now on.

    Raises `StorageFailed`, where the node's key may not change the policy of the bucket, too.
    """
    if not remote.role:
        return
    denied = "does not let this node change the policy of its bucket"
    with remote.client("s3", denied) as client:
        for _ in range(_TRIES):
            with _ENDING:
                if _is_denied(client, remote.folder, f"*:{_session(run)}", now):
                    return
            time.sleep(
                _SETTLES
            )  # another gateway's change may be on its way, and take this one back
    raise StorageAway(
        f"storage {remote.name} does not keep what this node adds to the policy of its bucket"
    )


def check_end(remote: Remote) -> None:
    """Look whether the node's key may read the policy of the bucket. Raises `StorageFailed`."""
    with remote.client("s3", "does not let this node read the policy of its bucket") as client:
        _statements(client, remote.folder)


def _assumed(
    remote: Remote,
    request: Mapping[str, str],
    longest: float,
) -> Mapping[str, Any]:
    """Assume a role for as long as the run may take, or as every role allows."""
    seconds = min(_LONGEST, max(_SHORTEST, math.ceil(longest)))
    with remote.client("sts", f"does not let this node assume {remote.role}") as client:
        try:
            answer: Mapping[str, Any] = client.assume_role(**request, DurationSeconds=seconds)
        except client.exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code") or error.response.get("Code", "")
            if seconds <= _ALLOWED or code not in ("ValidationError", "InvalidArgument"):
                raise
            answer = client.assume_role(**request, DurationSeconds=_ALLOWED)
    return answer


def _session(run: Run) -> str:
    return f"bfia-{run.run_id[:32]}"


def _is_denied(
    client: Any,
    bucket: str,
    pattern: str,
    now: datetime,
) -> bool:
    """Tell whether a bucket's policy denies a session; if not, have it do so."""
    rules, own = _statements(client, bucket), f"{_ENDED}{now:%Y%m%d}"
    found = (rule["Condition"]["StringLike"]["aws:userid"] for rule in rules if _sid(rule) == own)
    before: list[str] = next(found, [])
    if pattern in before:
        return True
    outlived = f"{_ENDED}{now - timedelta(days=1):%Y%m%d}"
    kept = [
        r
        for r in rules
        if _sid(r) != own and (not _sid(r).startswith(_ENDED) or _sid(r) >= outlived)
    ]
    ended = {
        "Sid": own,
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:*"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
        "Condition": {"StringLike": {"aws:userid": [*before, pattern][-_MOST_ENDED:]}},
    }
    text = json.dumps({"Version": "2012-10-17", "Statement": [*kept, ended]}, separators=(",", ":"))
    client.put_bucket_policy(Bucket=bucket, Policy=text)
    return False


def _statements(client: Any, bucket: str) -> list[dict[str, Any]]:
    """Return the statements of a bucket's policy."""
    try:
        found = json.loads(client.get_bucket_policy(Bucket=bucket)["Policy"])["Statement"]
    except client.exceptions.ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchBucketPolicy":
            return []
        raise
    return found if isinstance(found, list) else [found]


def _sid(statement: Mapping[str, Any]) -> str:
    return str(statement.get("Sid", ""))


def policy(bucket: str, run: Run) -> dict[str, Any]:
    """Return what a run may do in a bucket, in the words of S3's policies."""

    def objects(addresses: Iterable[Address]) -> list[str]:
        found = {
            f"{_literal(a.namespace)}/{_literal(a.name)}": a.in_place == FILE for a in addresses
        }
        places = [
            place for path, is_file in found.items() for place in ([path] * is_file + [f"{path}/*"])
        ]
        return [f"arn:aws:s3:::{bucket}/{place}" for place in places]

    kept = [run.checkpoint] if run.checkpoint and run.checkpoint.storage else []
    rules = [
        (_READS, objects(run.inputs.values())),
        (_WRITES, objects([*run.outputs.values(), *kept])),
    ]
    allowed = [
        {
            "Effect": "Allow",
            "Action": actions,
            "Resource": what,
        }
        for actions, what in rules
        if what
    ]
    prefixes = [what.partition("/")[2] for _, found in rules for what in found]
    listing = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringLike": {"s3:prefix": prefixes}},
    }
    return {"Version": "2012-10-17", "Statement": [*allowed, *([listing] if prefixes else [])]}


def _literal(name: str) -> str:
    """Return a name in which a policy sees no pattern."""
    return name.replace("$", "${$}").replace("*", "${*}").replace("?", "${?}")
