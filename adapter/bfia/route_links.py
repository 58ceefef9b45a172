"""The step of a route's test that shows the links to a node."""

from collections.abc import Sequence

from gateway.domain.spec import NodeId
from gateway.links.links import LinkState
from gateway.runtime import trials
from gateway.runtime.trials import Step


def link_step(node: NodeId, links: Sequence[LinkState]) -> Step:
    """Return the outcome for a node that dials in: whether a link of it stands."""
    if not links:
        return trials.failed(
            f"this partner dials in, and no link of {node} stands",
            "start its gateway and set dial: out in its route to this node; its log says why it "
            "cannot dial",
        )
    count = len(links)
    since = f"{min(link.since for link in links):%Y-%m-%d %H:%M:%S}"
    addresses = ", ".join(sorted({link.address for link in links}))
    return trials.ok(f"this partner dials in: {count} links since {since} UTC, from {addresses}")


def dialled_step(
    me: NodeId,
    connected: str,
    links: Sequence[LinkState],
) -> Step:
    """Return the outcome for a node that this one dials: whether a link stands.

    ``connected``: the address at which a connection was opened for the test.
    """
    if not links:
        return trials.failed(
            f"no link stands, so that the partner cannot call {me}",
            f"have its admin set reached: by-link and keys in its route to {me}; this node's log "
            "says why the link is refused",
            connected,
        )
    count = len(links)
    return trials.ok(f"{connected}; {count} links, over which the partner calls this node")
