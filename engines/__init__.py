"""Runs of algorithm images: the interface is `engines.base.Engine`. Nothing here knows of jobs."""
