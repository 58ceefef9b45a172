"""Node id -> where and how that node is reached.

This package knows nothing of the gateway; its libraries are ``yaml``, ``ruamel.yaml`` and
``cryptography``.
"""
