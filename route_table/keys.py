"""The keys of an entry: a row of `KEYS` each, with its meaning and the reader of its value."""

from collections.abc import Mapping
from dataclasses import dataclass

from route_table import readers
from route_table.model import (
    BUNDLES,
    DEFAULT_DEADLINE,
    DEFAULT_PARALLEL,
    DEFAULT_PROFILE,
    DIAL,
    NODE_ID,
    PROFILES,
    REACHED,
    SEALING,
    SIGNING,
)
from route_table.proxies import PROXY_RULE
from route_table.rates import RATE_RULE, read_rate
from route_table.readers import MAX_DEADLINE, MAX_PARALLEL, SCHEMES, Reader


@dataclass(frozen=True)
class Key:
    """A key of an entry."""

    about: str  # its meaning, as the operators' API and ``docs/routes.md`` show it
    reader: Reader | None = None  # None for URLs, which `entries` reads with the whole address
    of_one_node: bool = False  # True: the default route cannot have it


_BOOLEAN = Reader(readers.read_boolean, "must be true or false")
_PEM_FILE = Reader(readers.matching(readers.FILE), "must be the path of a PEM file")

KEYS: Mapping[str, Key] = {
    "host": Key(
        "host name or address",
        Reader(
            readers.read_host,
            "must be a host name or an address, without scheme, port or path",
        ),
    ),
    "port": Key(
        "1 to 65535",
        Reader(readers.read_port, "must be a whole number from 1 to 65535"),
    ),
    "scheme": Key(
        "http (default) or https",
        Reader(readers.read_scheme, f"must be one of {', '.join(SCHEMES)}"),
    ),
    "url": Key("in place of host and port; may have a path prefix"),
    "transport": Key(
        "URL of the peer's transport layer (messages of containers); by gRPC: "
        "grpc://host:port, with TLS grpcs://; default: the same address"
    ),
    "profile": Key(
        f"the peer's dialect; default {DEFAULT_PROFILE}",
        readers.one_of(PROFILES),
    ),
    "institution": Key(
        "id of who owns the node",
        Reader(readers.matching(NODE_ID), "must be an id: letters, digits and . _ : @ - inside"),
        of_one_node=True,
    ),
    "deadline": Key(
        (
            "seconds that the creation or the start of a job may take with all its tries, and a "
            f"message at most; default {DEFAULT_DEADLINE:g}, for the start 60"
        ),
        Reader(
            readers.read_deadline,
            f"must be a number of seconds above 0, at most {MAX_DEADLINE:g}",
        ),
    ),
    "enabled": Key(
        "false keeps the entry and does not use it",
        _BOOLEAN,
    ),
    "via": Key(
        "in place of an address: the node that requests are handed to, to be passed on",
        Reader(readers.matching(NODE_ID), "must be the id of the node that passes on"),
    ),
    "dial": Key(
        (
            "out: this node opens links to the node and keeps them, and needs no open port; "
            "requests pass over them in both directions"
        ),
        readers.one_of(DIAL),
        of_one_node=True,
    ),
    "reached": Key(
        (
            "by-link: in place of an address, for a node that opens links to this one (dial: out "
            "there)"
        ),
        readers.one_of(REACHED),
        of_one_node=True,
    ),
    "relay": Key(
        (
            "true: this node passes requests on between the entry's node and every other node "
            "whose entry has relay: true; default false"
        ),
        _BOOLEAN,
    ),
    "parallel": Key(
        (
            "connections that carry a long message to the node together, 1 to "
            f"{MAX_PARALLEL}; more are faster over a long line that loses packets; default "
            f"{DEFAULT_PARALLEL}"
        ),
        Reader(readers.read_parallel, f"must be a whole number from 1 to {MAX_PARALLEL}"),
    ),
    "bandwidth": Key(
        (
            "bytes per second that are exchanged with the node in each direction, such as 20MB; "
            "default: limits.partner_bandwidth of the node's configuration"
        ),
        Reader(read_rate, RATE_RULE),
    ),
    "ca": Key(
        "PEM file of the authorities that may have signed the peer's certificate",
        _PEM_FILE,
    ),
    "certificate": Key(
        "PEM file of the certificate that is shown to the peer, with its chain",
        _PEM_FILE,
    ),
    "key": Key(
        "PEM file of that certificate's key, without a password",
        _PEM_FILE,
    ),
    "server_name": Key(
        "the name that the peer's certificate must bear; default: the host",
        Reader(readers.read_server_name, "must be a host name or an address"),
    ),
    "proxy": Key(
        "HTTP proxy that opens tunnels to the node (CONNECT), as http://user@host:port",
        Reader(readers.read_proxy, PROXY_RULE),
    ),
    "proxy_password": Key(
        "file with the password of the proxy's user and nothing else",
        Reader(readers.matching(readers.FILE), "must be the path of a file"),
    ),
    "peer_certificate": Key(
        (
            "what the certificate that the node connects with must bear: a subject alternative "
            "name or sha256:DIGEST of its public key; several separated by commas; default: the "
            "node id"
        ),
        Reader(
            readers.read_certificate_names,
            "must be subject alternative names or sha256:<64 hexadecimal digits>, separated by "
            "commas",
        ),
        of_one_node=True,
    ),
    "keys": Key(
        "public keys that sign the node's requests: in PEM form, or base64 separated by commas",
        Reader(
            readers.public_keys,
            "must be public keys for Ed25519, ECDSA on P-256, RSA with 2048 bits or more, or SM2 "
            "(where Python has OpenSSL 3), PEM or base64",
        ),
        of_one_node=True,
    ),
    "signing": Key(
        (
            "required, accepted or off; default: required with keys; without keys the node's "
            "requests are refused, unless a client certificate proves them or only this machine "
            "can send any"
        ),
        readers.switch_among(SIGNING),
    ),
    "bundles": Key(
        "required or accepted: whether the node's jobs need a signed bundle; default: accepted",
        readers.one_of(BUNDLES),
    ),
    "sealing_key": Key(
        "public key to which messages for the node are sealed: in PEM form, or base64",
        Reader(
            readers.read_sealing_key,
            "must be one public key for X25519, or SM2 (where Python has OpenSSL 3), PEM or base64",
        ),
        of_one_node=True,
    ),
    "sealing": Key(
        (
            "required, accepted or off: whether containers' messages are sealed end to end; "
            "default: accepted with sealing_key, else off"
        ),
        readers.switch_among(SEALING),
    ),
    "control_sealing": Key(
        (
            "required, accepted or off: whether the bodies of control requests (jobs, tasks, "
            "reports) and of their responses are sealed end to end, too; default: off"
        ),
        readers.switch_among(SEALING),
    ),
    "components": Key(
        (
            "the components that may run here in the node's jobs, as provider/name with * for "
            "anything, separated by commas; default: all"
        ),
        Reader(
            readers.list_of(readers.COMPONENT),
            "must be patterns such as unionpay/*, separated by commas",
        ),
        of_one_node=True,
    ),
}
# Keys by subject; ``url`` and ``transport`` are in none of the lists. OPTIONS are ``via``, and the
# keys that an entry may have with any kind of address.
ADDRESS_KEYS = ("host", "port", "scheme")
TLS_KEYS = ("ca", "certificate", "key", "server_name")
PROXY_KEYS = ("proxy", "proxy_password")
OPTIONS = [
    key for key in KEYS if key not in ("url", "transport", *ADDRESS_KEYS, *TLS_KEYS, *PROXY_KEYS)
]
OF_ONE_NODE = [name for name, key in KEYS.items() if key.of_one_node]
