"""Builds a node from its settings; the only package that knows all parts of the node."""
