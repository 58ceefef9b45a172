"""A component that FATE-Flow starts as a process of its own: says that it runs, then how it ended.

It is told by ``FATE_TASK_CONFIG`` as FATE's components are, and reports to FATE-Flow's worker path. Parameters:
``lasts`` seconds, ``fails_at`` a role, ``fails`` so many times where it fails, ``register`` a folder for that.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

import yaml


def main() -> None:
    if "entrypoint" not in sys.argv:
        return  # asked to clean up
    told = yaml.safe_load(os.environ["FATE_TASK_CONFIG"])
    wanted, at = told["parameters"], told["mlmd"]["metadata"]
    address = f"{at['protocol']}://{at['host']}:{at['port']}/{at['api_version']}/worker/task/status"

    def say(status: str) -> None:
        body = json.dumps({"execution_id": told["party_task_id"], "status": status}).encode()
        request = urllib.request.Request(address, body, {"content-type": "application/json"})
        print(urllib.request.urlopen(request, timeout=60).read().decode(), flush=True)

    register, mark = Path(wanted["register"]), f"{told['job_id']}.{told['task_name']}"
    before = len(list(register.glob(f"{mark}.*")))
    (register / f"{mark}.{os.getpid()}").touch()
    say("running")
    server, end = os.getppid(), time.monotonic() + float(wanted.get("lasts", 0))
    while time.monotonic() < end:
        if os.getppid() != server:
            return  # FATE-Flow is gone, which does not end what it started
        time.sleep(0.1)
    fails = wanted.get("fails_at") == told["role"] and before < int(wanted.get("fails", 1))
    say("failed" if fails else "success")


if __name__ == "__main__":
    main()
