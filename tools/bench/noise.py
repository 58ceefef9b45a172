"""The machine of a run, and how much other work disturbs it."""

import os
import platform
import statistics
import subprocess
import time

_REPETITIONS = 40
_SUMMANDS = 300_000  # of the calculation, which takes some milliseconds
_PERCENTILE = 0.9


def machine_name() -> str:
    """Return the machine as the pages name it: cores, versions, load and noise."""
    docker = subprocess.run(
        ["docker", "version", "-f", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    docker_version = ".".join(docker.stdout.strip().split(".")[:2])
    python_version = ".".join(platform.python_version_tuple()[:2])
    versions = f"Python {python_version}, Docker {docker_version}"
    load = os.getloadavg()[0]  # of the last minute
    state = f"load {load:.1f}, noise {noise():.2f}"
    return f"{os.cpu_count()} cores ({platform.machine()}, {versions}, {state})"


def noise() -> float:
    """Return the 90th percentile of the times of a calculation, by their median.

    On a machine without other work it is below 1.1.
    """
    times = sorted(_time_of_calculation() for _ in range(_REPETITIONS))
    return times[int(_PERCENTILE * _REPETITIONS)] / statistics.median(times)


def _time_of_calculation() -> float:
    start = time.perf_counter()
    sum(range(_SUMMANDS))
    return time.perf_counter() - start
