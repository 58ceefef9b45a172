"""The transport channel of a node: mailboxes in sessions, kept on disk until they are read.

Only ``gateway.errors``, the standard library and ``anyio`` are imported here;
transport and wire format are elsewhere.
"""

from gateway.broker.broker import Broker
from gateway.broker.session import (
    BrokerLimits,
    BufferFull,
    Message,
    PartsMissing,
    SessionReleased,
    Usage,
    Waiting,
)

__all__ = [
    "Broker",
    "BrokerLimits",
    "BufferFull",
    "Message",
    "PartsMissing",
    "SessionReleased",
    "Usage",
    "Waiting",
]
