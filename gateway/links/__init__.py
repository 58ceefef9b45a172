"""Links to partners: a node without an open port dials out, and both ends send requests over it.

See docs/network.md. The frames and the flow control are in `gateway.domain.links`.
"""
