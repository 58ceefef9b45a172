"""A component that adds one to the number in its input cache and writes it to its output cache.

It runs as a container: standard library only, all values come from its environment.
"""

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path

environment = dict(os.environ)
storage = Path(urllib.parse.urlsplit(environment["system.storage"]).path)


def cache_file(kind: str) -> Path | None:
    """Return the file of the ``input`` or ``output`` cache, None if the task has none."""
    text = environment.get(f"runtime.component.{kind}.counted")
    if not text:
        return None
    address = json.loads(text)
    return storage / address["namespace"] / address["name"] / "data_0"


def report_success() -> None:
    body = {
        "task_id": environment["config.task_id"],
        "role": environment["config.self_role"],
        "status": "SUCCESS",
    }
    request = urllib.request.Request(
        environment["system.callback"],
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).read()


input_file = cache_file("input")
output_file = cache_file("output")
assert output_file is not None
count = 1
if input_file is not None:
    count = int(input_file.read_text()) + 1
output_file.parent.mkdir(
    parents=True,
    exist_ok=True,
)
output_file.write_text(str(count))
report_success()
