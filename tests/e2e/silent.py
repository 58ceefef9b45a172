"""A component for tests that reports nothing: waits, leaves its outputs or not, and exits with a code."""

import json
import os
import sys
import time
import urllib.parse
from pathlib import Path

told = dict(os.environ)
wanted = {k.removeprefix("runtime.component.parameter."): v for k, v in told.items() if ".parameter." in k}
(Path(wanted["register"]) / f"{wanted['name']}.{told['config.self_role']}.{os.getpid()}").touch()
while not os.path.exists(wanted.get("until", "/")):
    time.sleep(0.02)
time.sleep(float(wanted["lasts"]))
if wanted.get("leaves", "True") == "True":
    storage = Path(urllib.parse.urlsplit(told["system.storage"]).path)
    for address in (json.loads(v) for k, v in told.items() if k.startswith("runtime.component.output.")):
        table = storage / address["namespace"] / address["name"]
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("id,x\n1,2\n")
print("last words", flush=True)
sys.exit(int(wanted.get("code", "0")))
