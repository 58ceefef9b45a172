"""The step of a route's test that shows the links to a node."""

from collections.abc import Sequence

from gateway.domain.links.states import LinkState, NodeLinks
from gateway.domain.spec import NodeId
from gateway.runtime import trials
from gateway.runtime.trials import Step


def link_step(node: NodeId, links: NodeLinks) -> Step:
    """Return the outcome for a node that dials in: whether a link of it stands."""
    if not links.standing:
        return trials.failed(
            _with_last_failure(f"this partner dials in, and no link of {node} stands", links),
            "start its gateway and set dial: out in its route to this node; its log says why it "
            "cannot dial",
        )
    return trials.ok(f"this partner dials in: {_description(links.standing)}")


def dialled_step(
    me: NodeId,
    connected: str,
    links: NodeLinks,
) -> Step:
    """Return the outcome for a node that this one dials: whether a link stands.

    ``connected``: the address at which a connection was opened for the test.
    """
    if not links.standing:
        return trials.failed(
            _with_last_failure(f"no link stands, so that the partner cannot call {me}", links),
            f"have its admin set reached: by-link and keys in its route to {me}; this node's log "
            "says why the link is refused",
            connected,
        )
    count = len(links.standing)
    return trials.ok(f"{connected}; {count} links, over which the partner calls this node")


def _description(links: Sequence[LinkState]) -> str:
    """Return how many links stand, since when, from where and at which other gateways."""
    since = f"{links[0].since:%Y-%m-%d %H:%M:%S}"
    addresses = ", ".join(sorted({link.address for link in links}))
    text = f"{len(links)} links since {since} UTC, from {addresses}"
    gateways = sorted({link.gateway for link in links if link.gateway})
    if gateways:
        text += f", also at this node's gateway {', '.join(gateways)}"
    return text


def _with_last_failure(text: str, links: NodeLinks) -> str:
    """Return a text with the cause for which the last link failed, if one has failed."""
    failure = links.last_failure
    if failure is None:
        return text
    return f"{text}; the last one at {failure.at:%Y-%m-%d %H:%M:%S} UTC: {failure.cause}"
