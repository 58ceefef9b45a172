"""The transport channel of a node: mailboxes in sessions, kept on disk until they are read.

Room rule: only ``gateway.errors``, the standard library and ``anyio`` are imported here, and nothing
here knows how a message travels or what a body looks like on the wire.
"""

from gateway.broker.broker import Broker
from gateway.broker.mailbox import BrokerLimits, BufferFull, Message, SessionReleased, Usage

__all__ = ["Broker", "BrokerLimits", "BufferFull", "Message", "SessionReleased", "Usage"]
