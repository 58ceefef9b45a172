"""What of a route's entry is said on the command line, and how it becomes the entry's keys."""

from typing import Annotated, Any

import typer

from gateway.cli.inputs import finite
from route_table.model import PROFILES

RouteUrl = Annotated[str, typer.Option("--to", help="Address of its gateway, such as https://gw.example:7380.")]
Via = Annotated[str, typer.Option(help="In place of an address: id of the node that passes requests on.")]
Relay = Annotated[
    bool | None, typer.Option("--relay/--no-relay", help="Whether this node passes on what is from it or for it.")
]
Profile = Annotated[str, typer.Option(help=f"Its dialect: {', '.join(PROFILES)}.")]
Institution = Annotated[str, typer.Option(help="Who owns it.")]
Deadline = Annotated[
    float | None,
    typer.Option(
        help="Seconds that one call may take; default: as it was, or 10.",
        callback=finite(above=0),
        show_default=False,
    ),
]
Ca = Annotated[str, typer.Option(help="PEM file on the node's machine: authorities of its certificate.")]
Certificate = Annotated[str, typer.Option(help="PEM file on the node's machine: the certificate shown to it.")]
Key = Annotated[str, typer.Option(help="PEM file on the node's machine: the key of that certificate.")]
ServerName = Annotated[str, typer.Option(help="Name that its certificate must bear, where that is not the host.")]
PeerCertificate = Annotated[
    str,
    typer.Option(
        help="What the certificate that it connects with must bear: a subject alternative name or sha256:DIGEST "
        "of its public key; default: its node id."
    ),
]
Components = Annotated[
    str, typer.Option(help='What it may have run here, such as "unionpay/*, reference/*"; default: everything.')
]
Unset = Annotated[
    list[str] | None, typer.Option(help="Key of the entry to take away, such as ca; may be repeated.")
]


def given(
    to: str,
    via: str,
    relay: bool | None,
    profile: str,
    institution: str,
    deadline: float | None,
    ca: str,
    certificate: str,
    key: str,
    server_name: str,
    peer_certificate: str,
    components: str,
) -> dict[str, Any]:
    """Return the keys of an entry that were given."""
    values = {
        "url": to,
        "via": via,
        "profile": profile,
        "institution": institution,
        "deadline": deadline,
        "ca": ca,
        "certificate": certificate,
        "key": key,
        "server_name": server_name,
        "peer_certificate": peer_certificate,
        "components": components,
    }
    found: dict[str, Any] = {name: value for name, value in values.items() if value}
    return found if relay is None else found | {"relay": relay}
