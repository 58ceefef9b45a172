"""A vendor's program that does what the test writes into a file for its session and role, line by line.

The folder of those files is the first argument. An instruction is a JSON object: ``out`` and ``err`` are written
as they are, ``environment`` prints all variables, ``tell`` is reported by callback, ``exit`` ends with that code.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def main() -> None:
    told = dict(os.environ)
    script = Path(sys.argv[1], f"{told['config.session_id']}-{told['config.self_role']}.jsonl")
    while not script.exists():
        time.sleep(0.01)
    with script.open() as lines:
        rest = ""
        while True:
            rest += lines.readline()
            if rest.endswith("\n"):
                obey(json.loads(rest))
                rest = ""
            else:
                time.sleep(0.01)


def obey(order: dict[str, Any]) -> None:
    sys.stdout.write(order.get("out", "") * order.get("times", 1))
    sys.stderr.write(order.get("err", ""))
    if "environment" in order:
        sys.stdout.writelines(f"{name}={value}\n" for name, value in os.environ.items())
    sys.stdout.flush()
    sys.stderr.flush()
    if "tell" in order:
        env = os.environ
        said = {"task_id": env["config.task_id"], "role": env["config.self_role"], "status": order["tell"]}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(env["system.callback"], json.dumps(said).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    if "exit" in order:
        os._exit(order["exit"])


if __name__ == "__main__":
    main()
