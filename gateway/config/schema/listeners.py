"""The sections ``node`` and ``listen``: who this node is, and the addresses at which it serves."""

from pathlib import Path

from pydantic import Field, model_validator

from gateway.config.values import Bind, HttpUrl, NetworkName, NodeName, Section, require
from route_table.model import Identity


class Node(Section):
    """Identity of this node."""

    id: NodeName = Field(description="Id of this node, as peers and jobs name it.")
    institution: str = Field(
        default="", description="Id of the institution that owns it; default: the node's id."
    )
    coordinator: str = Field(
        default="", description="Node that schedules the jobs submitted here; default: this node."
    )

    @property
    def scheduler(self) -> str:
        """The node that schedules the jobs submitted here."""
        return self.coordinator or self.id


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


class Listener(Section):
    """A listener of this node: the address that it binds, and the address that clients use."""

    bind: Bind = Field(description="Address and port to listen on.")
    advertise: HttpUrl | None = Field(default=None, description="Address at which others reach it.")


class PeerListener(Listener):
    """The listener for other nodes."""

    tls: PeerTls | None = Field(
        default=None, description="Certificate for https; null: plain http."
    )
    trusted_proxies: list[NetworkName] = Field(
        default_factory=list,
        description="Addresses or networks of reverse proxies that end TLS and hand on the "
        "client's certificate in the header client-cert. With them, other requests are refused.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "PeerListener":
        """Require https in the advertised address of a listener with TLS, and one end of TLS."""
        if self.tls is not None and self.advertise is not None:
            require(
                self.advertise.startswith("https://"),
                "advertise must begin with https:// while tls is set",
            )
        has_both = all([self.trusted_proxies, self.client_ca])
        require(
            not has_both,
            "trusted_proxies and tls.client_ca exclude each other: a proxy would show its own "
            "certificate",
        )
        return self

    @property
    def asks_for_certificate(self) -> bool:
        """Whether every request needs a client certificate, shown here or at a trusted proxy."""
        return any([self.trusted_proxies, self.client_ca])

    @property
    def client_ca(self) -> Path | None:
        """The file of the authorities of clients' certificates; None if clients show none."""
        return getattr(self.tls, "client_ca", None)


class OperatorListener(Section):
    """The listener for this node's people and platform."""

    bind: Bind = Field(
        default="127.0.0.1:7382", description="Address and port of the operator's interface."
    )
    advertise: HttpUrl | None = Field(
        default=None,
        description="Address at which people reach it, for links to the console; partners that "
        "speak FATE's protocol see it as board_url.",
    )


class Listen(Section):
    """Three listeners in one process: for peers, for this node's containers, for its operators."""

    peer: PeerListener = Field(
        default=PeerListener(bind="0.0.0.0:7380"), description="For other nodes."
    )
    container: Listener | None = Field(
        default=Listener(bind="127.0.0.1:7381"),
        description="For this node's containers; null serves them on the peer listener, by token "
        "only.",
    )
    operator: OperatorListener = Field(
        default=OperatorListener(), description="For this node's own platform."
    )
