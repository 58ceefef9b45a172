"""Types of single settings with their checks: addresses, ids, secrets, names."""

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from gateway.domain.events import NAMES
from route_table.model import NODE_ID, switch_word
from route_table.model import NODE_RULE as RULE_OF_NODES
from route_table.proxies import HOST_RULE, PROXY_RULE, is_host, is_proxy
from route_table.rates import read_rate


class Section(BaseModel):
    """A part of the configuration: keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def require(is_met: object, rule: str) -> None:
    """Raise `ValueError` with the text of a rule that a setting does not meet.

    Pydantic reports the error as a problem with the setting's path. ``is_met`` counts by its truth,
    so that it may also be the match of a regular expression.
    """
    if not is_met:
        raise ValueError(rule)


# Descriptions of the settings that stand for a secret.
FILE_OF_SECRET = "File with that secret and nothing else, of mode 0600."
COMMAND_OF_SECRET = (
    "Program and arguments that print that secret within 10 s, such as those of a vault's client."
)


def require_one_source(section: BaseModel, name: str) -> None:
    """Raise `ValueError` for a secret with both a file and a command.

    ``name`` is that of the secret's setting; the others end with ``_file`` and ``_command``. The
    setting itself may be set, too: it takes precedence, as a variable of the environment does.
    """
    has_both = getattr(section, f"{name}_file") and getattr(section, f"{name}_command")
    require(not has_both, f"{name}_file and {name}_command exclude each other")


# The rule for node ids in messages: with an example in the form of the standard's institutions.
NODE_RULE = f"{RULE_OF_NODES}, such as JG0100001100000010"

DEFAULT_STORAGE = "var/storage"  # below the configuration file's folder
LARGEST_PORT = 65535

# SQLAlchemy's names of the supported drivers of MySQL and MariaDB, and of PostgreSQL.
_SERVERS = ("mysql+pymysql", "postgresql+psycopg")
_ENCODED = (
    "must have its user and password percent-encoded: write %40 for @, %3A for :, %2F for /, %3F "
    "for ?, %23 for #, %5B for [, %5D for ] and %25 for %"
)


def _bind(value: str) -> str:
    """Check the address and port of a listener.

    The address may also be a name. Only the start shows whether this machine has the address.
    """
    host, _, port = value.rpartition(":")
    is_port = port.isdecimal() and int(port) <= LARGEST_PORT
    require(host and is_port, "must read <address>:<port>, such as 127.0.0.1:7380")
    return value


def _network(value: str) -> str:
    """Check an address or a network such as 10.1.0.0/16."""
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError("must be an address or a network, such as 10.1.0.0/16") from error
    return value


def _proxy(value: str) -> str:
    """Check the URL of an HTTP proxy."""
    require(is_proxy(value), PROXY_RULE)
    return value


def _direct(value: str) -> str:
    """Check a host that is reached without the proxy."""
    require(is_host(value), HOST_RULE)
    return value


def _http(value: str) -> str:
    """Check an address for http or https; return it without a final slash.

    Paths are appended to the address, and each begins with a slash of its own.
    """
    parts = urlsplit(value)
    is_http = parts.scheme in ("http", "https")
    require(is_http and parts.hostname, "must be an http:// or https:// address")
    return value.rstrip("/")


def is_https_or_local(value: str) -> bool:
    """Return whether requests to a URL are protected from readers on the way.

    True for https, and for http within this machine. False for a text that is not a URL.
    """
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError:
        return False
    if not host:
        return False
    is_local = parts.scheme == "http" and is_loopback(host)
    return is_local or parts.scheme == "https"


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address in digits.

    False for every name, even localhost: a name can resolve to any address.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _private(value: str) -> str:
    """Check an address with protected requests (see `is_https_or_local`); drop its final slash."""
    require(
        is_https_or_local(value),
        "must be an https:// address (http:// only with a loopback address)",
    )
    return value.rstrip("/")


def _database(value: str) -> str:
    """Check the address of a database; return it with the short name of SQLite.

    Raises `ValueError`, whose text does not repeat the address: it may contain a password.
    """
    # SQLite's default driver may also be named in full.
    url = re.sub(r"^sqlite\+pysqlite:", "sqlite:", value)
    if url.startswith("sqlite:"):
        is_file = re.fullmatch(r"sqlite:///(?!:memory:$)[^?]+", url)
        require(is_file, "must name a file: sqlite:///path, without options")
    else:
        _check_server(url)
    return url


def _check_server(url: str) -> None:
    """Raise `ValueError` for any address that is not one of a server with all its parts."""
    scheme, _, rest = url.partition("://")
    is_server = scheme in _SERVERS
    is_complete = is_complete_url(url)
    if is_server:
        require(not _is_badly_encoded(rest, is_complete), _ENCODED)
    require(
        is_server and is_complete,
        "must read sqlite:///path, mysql+pymysql://user:password@host:port/database or "
        "postgresql+psycopg://user:password@host:port/database",
    )


def is_complete_url(url: str) -> bool:
    """Return whether an address has a host and a path, and its port, if any, is possible."""
    try:
        parts = urlsplit(url)
        return all([parts.hostname, parts.path.strip("/"), parts.port != 0])
    except ValueError:  # a port that is not a number or too large, or an invalid host
        return False


def _is_badly_encoded(rest: str, is_complete: bool) -> bool:
    """Return whether a user or password contains delimiters that must be percent-encoded.

    - ``rest``: the address without its scheme
    - ``is_complete``: host and path could be read; then only a second ``@`` shows such a delimiter
    """
    if is_complete:
        before_options, _, _ = rest.partition("?")
        return before_options.count("@") > 1
    # User and password are the part before the last "@"; the part is "" without one.
    user_and_password, _, _ = rest.rpartition("@")
    must_be_encoded = re.search(r"[@/?#\[\]]|[^\x00-\x7f]", user_and_password)
    return must_be_encoded is not None


def _file_url(value: str) -> str:
    """Check the address of the node's own storage: an absolute folder."""
    require(
        value.startswith("file://"),
        "must be file:///path; s3:// and hdfs:// go into storages: {lake: {url: …}}",
    )
    require(
        value.startswith("file:///"),
        "must be file:// and an absolute path: file:///path",
    )
    return value


def _storage_name(value: str) -> str:
    """Check the name of a storage or of an engine; addresses and messages contain it."""
    require(
        re.fullmatch(r"[a-z][a-z0-9_]{0,31}", value),
        "a name must begin with a letter and have at most 32 characters: a-z, 0-9 and _",
    )
    require(value != "file", "file is the name of the folder that every node has")
    return value


def _token(value: str) -> str:
    """Refuse the placeholder of the example configuration as a token.

    The length is checked by `gateway.config.schema.access.Auth`.
    """
    require(
        not value.lower().startswith("change-me"),
        "is still the example's; put one of your own, such as from: openssl rand -hex 24",
    )
    return value


def is_node(value: str) -> bool:
    """Return whether a text can be a node's id.

    It must also fit into addresses, headers and the route tables of partners.
    """
    return NODE_ID.fullmatch(value) is not None


def _node(value: str) -> str:
    """Check the id of a node; the message shows its form, with an example."""
    require(is_node(value), NODE_RULE)
    return value


def _event(value: str) -> str:
    """Check the name of an event that webhooks can receive; the message lists all names."""
    require(value in NAMES, f"must be among {', '.join(NAMES)}")
    return value


def _number_as_text(value: object) -> object:
    """Return a number as text, since YAML reads an id of digits as a number.

    Other values, also true and false, stay and are refused as ids.
    """
    if type(value) is int:  # isinstance would accept true and false, too
        return str(value)
    return value


def _rate(value: object) -> int:
    """Return a rate in bytes per second, written as a number or with a unit."""
    return read_rate(str(value))


# A setting of one of these types is checked, and possibly normalised, by the function named in it;
# pydantic reports its `ValueError` as the problem of the setting.
Bind = Annotated[str, AfterValidator(_bind)]
DirectHost = Annotated[str, AfterValidator(_direct)]
ProxyUrl = Annotated[str, AfterValidator(_proxy)]
Rate = Annotated[int, BeforeValidator(_rate)]
NetworkName = Annotated[str, AfterValidator(_network)]
EventName = Annotated[str, AfterValidator(_event)]
HttpUrl = Annotated[str, AfterValidator(_http)]
PrivateUrl = Annotated[str, AfterValidator(_private)]
NodeName = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_node)]
DatabaseUrl = Annotated[str, AfterValidator(_database)]
FileUrl = Annotated[str, AfterValidator(_file_url)]
Token = Annotated[str, AfterValidator(_token)]
# Before a setting with the word off or on: takes true, yes, false and no for these words, too.
Switch = BeforeValidator(switch_word)
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
