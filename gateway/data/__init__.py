"""Datasets, files, outputs, logs and models of this node."""
