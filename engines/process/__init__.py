"""Runs images as local processes."""
