"""FATE-Flow 2.2's native protocol: between nodes (``/v2/partner``, ``/v2/scheduler``) and for FATE's own tools.

A sibling of ``adapter/bfia``; the two never import each other. What FATE's own workers ask of their FATE-Flow
(``/v2/worker``) is answered, and not served.
"""
