"""The nodes of an institution, by the institutions that the routes name."""

from route_table.model import RouteTable


def nodes_of(table: RouteTable, institution: str) -> tuple[str, ...]:
    """Return the nodes with an enabled entry that belong to an institution; none for "".

    A node also counts as an institution of its own name, since peers commonly use the node's id for
    both.
    """
    if not institution:
        return ()
    nodes = []
    for node, route in table.routes.items():
        if table.knows(node) and institution in (route.institution, node):
            nodes.append(node)
    return tuple(nodes)
