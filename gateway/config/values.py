"""Types of single settings with their checks: addresses, ids, secrets, storages, TLS files."""

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


# The rule for node ids in messages: with an example in the form of the standard's institutions.
NODE_RULE = f"{RULE_OF_NODES}, such as JG0100001100000010"

DEFAULT_STORAGE = "var/storage"  # below the configuration file's folder
LARGEST_PORT = 65535

_MYSQL = "mysql+pymysql"  # SQLAlchemy's name of the only supported driver of MySQL and MariaDB
_ENCODED = (
    "must have its user and password percent-encoded: write %40 for @, %3A for :, %2F for /, %3F "
    "for ?, %23 for #, %5B for [, %5D for ] and %25 for %"
)


def _bind(value: str) -> str:
    """Check the address and port of a listener."""
    host, _, port = value.rpartition(":")
    is_port = port.isdecimal() and int(port) <= LARGEST_PORT
    if not host or not is_port:
        raise ValueError("must read <address>:<port>, such as 127.0.0.1:7380")
    return value


def _http(value: str) -> str:
    """Check an address for http or https; return it without a final slash."""
    parts = urlsplit(value)
    is_http = parts.scheme in ("http", "https")
    if not is_http or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    return value.rstrip("/")


def is_private(value: str) -> bool:
    """Return whether requests to an address are protected from readers on the way.

    True for https, and for http within this machine. False for anything that is not an address.
    """
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    return parts.scheme == "http" and _is_loopback(host)


def _is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address in digits; a name, even localhost, is none."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _private(value: str) -> str:
    """Check an address with protected requests (see `is_private`); drop its final slash."""
    if not is_private(value):
        raise ValueError("must be an https:// address (http:// only with a loopback address)")
    return value.rstrip("/")


def _database(value: str) -> str:
    """Check the address of a database; return it with the short name of SQLite.

    Raises `ValueError`, whose text does not repeat the address: it may contain a password.
    """
    if value.startswith("sqlite+pysqlite:"):  # the same driver by its long name
        value = "sqlite:" + value.removeprefix("sqlite+pysqlite:")
    if value.startswith("sqlite:"):
        _check_sqlite(value)
    else:
        _check_mysql(value)
    return value


def _check_sqlite(url: str) -> None:
    """Raise `ValueError` for an address of SQLite that does not name a file."""
    is_file = re.fullmatch(r"sqlite:///[^?]+", url)
    if not is_file or url == "sqlite:///:memory:":
        raise ValueError("must name a file: sqlite:///path, without options")


def _check_mysql(url: str) -> None:
    """Raise `ValueError` for any address that is not one of MySQL with all its parts."""
    scheme, _, rest = url.partition("://")
    is_mysql = scheme == _MYSQL
    is_complete = _is_complete(url)
    if is_mysql and _is_badly_encoded(rest, is_complete):
        raise ValueError(_ENCODED)
    if not is_mysql or not is_complete:
        raise ValueError(
            "must read sqlite:///path or mysql+pymysql://user:password@host:port/database"
        )


def _is_complete(url: str) -> bool:
    """Return whether an address has a host and a path, and its port, if any, is possible."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.path.strip("/") and parts.port != 0)
    except ValueError:  # a port that is not a number or too large, or an invalid host
        return False


def _is_badly_encoded(rest: str, is_complete: bool) -> bool:
    """Return whether a user or password contains delimiters that must be percent-encoded.

    - ``rest``: the address without its scheme
    - ``is_complete``: host and path could be read; then only an ``@`` too many gives it away
    """
    before_options, _, _ = rest.partition("?")
    if before_options.count("@") > 1:
        return True
    if is_complete:
        return False
    return rest.count("@") > 1 or _has_delimiter_in_password(rest)


def _has_delimiter_in_password(rest: str) -> bool:
    """Return whether user or password contain a character that must be encoded.

    ``rest`` is an address without its scheme; user and password are the part before its last ``@``.
    """
    user_and_password, at, _ = rest.rpartition("@")
    if not at:
        return False
    return not user_and_password.isascii() or re.search(r"[/?#\[\]]", user_and_password) is not None


def _file_url(value: str) -> str:
    """Check the address of the node's own storage: an absolute folder."""
    if not value.startswith("file://"):
        raise ValueError(
            "must be file:///path; s3:// and hdfs:// go into storages: {lake: {url: …}}"
        )
    if not value.startswith("file:///"):
        raise ValueError("must be file:// and an absolute path: file:///path")
    return value


def _storage_name(value: str) -> str:
    """Check the name of a storage or engine, which addresses and messages contain."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", value):
        raise ValueError(
            "a storage's name must have a-z, 0-9 and _, begin with a letter, at most 32 of them"
        )
    if value == "file":
        raise ValueError("file is the name of the folder that every node has")
    return value


def _token(value: str) -> str:
    """Check a token: the placeholder of the example configuration is refused."""
    if value.lower().startswith("change-me"):
        raise ValueError(
            "is still the example's; put one of your own, such as from: openssl rand -hex 24"
        )
    return value


def is_node(value: str) -> bool:
    """Return whether a text can be a node's id.

    It must also fit into addresses, headers and the route tables of partners.
    """
    return NODE_ID.fullmatch(value) is not None


def _node(value: str) -> str:
    """Check the id of a node."""
    if not is_node(value):
        raise ValueError(NODE_RULE)
    return value


def _event(value: str) -> str:
    """Check the name of an event that webhooks can receive."""
    if value not in NAMES:
        raise ValueError(f"must be among {', '.join(NAMES)}")
    return value


def _number_as_text(value: object) -> object:
    """Return a number as text, since YAML reads an id of digits as a number.

    Other values, also true and false, stay and are refused as ids.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number:
        return str(value)
    return value


# A setting of one of these types is checked, and possibly normalised, by the function named in it;
# pydantic reports its `ValueError` as the problem of the setting.
Bind = Annotated[str, AfterValidator(_bind)]
EventName = Annotated[str, AfterValidator(_event)]
HttpUrl = Annotated[str, AfterValidator(_http)]
PrivateUrl = Annotated[str, AfterValidator(_private)]
NodeName = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_node)]
DatabaseUrl = Annotated[str, AfterValidator(_database)]
FileUrl = Annotated[str, AfterValidator(_file_url)]
Token = Annotated[str, AfterValidator(_token)]
StorageName = Annotated[str, AfterValidator(_storage_name)]


def without_password(url: str) -> str:
    """Return an address with its user, password and options replaced by ``***``.

    The text may be an invalid address: where a password is only likely, it is replaced, too.
    """
    # Everything between :// (or the beginning, without a scheme) and the last @.
    without_user = re.sub(r"(?s)(://|^(?!.*://)).*@", r"\1***@", url)
    # "user:password" without an @, unless the part after the colon is a port.
    without_any = re.sub(r"://([^/?@:]*):(?![0-9]+([/?]|$))[^/?@]*", r"://\1:***", without_user)
    return re.sub(r"(?s)\?.*", "?***", without_any)


# Usual ports of each kind of storage: without TLS, with TLS.
_PORTS = {
    "s3": (80, 443),
    "hdfs": (8020, 8020),
}
# The path of an address of S3: a bucket's name by Amazon's rules, and perhaps a final slash.
_BUCKET = r"/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?"


def _storage_url(value: str) -> str:
    """Check the address of a storage elsewhere; user and password have settings of their own."""
    parts = urlsplit(value)
    is_usable = parts.scheme in _PORTS and _is_complete(value)
    has_more = bool(parts.query or parts.username)
    if not is_usable or has_more:
        raise ValueError("must read s3://host:port/bucket or hdfs://host:port/folder")
    is_bucket = re.fullmatch(_BUCKET, parts.path)
    if parts.scheme == "s3" and not is_bucket:
        raise ValueError("must name a bucket and nothing below it: s3://host:port/bucket")
    return value


def _data_node(value: str) -> str:
    """Check the address, or the range of IPv4 addresses, of DataNodes with their port."""
    host, _, port = value.rpartition(":")
    try:
        is_port = 0 < int(port) <= LARGEST_PORT
        if "/" in host:
            # strict=False: 10.0.8.1/24 is accepted for 10.0.8.0/24
            ipaddress.IPv4Network(host, strict=False)
    except ValueError:
        is_port = False
    if not is_port or not host:
        raise ValueError("must read address:port or addresses/bits:port, such as 10.0.8.0/24:9866")
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
        description="Where S3 has the bucket: path: host/bucket, virtual: bucket.host, as OSS, COS "
        "and OBS want it; auto: path, unless the server says that it takes virtual only.",
    )
    role: str = Field(
        default="",
        description="Role of S3 that the node assumes for each run, so that the run gets "
        "credentials that end and open nothing but its inputs and outputs; empty: runs get the "
        "node's own key.",
    )

    datanodes: list[DataNode] = Field(
        default_factory=list,
        description="Addresses of the DataNodes, as address:port or addresses/bits:port: "
        "containers on Docker's closed network can reach these and the NameNode.",
        examples=[["10.0.8.0/24:9866"]],
    )

    @model_validator(mode="after")
    def _fits_kind(self) -> "RemoteSettings":
        """Check the settings of S3 and of HDFS, which have only the address and user in common."""
        if self.kind == "s3":
            self._check_s3()
        else:
            self._check_hdfs()
        return self

    def _check_s3(self) -> None:
        """Raise `ValueError` for S3 without an access key or with settings of HDFS."""
        has_secret = self.password or self.password_file
        if not self.username or not has_secret:
            raise ValueError(
                "s3 needs username, and password_file (or password by the environment)"
            )
        if self.datanodes:
            raise ValueError("s3 has no datanodes")

    def _check_hdfs(self) -> None:
        """Raise `ValueError` for HDFS with settings of S3."""
        is_s3_setting_used = any((self.password, self.password_file, self.role, self.tls))
        if is_s3_setting_used or self.addressing != "auto":
            raise ValueError("hdfs takes url, username and datanodes only")

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
        usual = encrypted if self.tls else plain
        return self.parts.port or usual


class PeerTls(Section):
    """PEM files; they are read at the start."""

    certificate: Path = Field(description="PEM file of this node's certificate, with its chain.")
    key: Path = Field(description="PEM file of its key, without a password.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of peers' certificates; null: peers need not show "
        "one.",
    )

    revoked: Path | None = Field(
        default=None,
        description="File of revocation lists signed by client_ca, PEM or DER; read again when it "
        "changes.",
    )

    @property
    def identity(self) -> Identity:
        """The files in the type that routes use, whose checks of certificates apply here, too."""
        authorities = None
        if self.client_ca is not None:
            authorities = str(self.client_ca)
        return Identity(authorities, str(self.certificate), str(self.key))
