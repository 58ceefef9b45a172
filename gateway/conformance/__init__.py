"""The conformance kit: does a vendor's image keep the container contract? Runs without a gateway.

A trial starts containers and records their requests and files (`sandbox`, `execution`, `loopback`);
judging the records is pure (`evidence`, `clauses`). No module here knows the store, the use cases
or the settings of a node.
"""
