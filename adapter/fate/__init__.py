"""FATE-Flow 2.2's native protocol, between nodes (``/v2/partner``, ``/v2/scheduler``).

This package and ``adapter/bfia`` never import each other. Requests of FATE's own workers to their
FATE-Flow (``/v2/worker``) get a refusal that says what to use instead.
"""
