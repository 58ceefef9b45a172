"""Loops, executors, clocks, metrics: what runs beside any job."""
