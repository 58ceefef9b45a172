"""Buckets and folders on the suite's real S3 and HDFS, each for one test."""

import contextlib
import functools
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import botocore.session
import httpx
import opendal
from botocore.config import Config

from gateway.data.datasets import Datasets
from gateway.data.upload import Upload
from gateway.domain.datasets import Dataset
from gateway.domain.run import Address
from tests.plain import NO_TLS

HDFS_USER = "root"


@dataclass(frozen=True)
class Place:
    """A bucket or folder that lasts as long as the test."""

    url: str  # as a container receives it, with the server's own key
    operator: opendal.Operator
    name: str  # of the bucket, or path of the folder


def upload(
    tables: Datasets,
    content: str | bytes,
    address: Address,
    name: str = "t.csv",
    **fields: Any,
) -> Dataset:
    """Store a table as an upload; ``fields`` go to `Upload`."""
    if isinstance(content, str):
        content = content.encode()
    with contextlib.closing(tables.receive()) as reception:
        reception.write(content)
        return tables.upload_from_file(Upload(address, **fields), reception, name)


def client(service: str = "s3", **credentials: str) -> Any:
    """Return a client of the S3 server, or of its ``sts``, with the server's own key.

    ``credentials`` replaces arguments of the key.
    """
    server_key = {
        "aws_access_key_id": os.environ["BFIA_TEST_S3_KEY"],
        "aws_secret_access_key": os.environ["BFIA_TEST_S3_SECRET"],
    }
    return _session().create_client(
        service,
        endpoint_url=os.environ["BFIA_TEST_S3"],
        region_name="default",
        config=Config(
            s3={"addressing_style": "path"},
            proxies={},
        ),
        **(server_key | credentials),
    )


# One session for all clients: reading the description of S3 takes a third of a second.
_session = functools.cache(botocore.session.get_session)


@contextlib.contextmanager
def bucket() -> Iterator[Place]:
    """Make a bucket; remove it with its objects afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3 = client()
    s3.create_bucket(Bucket=name)
    key, secret = os.environ["BFIA_TEST_S3_KEY"], os.environ["BFIA_TEST_S3_SECRET"]
    operator = opendal.Operator(
        "s3",
        bucket=name,
        endpoint=os.environ["BFIA_TEST_S3"],
        region="default",
        access_key_id=key,
        secret_access_key=secret,
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
        yield Place(f"s3://{urlsplit(os.environ['BFIA_TEST_S3']).netloc}?{query}", operator, name)
    finally:
        with contextlib.suppress(s3.exceptions.NoSuchBucket):  # a test may have removed it
            empty(s3, name)
            s3.delete_bucket(Bucket=name)


def empty(s3: Any, name: str) -> None:
    """Remove all objects and unfinished uploads of a bucket."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        for entry in page.get("Contents", []):
            s3.delete_object(
                Bucket=name,
                Key=entry["Key"],
            )
    for upload in s3.list_multipart_uploads(Bucket=name).get("Uploads", []):
        s3.abort_multipart_upload(
            Bucket=name,
            Key=upload["Key"],
            UploadId=upload["UploadId"],
        )


@contextlib.contextmanager
def folder() -> Iterator[Place]:
    """Make a folder on HDFS; remove it with its files afterwards."""
    name = f"/test/{uuid.uuid4().hex[:12]}"
    node, web = hdfs()
    url, user = f"{web}/webhdfs/v1{name}", {"user.name": HDFS_USER}
    patient = {
        "timeout": 120,
        "trust_env": False,
        "verify": NO_TLS,
    }
    httpx.put(url, params={"op": "MKDIRS", **user}, **patient).raise_for_status()
    os.environ["HADOOP_USER_NAME"] = HDFS_USER  # the client has no argument for it
    operator = opendal.Operator(
        "hdfs-native",
        name_node=node,
        root=name,
    )
    try:
        yield Place(
            f"{node}?{urlencode({'username': HDFS_USER, 'dir': name}, quote_via=quote)}",
            operator,
            name,
        )
    finally:
        removal = {
            "op": "DELETE",
            "recursive": "true",
            **user,
        }
        httpx.delete(url, params=removal, **patient).raise_for_status()


def hdfs() -> tuple[str, str]:
    """Return the NameNode's addresses, of its own protocol and of WebHDFS."""
    native, web = os.environ["BFIA_TEST_HDFS"].split()
    return native, web


@dataclass(frozen=True)
class KerberosSite:
    """The suite's HDFS that knows its clients by Kerberos alone."""

    folder: Path  # of the KDC, with krb5.conf and the clients' keytab
    host: str
    port: int
    web: str  # URL of WebHDFS


def kerberos() -> KerberosSite:
    """Return the suite's HDFS with Kerberos."""
    folder, native, web = os.environ["BFIA_TEST_KERBEROS"].split()
    name_node = urlsplit(native)
    return KerberosSite(
        Path(folder),
        str(name_node.hostname),
        name_node.port or 0,
        web,
    )


def data_nodes() -> list[str]:
    """Return the addresses of the DataNodes, to which the NameNode redirects clients."""
    response = httpx.get(
        f"{hdfs()[1]}/jmx",
        params={"qry": "Hadoop:service=NameNode,name=NameNodeInfo"},
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    )
    (name_node,) = response.json()["beans"]
    live_nodes = json.loads(name_node["LiveNodes"])
    return [node["xferaddr"] for node in live_nodes.values()]
