"""The transport channel of a node: mailboxes in sessions, stored on disk until they are read.

Imports only ``gateway.errors``, the standard library and ``anyio``; transport and wire format are
elsewhere.
"""

from gateway.broker.broker import Broker
from gateway.broker.messages import (
    BrokerLimits,
    BufferFull,
    Message,
    PartsMissing,
    SessionReleased,
    TopicBacklog,
    Traffic,
    Usage,
)

__all__ = [
    "Broker",
    "BrokerLimits",
    "BufferFull",
    "Message",
    "PartsMissing",
    "SessionReleased",
    "TopicBacklog",
    "Traffic",
    "Usage",
]
