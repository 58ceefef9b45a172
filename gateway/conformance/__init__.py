"""The conformance kit: does a vendor's image keep the container contract? Runs without a gateway.

A trial starts containers and records what they do (`sandbox`, `loopback`); judging that is pure (`evidence`,
`clauses`). Nothing here knows the store, the use cases or the settings of a node.
"""
