"""Route tables meant to hurt: each is read or refused, within bounds of memory and time."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_table_takes_long_or_much():
    command = [sys.executable, "-m", "tests.routes.hostile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    taken = {name: found for name, found in said.items() if isinstance(found, int)}
    assert taken == {"10,000 routes": 10_000, "a chain of all": 20_000}
    assert "must not hold more than 200000 values" in said["every route with every key"]
    assert all("characters" in said[name] for name in ("a long url", "a long host", "a long number"))
    assert "leads in a circle" in said["a circle of all"]
