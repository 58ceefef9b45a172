"""Temporary credentials of S3 for one run: they read its inputs, write its outputs, and open nothing else.

No server takes them back. So the bucket's policy denies them from the run's end on, in statements of the gateway's
own: one for each day, with the names of the sessions that ended then, removed once all of these are over.
"""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gateway.data.remote_storage import FILE, Remote, StorageAway, StorageFailed
from gateway.domain.run import Address, Run

_SECONDS = (12 * 3600, 3600)
"""for how long a role may be assumed: what is asked for first, and what every role allows"""
_SHORTEST = 900
"""seconds; less is not to be had"""
_ENDED = "BfiaEndedRuns"
_MOST_ENDED = 150
"""sessions of one day that are denied, the newest: a bucket's policy has 20 KiB"""
_READS = ["s3:GetObject"]
_WRITES = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


class RunCredentials:
    """Assumes the role that a storage names, once for each run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._seconds: dict[str, int] = {}
        self._ending = threading.Lock()

    def of(self, remote: Remote, run: Run, longest: float | None = None) -> Remote:
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
        made = self._assumed(remote, request, longest or _SECONDS[0])["Credentials"]
        return replace(
            remote,
            username=made["AccessKeyId"],
            password=made["SecretAccessKey"],
            token=made["SessionToken"],
        )

    def end(self, remote: Remote, run: Run, now: datetime) -> None:
        """Have the bucket deny a run's credentials from now on.

        Raises `StorageFailed`, where the node's key may not change the policy of the bucket, too.
        """
        if not remote.role:
            return
        with self._ending, _translated(remote, "does not let this node change the policy of its bucket"):
            client = self._client(remote, "s3")
            rules, own = _statements(client, remote.folder), f"{_ENDED}{now:%Y%m%d}"
            found = (rule["Condition"]["StringLike"]["aws:userid"] for rule in rules if _sid(rule) == own)
            before: list[str] = next(found, [])
            pattern = f"*:{_session(run)}"
            if pattern in before:
                return
            outlived = f"{_ENDED}{now - timedelta(days=1):%Y%m%d}"
            kept = [r for r in rules if _sid(r) != own and (not _sid(r).startswith(_ENDED) or _sid(r) >= outlived)]
            denied = {
                "Sid": own,
                "Effect": "Deny",
                "Principal": "*",
                "Action": ["s3:*"],
                "Resource": [f"arn:aws:s3:::{remote.folder}", f"arn:aws:s3:::{remote.folder}/*"],
                "Condition": {"StringLike": {"aws:userid": [*before, pattern][-_MOST_ENDED:]}},
            }
            text = json.dumps({"Version": "2012-10-17", "Statement": [*kept, denied]}, separators=(",", ":"))
            client.put_bucket_policy(Bucket=remote.folder, Policy=text)

    def check_end(self, remote: Remote) -> None:
        """Look whether the node's key may read the policy of the bucket. Raises `StorageFailed`."""
        with _translated(remote, "does not let this node read the policy of its bucket"):
            _statements(self._client(remote, "s3"), remote.folder)

    def _assumed(self, remote: Remote, request: Mapping[str, str], longest: float) -> Mapping[str, Any]:
        """Assume a role for the longest time that it allows and the run may take."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as below

        known = self._seconds.get(remote.name)
        most = max(_SHORTEST, math.ceil(longest))
        for seconds in (known or _SECONDS[0], _SECONDS[-1]):
            asked = min(seconds, most)
            try:
                client = self._client(remote, "sts")
                answer: Mapping[str, Any] = client.assume_role(**request, DurationSeconds=asked)
            except ClientError as error:
                code = error.response.get("Error", {}).get("Code") or error.response.get("Code", "")
                if seconds != _SECONDS[-1] and code in ("ValidationError", "InvalidArgument"):
                    continue
                text = f"storage {remote.name} does not let this node assume {remote.role}: {code}"
                raise StorageFailed(text, reason="STORAGE_DENIED") from None
            except BotoCoreError as error:
                text = f"storage {remote.name} gives no temporary credentials: {type(error).__name__}"
                raise StorageAway(text) from None
            if asked == seconds:
                self._seconds[remote.name] = seconds
            return answer
        raise AssertionError("the last of the times raises or returns")

    def _client(self, remote: Remote, service: str) -> Any:
        import botocore.session  # noqa: PLC0415 - a node without a role starts sooner without it
        from botocore.config import Config  # noqa: PLC0415

        with self._lock:
            if (remote.name, service) not in self._clients:
                self._clients[remote.name, service] = botocore.session.Session().create_client(
                    service,
                    endpoint_url=remote.endpoint,
                    region_name=remote.region,
                    aws_access_key_id=remote.username,
                    aws_secret_access_key=remote.password,
                    config=Config(
                        connect_timeout=5,
                        read_timeout=20,
                        retries={"max_attempts": 2},
                        proxies={},
                        s3={"addressing_style": "path"},
                    ),
                )
            return self._clients[remote.name, service]


@contextmanager
def _translated(remote: Remote, what: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as above

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise StorageFailed(f"storage {remote.name} {what}: {code}", reason="STORAGE_DENIED") from None
    except BotoCoreError as error:
        raise StorageAway(f"storage {remote.name} cannot be reached: {type(error).__name__}") from None


def _session(run: Run) -> str:
    return f"bfia-{run.run_id[:32]}"


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

    def objects(addresses: Mapping[str, Address]) -> list[str]:
        found = {f"{_literal(a.namespace)}/{_literal(a.name)}": a.in_place == FILE for a in addresses.values()}
        places = [place for path, is_file in found.items() for place in ([path] * is_file + [f"{path}/*"])]
        return [f"arn:aws:s3:::{bucket}/{place}" for place in places]

    rules = [(_READS, objects(run.inputs)), (_WRITES, objects(run.outputs))]
    allowed = [{"Effect": "Allow", "Action": actions, "Resource": what} for actions, what in rules if what]
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
