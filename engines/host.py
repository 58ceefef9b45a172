"""What this machine has for the processes that this one starts."""

import os
from pathlib import Path

from engines.base import Capacity

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")


def this_machine() -> Capacity:
    """Return the cores that this process may use, and the memory of the machine or of its control group."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        bound = _CONTROL_GROUP.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        bound = ""
    if bound.isdecimal():
        memory = min(memory, int(bound))
    return Capacity(float(len(os.sched_getaffinity(0))), memory)
