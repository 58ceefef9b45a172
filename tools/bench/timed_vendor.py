"""``timed_vendor.py FOLDER CODE``: the reference vendor, which records the times of its calls.

CODE is the folder of the vendor's package. A run writes a file with all its calls of the channel
into FOLDER.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])

from refvendor import transport_calls  # noqa: E402 - found by the path above
from refvendor.__main__ import main  # noqa: E402

# Verb, topic, and the times of begin and end.
calls: list[tuple[str, str, float, float]] = []
untimed_call = transport_calls.Caller.call


def timed_call(
    self: Any,
    verb: str,
    headers: Mapping[str, str],
    request: Any,
    hold_seconds: float = 0.0,
) -> Any:
    """Do a call and record its times; takes the place of `Caller.call`."""
    call_start = time.time()
    try:
        return untimed_call(self, verb, headers, request, hold_seconds)
    finally:
        calls.append((verb, request.topic, call_start, time.time()))


transport_calls.Caller.call = timed_call
start = time.time()
exit_code = main([])
environment = os.environ
record = {
    "component": environment["runtime.component.name"],
    "began": start,
    "ended": time.time(),
    "calls": calls,
}
file = folder / f"{environment['config.task_id']}.{environment['config.self_role']}"
file.write_text(json.dumps(record))
sys.exit(exit_code)
