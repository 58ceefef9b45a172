"""A component that FATE-Flow starts as a process of its own: it reports its start and its end.

Like FATE's components it reads ``FATE_TASK_CONFIG`` and reports to FATE-Flow's worker path.
Parameters: ``lasts`` (seconds), ``fails_at`` (a role) and ``fails`` (how many processes fail at
that role), ``register`` (a folder for counting them).
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml


def main() -> None:
    if "entrypoint" not in sys.argv:
        return  # a call to clean up
    config = yaml.safe_load(os.environ["FATE_TASK_CONFIG"])
    earlier = register_start(config)
    report(config, "running")
    if not wait_while_server_runs(float(config["parameters"].get("lasts", 0))):
        return
    report(config, "failed" if must_fail(config, earlier) else "success")


def register_start(config: Any) -> int:
    """Register this process; return the number of earlier ones of its task."""
    register = Path(config["parameters"]["register"])
    name = f"{config['job_id']}.{config['task_name']}"
    earlier = len(list(register.glob(f"{name}.*")))
    (register / f"{name}.{os.getpid()}").touch()
    return earlier


def report(config: Any, status: str) -> None:
    """Report a status to FATE-Flow and print its response."""
    server = config["mlmd"]["metadata"]
    path = f"{server['api_version']}/worker/task/status"
    request = urllib.request.Request(
        f"{server['protocol']}://{server['host']}:{server['port']}/{path}",
        json.dumps({"execution_id": config["party_task_id"], "status": status}).encode(),
        {"content-type": "application/json"},
    )
    print(
        urllib.request.urlopen(request, timeout=60).read().decode(),
        flush=True,
    )


def wait_while_server_runs(seconds: float) -> bool:
    """Wait; return False as soon as FATE-Flow has died, which does not end its processes."""
    server = os.getppid()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.getppid() != server:
            return False
        time.sleep(0.1)
    return True


def must_fail(config: Any, earlier: int) -> bool:
    """Return whether this process fails, after so many earlier ones."""
    parameters = config["parameters"]
    is_failing_role = parameters.get("fails_at") == config["role"]
    return is_failing_role and earlier < int(parameters.get("fails", 1))


if __name__ == "__main__":
    main()
