"""Real storage servers, which `.ci/services.sh up` starts: a bucket or a folder that lasts as long
as a test.
"""

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

import opendal
import pytest


@dataclass(frozen=True)
class Server:
    """A place at a server, as the image gets it and as the test looks into it."""

    url: str
    operator: opendal.Operator
    bucket: str = ""

    def with_(self, **query: str) -> str:
        """Return the URL with other values in its query."""
        values = dict(pair.split("=") for pair in urlsplit(self.url).query.split("&"))
        changed = values | {key: quote(value, safe="") for key, value in query.items()}
        return (
            self.url.partition("?")[0]
            + "?"
            + "&".join(f"{key}={value}" for key, value in changed.items())
        )


@contextmanager
def bucket() -> Iterator[Server]:
    key, secret = setting("BFIA_TEST_S3_KEY"), setting("BFIA_TEST_S3_SECRET")
    name, endpoint = f"vendor-{uuid.uuid4().hex[:12]}", setting("BFIA_TEST_S3")
    signed("s3", "-X", "PUT", f"{endpoint}/{name}")
    credentials = {
        "region": "us-east-1",
        "access_key_id": key,
        "secret_access_key": secret,
    }
    operator = opendal.Operator(
        "s3",
        endpoint=endpoint,
        bucket=name,
        **credentials,
    )
    query = urlencode(
        {
            "username": key,
            "password": secret,
            "bucket": name,
        },
        quote_via=quote,
    )
    try:
        yield Server(f"s3://{urlsplit(endpoint).netloc}?{query}", operator, name)
    finally:
        operator.remove_all("/")
        signed("s3", "-X", "DELETE", f"{endpoint}/{name}")


@contextmanager
def folder() -> Iterator[Server]:
    node, name = setting("BFIA_TEST_HDFS").split()[0], f"/vendor/{uuid.uuid4().hex[:12]}"
    os.environ["HADOOP_USER_NAME"] = "root"
    operator = opendal.Operator(
        "hdfs-native",
        name_node=node,
        root=name,
    )
    try:
        yield Server(
            f"{node}?{urlencode({'username': 'root', 'dir': name}, quote_via=quote)}", operator
        )
    finally:
        operator.remove_all("/")


def session(policy: list[dict[str, object]]) -> dict[str, str]:
    """Return a temporary key that may do what a policy says, by the words of a storage URL."""
    document = json.dumps(
        {"Version": "2012-10-17", "Statement": policy},
        separators=(",", ":"),
    )
    words = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": setting("BFIA_TEST_S3_ROLE"),
    }
    body = urlencode(
        words
        | {
            "RoleSessionName": "a-run",
            "DurationSeconds": "900",
            "Policy": document,
        }
    )
    response = signed("sts", "--data-binary", body, f"{setting('BFIA_TEST_S3')}/")
    session_key = dict(
        re.findall(r"<(AccessKeyId|SecretAccessKey|SessionToken)>([^<]+)<", response)
    )
    return {
        "username": session_key["AccessKeyId"],
        "password": session_key["SecretAccessKey"],
        "token": session_key["SessionToken"],
    }


def signed(service: str, *words: str) -> str:
    """Make a signed request to the S3 server."""
    key = f"{setting('BFIA_TEST_S3_KEY')}:{setting('BFIA_TEST_S3_SECRET')}"
    options = [
        "-sf",
        "--noproxy",
        "*",
        "--aws-sigv4",
        f"aws:amz:us-east-1:{service}",
        "--user",
        key,
    ]
    if service == "s3":
        options += ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    return subprocess.run(
        ["curl", *options, *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def setting(name: str) -> str:
    if name not in os.environ:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"{name} is not set: .ci/services.sh up"
        )
    return os.environ[name]
