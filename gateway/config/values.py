"""What single values of the configuration must look like: addresses, ids, secrets."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from gateway.domain.events import NAMES
from route_table import document


class Section(BaseModel):
    """A part of the configuration: keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NODE_RULE = f"{document.NODE_RULE}, such as JG0100001100000010"

DEFAULT_STORAGE = "var/storage"
"""Beside the configuration file."""


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


def _database(value: str) -> str:
    if value.startswith("sqlite+pysqlite:"):  # the same by its longer name
        value = "sqlite:" + value.removeprefix("sqlite+pysqlite:")
    if value.startswith("sqlite:"):
        if not re.fullmatch(r"sqlite:///[^?]+", value) or value == "sqlite:///:memory:":
            raise ValueError("must name a file: sqlite:///path, without options")
        return value
    parts = urlsplit(value)
    try:
        usable = parts.scheme == "mysql+pymysql" and parts.hostname and parts.path.strip("/") and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable:
        raise ValueError("must read sqlite:///path or mysql+pymysql://user:password@host:port/database")
    return value


def _file_url(value: str) -> str:
    if not value.startswith("file://"):
        raise ValueError("must be file:///path; s3:// and hdfs:// go into storages: {lake: {url: …}}")
    if not value.startswith("file:///"):
        raise ValueError("must be file:// and an absolute path: file:///path")
    return value


def _storage_name(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", value):
        raise ValueError("a storage's name must have a-z, 0-9 and _, begin with a letter, at most 32 of them")
    if value == "file":
        raise ValueError("file is the name of the folder that every node has")
    return value


def _token(value: str) -> str:
    if value.lower().startswith("change-me"):
        raise ValueError("is still the example's; put one of your own, such as from: openssl rand -hex 24")
    return value


def is_node(value: str) -> bool:
    """Tell whether a node may be called so: what addresses, headers and partners' route tables can hold."""
    return document.NODE_ID.fullmatch(value) is not None


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
    return re.sub(r"(?s)\?.*", "?***", re.sub(r"(?s)://.*@", "://***@", url))
