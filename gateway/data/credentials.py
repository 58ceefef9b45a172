"""Temporary credentials of S3 for one run: they read its inputs, write its outputs, and open nothing else."""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.data.remote_storage import Remote, StorageAway, StorageFailed
from gateway.domain.run import Address, Run

_SECONDS = (12 * 3600, 3600)
"""for how long a role may be assumed: what is asked for first, and what every role allows"""
_READS = ["s3:GetObject"]
_WRITES = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


class RunCredentials:
    """Assumes the role that a storage names, once for each run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._seconds: dict[str, int] = {}

    def of(self, remote: Remote, run: Run) -> Remote:
        """Return a storage as a run may use it. Raises `StorageFailed` where the role cannot be assumed."""
        if not remote.role:
            return remote
        request = {
            "RoleArn": remote.role,
            "RoleSessionName": f"bfia-{run.run_id[:32]}",
            "Policy": json.dumps(policy(remote.folder, run), separators=(",", ":")),
        }
        made = self._assumed(remote, request)["Credentials"]
        return replace(
            remote,
            username=made["AccessKeyId"],
            password=made["SecretAccessKey"],
            token=made["SessionToken"],
        )

    def _assumed(self, remote: Remote, request: Mapping[str, str]) -> Mapping[str, Any]:
        """Assume a role for the longest time that it allows."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as below

        known = self._seconds.get(remote.name)
        for seconds in (known,) if known else _SECONDS:
            try:
                answer: Mapping[str, Any] = self._client(remote).assume_role(**request, DurationSeconds=seconds)
            except ClientError as error:
                code = error.response.get("Error", {}).get("Code") or error.response.get("Code", "")
                if seconds != _SECONDS[-1] and code in ("ValidationError", "InvalidArgument"):
                    continue
                text = f"storage {remote.name} does not let this node assume {remote.role}: {code}"
                raise StorageFailed(text, reason="STORAGE_DENIED") from None
            except BotoCoreError as error:
                text = f"storage {remote.name} gives no temporary credentials: {type(error).__name__}"
                raise StorageAway(text) from None
            self._seconds[remote.name] = seconds
            return answer
        raise AssertionError("the last of the times raises or returns")

    def _client(self, remote: Remote) -> Any:
        import botocore.session  # noqa: PLC0415 - a node without a role starts sooner without it
        from botocore.config import Config  # noqa: PLC0415

        with self._lock:
            if remote.name not in self._clients:
                self._clients[remote.name] = botocore.session.Session().create_client(
                    "sts",
                    endpoint_url=remote.endpoint,
                    region_name=remote.region,
                    aws_access_key_id=remote.username,
                    aws_secret_access_key=remote.password,
                    config=Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 2}, proxies={}),
                )
            return self._clients[remote.name]


def policy(bucket: str, run: Run) -> dict[str, Any]:
    """Return what a run may do in a bucket, in the words of S3's policies."""

    def objects(addresses: Mapping[str, Address]) -> list[str]:
        places = dict.fromkeys(
            f"{_literal(one.namespace)}/{_literal(one.name)}{'' if one.in_place == 'file' else '/*'}"
            for one in addresses.values()
        )
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
