"""Builds a node from its settings; the only package that sees everything."""
