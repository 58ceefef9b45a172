"""What others send ends no line of the log and steers no terminal, in either form of the log."""

import subprocess
import sys

import pytest

LOGS = """
import structlog
from gateway.cli.serve import configure_logs
configure_logs({form!r})
structlog.get_logger("gateway").warning("refused", action="POST /x\\n2026-11-23 [info] approved\\x1b[31m")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_others_send_stays_in_its_line(form: str):
    said = subprocess.run(
        [sys.executable, "-c", LOGS.format(form=form)], capture_output=True, text=True, check=True
    ).stderr
    assert said.count("\n") == 1 and "approved" in said and "\x1b" not in said
