"""A component that counts on from the cache it is given, and leaves how far it came as its own cache."""

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path

told = dict(os.environ)
storage = Path(urllib.parse.urlsplit(told["system.storage"]).path)


def place(kind: str) -> Path | None:
    text = told.get(f"runtime.component.{kind}.counted")
    return (
        storage / json.loads(text)["namespace"] / json.loads(text)["name"] / "data_0"
        if text
        else None
    )


earlier = place("input")
made = place("output")
assert made is not None
made.parent.mkdir(parents=True, exist_ok=True)
made.write_text(str(int(earlier.read_text()) + 1 if earlier else 1))
body = {
    "task_id": told["config.task_id"],
    "role": told["config.self_role"],
    "status": "SUCCESS",
}
request = urllib.request.Request(
    told["system.callback"], json.dumps(body).encode(), {"content-type": "application/json"}
)
urllib.request.urlopen(request, timeout=30).read()
