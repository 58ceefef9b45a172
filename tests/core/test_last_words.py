"""What a container that fails leaves to be read: its vendor's words and its last lines."""

from pathlib import Path

import pytest

from tests.cli.test_jobs import cli
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running

SCRIPT = """
for i in $(seq 150); do echo "line $i"; done
echo '{"result_code": "00000000", "message": "bye"}'
exit 7
"""
"""its code has a text in the description"""


@pytest.mark.parametrize(
    ("script", "reason", "message", "last"),
    [
        (SCRIPT, "EXIT_7", "00000000", "bye"),
        ("echo '[1]'; exit 3", "EXIT_3", "exit code 3", "[1]"),
        ("exec env python9 run", "EXIT_127", "interpreter", "python9"),
    ],
)
def test_what_was_said_last_is_shown(tmp_path: Path, script: str, reason: str, message: str, last: str):
    command = ["/bin/sh", "-c", script]
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": command}}}}
    with running(tmp_path, engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        failure = node.store.jobs.get(job_id).ending.failure
        assert failure.reason == reason and message in failure.message
        assert ("ok" in failure.message) is (script is SCRIPT), "the description's text for the code"
        runs = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}").json()["runs"]
        lines = next(r["last_lines"] for r in runs if r["exit"] and f"EXIT_{r['exit']['code']}" == reason)
        assert last in lines[-1] and len(lines) <= 100
        if script is not SCRIPT:
            shown = cli(node, "show", job_id).stdout
            assert message in shown and "last lines of" in shown
