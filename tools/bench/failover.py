"""How long the second gateway of a node takes to go on with what the first one scheduled."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e import jobs
from tests.e2e.nodes import wait_for
from tests.e2e.two_gateways import shared_node


def failover() -> float:
    """Return the seconds from a gateway's death until the next task of its job runs, less the 2 s
    of this one.
    """
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        shared_node(Path(folder), f"bench_{os.getpid()}") as (first, _, host),
    ):
        register = Path(folder) / "register"
        register.mkdir()
        host.stop()
        host.settings["node"] = {"id": jobs.HOST, "coordinator": jobs.GUEST}
        host.start()
        body = jobs.job_of(register, {"a": 2, "b": 0.1}, {"b": "a"})
        body["config"]["initiator"] = {"role": "guest", "node_id": jobs.HOST}
        body["config"]["role"] = {"guest": [jobs.HOST], "host": [jobs.HOST]}
        host.submit(body)
        wait_for(lambda: len(list(register.iterdir())) == 2, 60, 0.01)
        began = time.monotonic()
        first.kill()
        wait_for(lambda: len(list(register.iterdir())) == 4, 60, 0.01)
        return max(time.monotonic() - began - 2.0, 0.0)
