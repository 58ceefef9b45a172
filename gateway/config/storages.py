"""The settings of storages elsewhere: S3 and HDFS."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, model_validator

from gateway.config.values import Section

_PORTS = {"s3": (80, 443), "hdfs": (8020, 8020)}


def _url(value: str) -> str:
    parts = urlsplit(value)
    try:
        usable = parts.scheme in _PORTS and parts.hostname and parts.path.strip("/") and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable or parts.query or parts.username:
        raise ValueError("must read s3://host:port/bucket or hdfs://host:port/folder")
    if parts.scheme == "s3" and not re.fullmatch(r"/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?", parts.path):
        raise ValueError("must name a bucket and nothing below it: s3://host:port/bucket")
    return value


def _data_node(value: str) -> str:
    host, _, port = value.rpartition(":")
    try:
        usable = 0 < int(port) < 65536 and bool(ipaddress.IPv4Network(host, strict=False) if "/" in host else host)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must read address:port or addresses/bits:port, such as 10.0.8.0/24:9866")
    return value


DataNode = Annotated[str, AfterValidator(_data_node)]


class RemoteSettings(Section):
    """A storage elsewhere."""

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="s3://host:port/bucket or hdfs://host:port/folder.", examples=["s3://10.0.0.5:9000/joint"]
    )
    username: str = Field(default="", description="Access key of S3; user of HDFS.")
    password: str = Field(
        default="", description="Secret key of S3: better in password_file, or in the environment."
    )
    password_file: Path | None = Field(
        default=None, description="File with the secret key of S3 and nothing else."
    )
    tls: bool = Field(default=False, description="S3 by https.")
    region: str = Field(default="us-east-1", description="Region of S3; most servers of one's own ignore it.")
    role: str = Field(
        default="",
        description="Role of S3 that the node assumes for each run, so that the run gets credentials that end and "
        "open nothing but its inputs and outputs; empty: runs get the node's own key.",
    )

    datanodes: list[DataNode] = Field(
        default_factory=list,
        description="Where HDFS serves its blocks, as address:port or addresses/bits:port: containers on the "
        "closed network of Docker reach these beside the NameNode.",
        examples=[["10.0.8.0/24:9866"]],
    )

    @model_validator(mode="after")
    def _has_key(self) -> "RemoteSettings":
        if self.kind == "s3" and not (self.username and (self.password or self.password_file)):
            raise ValueError("s3 needs username, and password_file (or password by the environment)")
        if self.kind == "hdfs" and (self.password or self.password_file or self.role or self.tls):
            raise ValueError("hdfs takes url, username and datanodes only")
        if self.kind == "s3" and self.datanodes:
            raise ValueError("s3 has no datanodes")
        return self

    @property
    def parts(self) -> SplitResult:
        """Return the parts of the address."""
        return urlsplit(self.url)

    @property
    def kind(self) -> str:
        """Return s3 or hdfs."""
        return self.parts.scheme

    @property
    def port(self) -> int:
        """Return the port, the usual one where the address has none."""
        return self.parts.port or _PORTS[self.kind][self.tls]
