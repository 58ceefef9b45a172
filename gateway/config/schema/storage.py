"""The sections ``database``, ``storage``, ``storages`` and ``data``."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, model_validator

from gateway.config.values import (
    COMMAND_OF_SECRET,
    DEFAULT_STORAGE,
    FILE_OF_SECRET,
    LARGEST_PORT,
    DatabaseUrl,
    FileUrl,
    HttpUrl,
    Section,
    is_complete_url,
    require,
    require_one_source,
)

# Usual ports of each kind of storage: without TLS, with TLS.
_PORTS = {
    "s3": (80, 443),
    "hdfs": (8020, 8020),
}
# The path of an address of S3: a bucket's name by Amazon's rules, and perhaps a final slash.
_BUCKET = r"/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?"


class Database(Section):
    """The database with all state that must survive a restart; several gateways of a node may
    share one.
    """

    url: DatabaseUrl = Field(
        default="sqlite:///var/gateway.db",
        description="SQLAlchemy address: sqlite:///path, mysql+pymysql://user@host/database or "
        "postgresql+psycopg://user@host/database (extra postgres).",
    )
    password_file: Path | None = Field(
        default=None,
        description="File with the password of the database and nothing else, of mode 0600.",
    )
    password_command: list[str] = Field(
        default_factory=list,
        description="Program and arguments that print the password of the database within 10 s.",
    )

    @model_validator(mode="after")
    def _one_password(self) -> "Database":
        """Refuse two passwords, and one for a database without a user."""
        require_one_source(self, "password")
        if self.password_file is None and not self.password_command:
            return self
        # A password in the URL may come from the environment, which takes precedence.
        require(
            urlsplit(self.url).username,
            "password_file and password_command need the user in url: "
            "mysql+pymysql://user@host/database",
        )
        return self


class Storage(Section):
    """The node's tables, models and reports."""

    url: FileUrl | None = Field(
        default=None,
        description="Folder of tables, models and reports: file:///path; default: var/storage "
        "next to this file.",
    )
    stand_in: Literal["file", "none"] = Field(
        default="file",
        description="file: this folder also serves components whose storageEngine lists none of "
        "this node's storages; none: jobs with such a component are refused (STORAGE_MISMATCH).",
    )

    @property
    def path(self) -> Path:
        """The folder of tables, models and reports; below the working folder if nothing is set."""
        return Path((self.url or DEFAULT_STORAGE).removeprefix("file://"))


def _storage_url(value: str) -> str:
    """Check the address of a storage elsewhere; user and password have settings of their own."""
    parts = urlsplit(value)
    is_usable = parts.scheme in _PORTS and is_complete_url(value)
    has_more = any([parts.query, parts.username])
    require(
        is_usable and not has_more,
        "must read s3://host:port/bucket or hdfs://host:port/folder",
    )
    if parts.scheme == "s3":
        require(
            re.fullmatch(_BUCKET, parts.path),
            "must name a bucket and nothing below it: s3://host:port/bucket",
        )
    return value


def _data_node(value: str) -> str:
    """Check the address, or the range of IPv4 addresses, of DataNodes with their port.

    A single address may also be a name, so only a range is checked for its form.
    """
    host, _, port = value.rpartition(":")
    try:
        is_port = 0 < int(port) <= LARGEST_PORT
        if "/" in host:
            # strict=False: 10.0.8.1/24 is accepted for 10.0.8.0/24
            ipaddress.IPv4Network(host, strict=False)
    except ValueError:
        is_port = False
    require(
        is_port and host,
        "must read address:port or addresses/bits:port, such as 10.0.8.0/24:9866",
    )
    return value


DataNode = Annotated[str, AfterValidator(_data_node)]


class RemoteSettings(Section):
    """A storage elsewhere."""

    url: Annotated[str, AfterValidator(_storage_url)] = Field(
        description="s3://host:port/bucket or hdfs://host:port/folder.",
        examples=["s3://10.0.0.5:9000/joint"],
    )
    username: str = Field(default="", description="Access key of S3; user of HDFS.")
    password: str = Field(
        default="",
        description="Secret key of S3; only by the environment, else password_file or "
        "password_command.",
    )
    password_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    password_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )
    tls: bool = Field(default=False, description="S3 by https.")
    region: str = Field(
        default="us-east-1", description="Region of S3; most servers of one's own ignore it."
    )
    addressing: Literal["auto", "path", "virtual"] = Field(
        default="auto",
        description="Where S3 has the bucket: path: host/bucket, virtual: bucket.host, as OSS, COS "
        "and OBS want it; auto: path, unless the server says that it takes virtual only.",
    )
    role: str = Field(
        default="",
        description="Role of S3 that the node assumes for each run, so that the run gets "
        "credentials that end and open nothing but its inputs and outputs; empty: see share_key.",
    )
    share_key: bool = Field(
        default=False,
        description="Whether runs without credentials of their own (S3 without role, HDFS) get the "
        "node's, which open the whole storage; false: such runs are refused "
        "(STORAGE_KEY_NOT_SHARED).",
    )

    principal: str = Field(
        default="",
        description="Kerberos principal of this node at HDFS; with keytab and web, each run gets a "
        "delegation token of its own.",
        examples=["bfia/gw.bank.example@BANK.EXAMPLE"],
    )
    keytab: Path | None = Field(
        default=None,
        description="File with the key of that principal, of mode 0600.",
    )
    web: HttpUrl | None = Field(
        default=None,
        description="Address of WebHDFS at the NameNode, where the node gets delegation tokens.",
        examples=["http://namenode.bank.example:9870"],
    )

    datanodes: list[DataNode] = Field(
        default_factory=list,
        description="Addresses of the DataNodes, as address:port or addresses/bits:port: "
        "containers on Docker's closed network can reach these and the NameNode.",
        examples=[["10.0.8.0/24:9866"]],
    )

    @model_validator(mode="after")
    def _fits_kind(self) -> "RemoteSettings":
        """Check the settings of S3 and of HDFS, which have only the address and user in common.

        S3 needs an access key.
        """
        require_one_source(self, "password")
        has_secret = any([self.password, self.password_file, self.password_command])
        if self.kind == "s3":
            require(
                self.username and has_secret,
                "s3 needs username, and password_file or password_command (or password by the "
                "environment)",
            )
            settings_of_hdfs = [self.datanodes, *self._kerberos]
            require(
                not any(settings_of_hdfs),
                "s3 has no datanodes, principal, keytab and web",
            )
        else:
            settings_of_s3 = [has_secret, self.role, self.tls, self.addressing != "auto"]
            require(
                not any(settings_of_s3),
                "hdfs takes url, username, share_key, datanodes, principal, keytab and web only",
            )
            require(
                all(self._kerberos) or not any(self._kerberos),
                "principal, keytab and web belong together",
            )
        return self

    @property
    def _kerberos(self) -> list[object]:
        """The settings of HDFS with Kerberos."""
        return [self.principal, self.keytab, self.web]

    @property
    def user(self) -> str:
        """The user of HDFS: by default, the principal's name without host and realm."""
        return self.username or re.split("[/@]", self.principal)[0]

    @property
    def serves_runs(self) -> bool:
        """Whether runs get credentials: each its own, or all the node's."""
        return any([self.role, self.principal, self.share_key])

    @property
    def parts(self) -> SplitResult:
        """The parsed address."""
        return urlsplit(self.url)

    @property
    def kind(self) -> str:
        """The kind of storage: s3 or hdfs."""
        return self.parts.scheme

    @property
    def port(self) -> int:
        """The port; without one in the address, the usual one of the kind."""
        plain, encrypted = _PORTS[self.kind]
        if self.tls:
            return self.parts.port or encrypted
        return self.parts.port or plain


class Data(Section):
    """Sources of uploads, and the use of uploaded data."""

    roots: list[Path] = Field(
        default_factory=list,
        description="Folders from which data may be uploaded by server path; empty: no upload by "
        "server path.",
    )
    grants: Literal["open", "listed"] = Field(
        default="open",
        description="open: an uploaded dataset without any grant serves jobs with every node; "
        "listed: with none. Outputs of jobs always need a grant. `init` writes listed.",
    )
    max_upload_bytes: int = Field(
        default=16 * 1024**3,
        gt=0,
        description="Largest uploaded file, in bytes.",
    )
