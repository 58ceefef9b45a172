"""The links at each gateway of the node, for its other gateways."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import select

from gateway.domain.links.states import GatewayLinks, LinkFailure, LinkState, NodeLinks
from gateway.domain.spec import NodeId
from gateway.store import schema
from gateway.store.database import Database, InDatabase, repeat_on_conflict
from gateway.store.functions import now
from gateway.store.repositories import GATEWAY_TIMEOUT
from gateway.store.store import Store


def links_of_running_gateways(
    database: Database,
    besides: str = "",
) -> list[GatewayLinks] | None:
    """Return the links at the gateways whose heartbeat is recent; None if there are none.

    ``besides``: the name of a gateway that does not count.
    """
    gateway = schema.gateway.c
    query = select(
        gateway.owner,
        gateway.url,
        schema.link.c.node,
        schema.link.c.links,
    )
    query = query.join(
        schema.link,
        gateway.owner == schema.link.c.owner,
        isouter=True,
    )
    query = query.where(
        gateway.owner != besides,
        gateway.seen_at > now() - GATEWAY_TIMEOUT,
    )
    rows = database.rows(query)
    if not rows:
        return None
    with_links = [row for row in rows if row.node is not None]
    return [GatewayLinks(row.owner, row.url, row.node, _links(row.links)) for row in with_links]


class SqlLinkBoard(InDatabase):
    """Stores the links that end at this gateway, and reads those of the others.

    Implements `gateway.links.sharing.Board`.
    """

    def __init__(self, store: Store, gateway: str) -> None:
        """``gateway``: the name of this gateway."""
        super().__init__(store)
        self._gateway = gateway

    def clear(self) -> None:
        """Remove the links of an earlier process of this gateway."""
        self._database.execute(self._delete())

    def publish(self, links: Mapping[NodeId, NodeLinks]) -> None:
        """Replace the links of this gateway, by node."""
        rows = []
        for node, node_links in links.items():
            row = {
                "owner": self._gateway,
                "node": node,
                "links": _text(node_links),
            }
            rows.append(row)

        def write() -> None:
            with self._database.write() as connection:
                connection.execute(self._delete())
                if rows:
                    connection.execute(schema.link.insert(), rows)

        repeat_on_conflict(write)

    def elsewhere(self) -> Sequence[GatewayLinks]:
        """Return the links at the other gateways whose heartbeat is recent."""
        return links_of_running_gateways(self._database, self._gateway) or []

    def _delete(self) -> sa.Delete:
        """Return the statement that removes the links of this gateway."""
        return schema.link.delete().where(schema.link.c.owner == self._gateway)


def _text(links: NodeLinks) -> str:
    """Return the links of a node as JSON."""
    standing = []
    for link in links.standing:
        entry = {
            "since": link.since.isoformat(),
            "address": link.address,
            "dials_out": link.dials_out,
            "node": link.node,
        }
        standing.append(entry)
    content: dict[str, Any] = {"standing": standing}
    failure = links.last_failure
    if failure is not None:
        content["failed_at"] = failure.at.isoformat()
        content["cause"] = failure.cause
    return json.dumps(content)


def _links(text: str) -> NodeLinks:
    """Return the links of a node from their JSON."""
    content = json.loads(text)
    standing = []
    for entry in content["standing"]:
        since = datetime.fromisoformat(entry.pop("since"))
        standing.append(LinkState(since=since, **entry))
    if "cause" not in content:
        return NodeLinks(standing)
    failed_at = datetime.fromisoformat(content["failed_at"])
    return NodeLinks(standing, LinkFailure(failed_at, content["cause"]))
