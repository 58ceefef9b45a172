"""The conformance kit: does a vendor's image keep the container contract? Runs without a gateway.

Room rule: a trial starts containers and writes down what was seen of them (`sandbox`, `loopback`, `tap`); judging
that is pure (`judging`); the clauses are rows (`clauses`). Nothing here knows the store, the use cases or the
settings of a node.
"""
