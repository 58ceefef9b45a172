"""Providers, the components in their images, and the vendors' descriptions of them.

This package knows nothing of the gateway; its libraries are ``jsonschema`` and ``re2``.
"""
