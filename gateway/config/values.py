"""What single values of the configuration must look like: addresses, ids, secrets; storages elsewhere."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.domain.events import NAMES
from route_table.model import NODE_ID, Identity
from route_table.model import NODE_RULE as RULE_OF_NODES


class Section(BaseModel):
    """A part of the configuration: keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NODE_RULE = f"{RULE_OF_NODES}, such as JG0100001100000010"

DEFAULT_STORAGE = "var/storage"
"""Beside the configuration file."""


_MYSQL = "mysql+pymysql"
_ENCODED = (
    "must have its user and password percent-encoded: write %40 for @, %3A for :, %2F for /, %3F for ?, "
    "%23 for #, %5B for [, %5D for ] and %25 for %"
)


def _bind(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must read <address>:<port>, such as 127.0.0.1:7380")
    return value


def _http(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    return value.rstrip("/")


def is_private(value: str) -> bool:
    """Tell whether nobody on the way reads what is sent to an address: by https, or within this machine."""
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or no address
        return False


def _private(value: str) -> str:
    if not is_private(value):
        raise ValueError("must be an https:// address (http:// only with a loopback address)")
    return value.rstrip("/")


def _database(value: str) -> str:
    if value.startswith("sqlite+pysqlite:"):  # the same by its longer name
        value = "sqlite:" + value.removeprefix("sqlite+pysqlite:")
    if value.startswith("sqlite:"):
        if not re.fullmatch(r"sqlite:///[^?]+", value) or value == "sqlite:///:memory:":
            raise ValueError("must name a file: sqlite:///path, without options")
        return value
    scheme, _, rest = value.partition("://")
    try:
        parts = urlsplit(value)
        is_complete = bool(parts.hostname and parts.path.strip("/") and parts.port != 0)
    except ValueError:  # a port that is none, or a name that is; its text may have the password
        is_complete = False
    before_options = rest.partition("?")[0]
    if scheme == _MYSQL and (
        before_options.count("@") > 1 or (not is_complete and rest.count("@") > 1)
    ):
        raise ValueError(_ENCODED)
    if scheme == _MYSQL and not is_complete and _has_delimiter_in_password(rest):
        raise ValueError(_ENCODED)
    if scheme != _MYSQL or not is_complete:
        raise ValueError(
            "must read sqlite:///path or mysql+pymysql://user:password@host:port/database"
        )
    return value


def _has_delimiter_in_password(rest: str) -> bool:
    """Tell whether what an address has between ``://`` and ``@`` has a sign that may not stand there as it is."""
    user_and_password, at, _ = rest.rpartition("@")
    if not at:
        return False
    return not user_and_password.isascii() or re.search(r"[/?#\[\]]", user_and_password) is not None


def _file_url(value: str) -> str:
    if not value.startswith("file://"):
        raise ValueError(
            "must be file:///path; s3:// and hdfs:// go into storages: {lake: {url: …}}"
        )
    if not value.startswith("file:///"):
        raise ValueError("must be file:// and an absolute path: file:///path")
    return value


def _storage_name(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", value):
        raise ValueError(
            "a storage's name must have a-z, 0-9 and _, begin with a letter, at most 32 of them"
        )
    if value == "file":
        raise ValueError("file is the name of the folder that every node has")
    return value


def _token(value: str) -> str:
    if value.lower().startswith("change-me"):
        raise ValueError(
            "is still the example's; put one of your own, such as from: openssl rand -hex 24"
        )
    return value


def is_node(value: str) -> bool:
    """Tell whether a node may be called so: what addresses, headers and partners' route tables can hold."""
    return NODE_ID.fullmatch(value) is not None


def _node(value: str) -> str:
    if not is_node(value):
        raise ValueError(NODE_RULE)
    return value


def _event(value: str) -> str:
    if value not in NAMES:
        raise ValueError(f"must be among {', '.join(NAMES)}")
    return value


Bind = Annotated[str, AfterValidator(_bind)]
EventName = Annotated[str, AfterValidator(_event)]
HttpUrl = Annotated[str, AfterValidator(_http)]
PrivateUrl = Annotated[str, AfterValidator(_private)]
NodeName = Annotated[
    str,
    BeforeValidator(lambda v: str(v) if isinstance(v, int) and not isinstance(v, bool) else v),
    AfterValidator(_node),
]
DatabaseUrl = Annotated[str, AfterValidator(_database)]
FileUrl = Annotated[str, AfterValidator(_file_url)]
Token = Annotated[str, AfterValidator(_token)]
StorageName = Annotated[str, AfterValidator(_storage_name)]


def without_password(url: str) -> str:
    """Return the address without its user, password and options."""
    url = re.sub(r"(?s)(://|^(?!.*://)).*@", r"\1***@", url)
    url = re.sub(
        r"://([^/?@:]*):(?![0-9]+([/?]|$))[^/?@]*", r"://\1:***", url
    )  # a password without its @
    return re.sub(r"(?s)\?.*", "?***", url)


_PORTS = {"s3": (80, 443), "hdfs": (8020, 8020)}


def _url(value: str) -> str:
    parts = urlsplit(value)
    try:
        usable = (
            parts.scheme in _PORTS and parts.hostname and parts.path.strip("/") and parts.port != 0
        )
    except ValueError:  # a port that is none
        usable = False
    if not usable or parts.query or parts.username:
        raise ValueError("must read s3://host:port/bucket or hdfs://host:port/folder")
    if parts.scheme == "s3" and not re.fullmatch(
        r"/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?", parts.path
    ):
        raise ValueError("must name a bucket and nothing below it: s3://host:port/bucket")
    return value


def _data_node(value: str) -> str:
    host, _, port = value.rpartition(":")
    try:
        usable = 0 < int(port) < 65536 and bool(
            ipaddress.IPv4Network(host, strict=False) if "/" in host else host
        )
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must read address:port or addresses/bits:port, such as 10.0.8.0/24:9866")
    return value


DataNode = Annotated[str, AfterValidator(_data_node)]


class RemoteSettings(Section):
    """A storage elsewhere."""

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="s3://host:port/bucket or hdfs://host:port/folder.",
        examples=["s3://10.0.0.5:9000/joint"],
    )
    username: str = Field(default="", description="Access key of S3; user of HDFS.")
    password: str = Field(
        default="", description="Secret key of S3: better in password_file, or in the environment."
    )
    password_file: Path | None = Field(
        default=None, description="File with the secret key of S3 and nothing else."
    )
    tls: bool = Field(default=False, description="S3 by https.")
    region: str = Field(
        default="us-east-1", description="Region of S3; most servers of one's own ignore it."
    )
    addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Where S3 has the bucket: path: host/bucket, virtual: bucket.host, as OSS, COS and OBS want "
        "it; auto: path, unless the server says that it takes virtual only.",
    )
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
            raise ValueError(
                "s3 needs username, and password_file (or password by the environment)"
            )
        if self.kind == "hdfs" and (
            self.password
            or self.password_file
            or self.role
            or self.tls
            or self.addressing != "auto"
        ):
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


class PeerTls(Section):
    """PEM files; they are read at the start."""

    certificate: Path = Field(description="PEM file of this node's certificate, with its chain.")
    key: Path = Field(description="PEM file of its key, without a password.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of peers' certificates; null: peers need not show one.",
    )

    revoked: Path | None = Field(
        default=None,
        description="File of revocation lists signed by client_ca, PEM or DER; read again when it changes.",
    )

    @property
    def identity(self) -> Identity:
        """The same as routes have it."""
        ca = str(self.client_ca) if self.client_ca is not None else None
        return Identity(ca, str(self.certificate), str(self.key))
