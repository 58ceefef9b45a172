"""The further addresses of a checked node: for its containers, and for its operators."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, checked_token, content

if TYPE_CHECKING:
    from gateway.conformance.platforms.node import CheckedNode
    from gateway.conformance.platforms.operators import Operator


@dataclass(frozen=True)
class Side:
    """One further address of the node."""

    url: str
    token: str = ""  # empty: the requests bear none


@dataclass(frozen=True)
class Sides:
    """The further addresses of the node; None for one that is not known."""

    containers: Side | None
    operators: Side | None


def read_side(
    option: str,
    url: str,
    token_file: Path | None,
) -> Side | None:
    """Return the side that an option names; None without its address.

    ``option``: the name of the options without the end, such as ``--container``. Raises
    `CallFailed`, and `NotFit` for an unusable file.
    """
    if not url:
        if token_file is not None:
            raise CallFailed(f"{option}-token needs {option}-url", EXIT_BAD_INPUT)
        return None
    if not url.startswith(("http://", "https://")):
        text = f"{option}-url {url}: must begin with http:// or https://"
        raise CallFailed(text, EXIT_BAD_INPUT)
    if token_file is None:
        return Side(url)
    text = content(token_file).decode("utf-8", "replace")
    return Side(url, checked_token(text, str(token_file)))


def node_at(
    side: Side | None,
    node: "CheckedNode",
    rate: float,
    http: Any,
) -> "CheckedNode | None":
    """Return the node at a further address, for unsigned requests; None without one."""
    from gateway.conformance.platforms.node import CheckedNode, Identity

    if side is None:
        return None
    return CheckedNode(
        side.url,
        node.node_id,
        Identity(node.identity.node_id),
        node.evidence,
        per_second=rate,
        http=http,
    )


def operator_at(
    side: Side | None,
    node: "CheckedNode",
    rate: float,
    http: Any,
) -> "Operator | None":
    """Return the node's interface for its own platform; None without its address."""
    from gateway.conformance.platforms.operators import Operator

    at_side = node_at(side, node, rate, http)
    if side is None or at_side is None:
        return None
    return Operator(at_side, side.token)
