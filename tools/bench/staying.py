"""A component that writes what it sends with its messages into a folder, and stays."""

import json
import os
import sys
import time
from pathlib import Path

environment = os.environ
file = Path(sys.argv[1], environment["config.self_role"])
part = file.with_name(file.name + ".part")
part.write_text(
    json.dumps(
        {
            "x-ptp-session-id": environment["config.session_id"],
            "x-ptp-token": environment["config.token"],
        }
    )
)
part.replace(file)
time.sleep(3600)
