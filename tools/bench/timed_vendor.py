"""The reference vendor:

``timed_vendor.py FOLDER CODE`` writes when each of its calls of the channel was made.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

folder, code = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, code)

from refvendor import channel  # noqa: E402
from refvendor.__main__ import main  # noqa: E402

calls: list[tuple[str, str, float, float]] = []
call = channel.Caller.call


def timed(
    self: Any,
    verb: str,
    headers: Mapping[str, str],
    request: Any,
    hold_seconds: float = 0.0,
) -> Any:
    began = time.time()
    try:
        return call(self, verb, headers, request, hold_seconds)
    finally:
        calls.append((verb, request.topic, began, time.time()))


channel.Caller.call = timed
began = time.time()
exit_code = main([])
environment = os.environ
found = {
    "component": environment["runtime.component.name"],
    "began": began,
    "ended": time.time(),
    "calls": calls,
}
(folder / f"{environment['config.task_id']}.{environment['config.self_role']}").write_text(
    json.dumps(found)
)
sys.exit(exit_code)
