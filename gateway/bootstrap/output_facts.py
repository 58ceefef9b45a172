"""Builds what tells of outputs, and its path for other nodes."""

from adapter.bfia import outputs
from gateway.bootstrap.parts import Node
from gateway.data.outputs import OutputFacts
from gateway.http.app import Mounted
from gateway.ports import Limiters


def facts_of(node: Node) -> OutputFacts:
    """Return what tells this node's people, and its partners, what outputs are like."""
    return OutputFacts(
        node.settings.node.id,
        node.store,
        node.storage,
        node.datasets,
        node.sharing,
        lambda at, wanted: outputs.asked(node.protocol.peer(at), wanted),
        node.audit.add,
        node.wall,
    )


def for_peers(node: Node, facts: OutputFacts, limiters: Limiters) -> Mounted:
    """Return the path at which other nodes ask."""
    parts = outputs.OutputParts(facts, limiters, node.neighbours.profile_of, node.neighbours.knows)
    return Mounted(outputs.router(parts), node.settings.limits.body_bytes)
