"""The machine of a run, and how much other work disturbs it."""

import os
import platform
import statistics
import subprocess
import time
from dataclasses import dataclass

_REPETITIONS = 40
_SUMMANDS = 300_000  # of the calculation, which takes some milliseconds
_PERCENTILE = 0.9


@dataclass(frozen=True)
class Machine:
    """The machine of a run, and its state at the beginning."""

    cores: int | None
    architecture: str
    versions: str  # of Python and Docker
    load: float  # of the last minute
    noise: float

    @property
    def english(self) -> str:
        """The machine as the English pages name it."""
        state = f"load {self.load:.1f}, noise {self.noise:.2f}"
        return f"{self.cores} cores ({self.architecture}, {self.versions}, {state})"

    @property
    def chinese(self) -> str:
        """The machine as the Chinese pages name it."""
        versions = self.versions.replace(", ", "，")
        state = f"负载 {self.load:.1f}，干扰 {self.noise:.2f}"
        return f"{self.cores} 核机器（{self.architecture}，{versions}，{state}）"


def this_machine() -> Machine:
    """Return the machine with its present load and noise."""
    docker = subprocess.run(
        ["docker", "version", "-f", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    docker_version = ".".join(docker.stdout.strip().split(".")[:2])
    python_version = ".".join(platform.python_version_tuple()[:2])
    return Machine(
        cores=os.cpu_count(),
        architecture=platform.machine(),
        versions=f"Python {python_version}, Docker {docker_version}",
        load=os.getloadavg()[0],
        noise=noise(),
    )


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
