"""Providers and the components in their images: what is registered, and what a description says.

This room knows nothing of the gateway. Its one library is ``jsonschema``.
"""
