"""A component that writes the headers of its messages into a folder, and keeps running."""

import json
import os
import sys
import time
from pathlib import Path

_SECONDS = 3600  # the measurement stops it earlier

environment = os.environ
file = Path(sys.argv[1], environment["config.self_role"])
part = file.with_name(file.name + ".part")
headers = {
    "x-ptp-session-id": environment["config.session_id"],
    "x-ptp-token": environment["config.token"],
}
part.write_text(json.dumps(headers))
part.replace(file)  # so that the file is complete as soon as it exists
time.sleep(_SECONDS)
