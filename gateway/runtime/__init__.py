"""Loops, lanes, liveness, metrics: the machinery that all jobs share."""
