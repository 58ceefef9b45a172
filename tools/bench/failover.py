"""Measures how soon the second gateway of a node takes over a job of the first one."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e import jobs
from tests.e2e.nodes import wait_for
from tests.e2e.two_gateways import shared_node

_TASK_SECONDS = 2.0  # duration of the task that runs while the gateway dies
_TIMEOUT = 60.0  # seconds for the start of the containers of a task
_POLL_INTERVAL = 0.01  # seconds
_PARTIES = 2  # each writes a file into the register when its container starts


def failover() -> float:
    """Return the seconds from the death of a gateway until the next task of its job runs.

    The duration of the task that is running at that time does not count.
    """
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        shared_node(Path(folder), f"bench_{os.getpid()}") as (first, _, host),
    ):
        register = Path(folder) / "register"
        register.mkdir()
        host.stop()
        host.settings["node"] = {
            "id": jobs.HOST,
            "coordinator": jobs.GUEST,
        }
        host.start()
        body = jobs.job_of(
            register,
            {"a": _TASK_SECONDS, "b": 0.1},
            {"b": "a"},
        )
        body["config"]["initiator"] = {
            "role": "guest",
            "node_id": jobs.HOST,
        }
        body["config"]["role"] = {
            "guest": [jobs.HOST],
            "host": [jobs.HOST],
        }
        host.submit(body)
        _wait_for_starts(register, _PARTIES)
        start = time.monotonic()
        first.kill()
        _wait_for_starts(register, 2 * _PARTIES)
        return max(time.monotonic() - start - _TASK_SECONDS, 0.0)


def _wait_for_starts(register: Path, count: int) -> None:
    """Wait until ``count`` containers have started."""

    def have_started() -> bool:
        return len(list(register.iterdir())) == count

    wait_for(have_started, _TIMEOUT, _POLL_INTERVAL)
