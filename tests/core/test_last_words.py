"""What a container that fails leaves to be read: its vendor's words and its last lines."""

from pathlib import Path

from tests.cli.test_jobs import cli
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running

SCRIPT = """
for i in $(seq 150); do echo "line $i"; done
echo '{"result_code": "00000000", "message": "bye"}'
exit 7
"""


def test_the_vendors_message_and_the_last_lines_are_in_the_view(tmp_path: Path):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sh", "-c", SCRIPT]}}}}
    with running(tmp_path, engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        failure = node.store.jobs.get(job_id).ending.failure
        assert failure.reason == "EXIT_7" and failure.exit_code == 7
        assert "00000000" in failure.message and "ok" in failure.message  # the description's text for the code
        runs = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}").json()["runs"]
        ended = next(r for r in runs if r["exit"] and r["exit"]["code"] == 7)
        assert len(ended["last_lines"]) == 100
        assert ended["last_lines"][0] == "line 52" and "bye" in ended["last_lines"][-1]


def test_last_words_that_say_nothing_change_nothing(tmp_path: Path):
    command = ["/bin/sh", "-c", "echo '[1]'; exit 3"]
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": command}}}}
    with running(tmp_path, engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        assert node.store.jobs.get(job_id).ending.failure.message == "exit code 3"


def test_a_program_that_is_not_there_is_told_with_what_the_code_means_and_its_last_lines(tmp_path: Path):
    command = ["/bin/sh", "-c", "exec env python9 run"]
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": command}}}}
    with running(tmp_path, engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        failure = node.store.jobs.get(job_id).ending.failure
        assert failure.reason == "EXIT_127" and "interpreter" in failure.message
        shown = cli(node, "show", job_id).stdout
        assert "interpreter" in shown and "python9" in shown and "last lines of" in shown
