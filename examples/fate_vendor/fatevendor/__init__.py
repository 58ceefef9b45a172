"""Runs FATE's published components, unchanged, as components of the interconnection standard."""
