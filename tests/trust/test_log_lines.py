"""What others send ends no line of the log and steers no terminal, in either form of the log."""

import subprocess
import sys

LOGS = """
import structlog
from gateway.cli.serve import configure_logs
for form in ("text", "json"):
    configure_logs(form)
    structlog.get_logger("gateway").warning("refused", action="POST /x\\n2026-11-23 [info] approved\\x1b[31m")
"""


def test_what_others_send_stays_in_its_line():
    said = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True).stderr
    text, as_json = said.splitlines()
    assert as_json.startswith("{") and not text.startswith("{")
    assert said.count("approved") == 2 and "\x1b" not in said
