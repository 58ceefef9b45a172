"""Readers of the values of an entry's keys, which are texts in its document."""

import ipaddress
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from route_table.certificates import public_key, sealing_key
from route_table.model import BOOLEAN_WORDS, switch_word
from route_table.proxies import PROXY

SCHEMES = {"http": 80, "https": 443}  # scheme -> its default port, which a route's URL leaves out
MAX_DEADLINE = 3600.0  # seconds
MAX_PARALLEL = 7  # so that a receiver has room for the parts which overtake another one
FILE = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
COMPONENT = re.compile(r"[^\s,/]{1,200}/[^\s,/]{1,200}|\*")

_MAX_HOST = 253  # characters of a host name
_MAX_PORT = 65535
# Forms of hosts; _LABEL is a part of a host name.
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4_ADDRESS = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
# A name that ends in a number is not a host name but a mistyped IPv4 address.
_HOST_NAME = rf"(?:{_LABEL}\.)*(?![0-9]+\.?\Z){_LABEL}\.?"
_HOST = re.compile(rf"(?!.{{{_MAX_HOST + 1}}})(?:{_IPV4_ADDRESS}|{_HOST_NAME})")
_IN_BRACKETS = re.compile(r"\A\[(.*)\]\Z", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?")
# A name or the pin of a key in a certificate, in lower case.
_CERTIFICATE_NAME = re.compile(r"sha256:[0-9a-f]{64}|(?!sha256:)[\x21-\x2b\x2d-\x7e]{1,500}")
_PORT = re.compile(r"[0-9]{1,5}")
_SCHEME = re.compile("|".join(SCHEMES))
# Separates public keys: a comma, or a line of PEM around a key.
_KEY_ENDS = re.compile(r",|-----(?:BEGIN|END) PUBLIC KEY-----")


class Reader(NamedTuple):
    """Reads the text of a key: ``read`` raises `ValueError` for a text that breaks the ``rule``."""

    read: Callable[[str], Any]
    rule: str


def public_keys(text: str) -> tuple[str, ...]:
    """Return the public keys in a text, in PEM or in base64 with commas, all as base64.

    Raises `ValueError` if one of them cannot be used, or if there are none.
    """
    keys = []
    for part in _KEY_ENDS.split(text):
        key = re.sub(r"\s", "", part)
        if key:
            public_key(key)  # only for its `ValueError`
            keys.append(key)
    if not keys:
        raise ValueError
    return tuple(keys)


def read_sealing_key(text: str) -> str:
    """Return the public key in a text, in PEM or base64, as base64.

    Raises `ValueError` unless the text has exactly one key that messages can be sealed to.
    """
    parts = [re.sub(r"\s", "", part) for part in _KEY_ENDS.split(text)]
    (key,) = filter(None, parts)
    sealing_key(key)  # only for its `ValueError`
    return key


def one_of(words: Collection[str]) -> Reader:
    """Return the reader of a value that is one of several words."""
    pattern = re.compile("|".join(words))
    return Reader(matching(pattern), f"must be one of {', '.join(words)}")


def switch_among(words: Collection[str]) -> Reader:
    """Return the reader of one of several words, one of which is off.

    YAML's other words for false are read as off.
    """
    reader = one_of(words)

    def read(text: str) -> str:
        return str(reader.read(switch_word(text)))

    return Reader(read, reader.rule)


def matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Return a function that reads text which a pattern matches as a whole.

    Like all readers here, it raises `ValueError` for any other text.
    """

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError
        return text

    return read


def list_of(pattern: re.Pattern[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads texts separated by commas, each matched by a pattern."""
    read_item = matching(pattern)

    def read(text: str) -> tuple[str, ...]:
        return tuple(read_item(item.strip()) for item in text.split(","))

    return read


def read_host(text: str) -> str:
    """Return a host in its normal form, see `normal_host`.

    Raises `ValueError` for a text that is neither a host name nor an IP address.
    """
    host = normal_host(text)
    if not host:
        raise ValueError
    return host


def normal_host(text: str) -> str:
    """Return a host as URLs have it: lower case, IPv6 in brackets; "" if it is not valid.

    The brackets of an IPv6 address may be missing in ``text``.
    """
    if ":" in text:
        return _normal_ipv6_address(_IN_BRACKETS.sub(r"\1", text))
    if not _HOST.fullmatch(text):
        return ""
    return text.lower()


def _normal_ipv6_address(text: str) -> str:
    """Return an IPv6 address in brackets and in its shortest form; "" if it is not valid.

    An address with a zone, such as fe80::1%eth0, is not valid: it means nothing on another machine.
    """
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ""
    return "" if address.scope_id else f"[{address.compressed}]"


def read_server_name(text: str) -> str:
    """Return a host as it is spelled.

    Raises `ValueError` as `read_host` does.
    """
    read_host(text)
    return text


def read_port(text: str) -> int:
    """Return the number of a port.

    Raises `ValueError` for 0, a number above `_MAX_PORT` and a text with other characters.
    """
    port = int(matching(_PORT)(text))
    if not 1 <= port <= _MAX_PORT:
        raise ValueError
    return port


def read_scheme(text: str) -> str:
    """Return http or https, which the text may spell in upper or lower case.

    Raises `ValueError` for any other scheme.
    """
    return matching(_SCHEME)(text.lower())


def read_deadline(text: str) -> float:
    """Return a number of seconds above 0.

    Raises `ValueError` for 0, for more than `MAX_DEADLINE`, and for a text with a sign or exponent.
    """
    seconds = float(matching(_NUMBER)(text))
    if not 0 < seconds <= MAX_DEADLINE:
        raise ValueError
    return seconds


def read_parallel(text: str) -> int:
    """Return a number of connections.

    Raises `ValueError` for 0, for more than `MAX_PARALLEL`, and for a text with other characters.
    """
    number = int(matching(_WHOLE)(text))
    if not 1 <= number <= MAX_PARALLEL:
        raise ValueError
    return number


def read_boolean(text: str) -> bool:
    """Return the truth value of a word of YAML 1.1, in upper or lower case.

    Raises `ValueError` for any other word.
    """
    value = BOOLEAN_WORDS.get(text.lower())
    if value is None:
        raise ValueError
    return value


def read_certificate_names(text: str) -> tuple[str, ...]:
    """Return names and pins of certificates in lower case, in which they are compared.

    Raises `ValueError` for an empty name, and for a pin without its 64 digits.
    """
    return list_of(_CERTIFICATE_NAME)(text.lower())


def read_proxy(text: str) -> str:
    """Return the URL of a proxy.

    Raises `ValueError` for any other text, and for a URL with a password: it belongs into a file.
    """
    match = PROXY.fullmatch(text)
    if match is None:
        raise ValueError
    read_host(match["host"])
    read_port(match["port"])
    return text
