"""Containers that report nothing: they ended as their exit code says, whatever became of their node meanwhile."""

import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import SCHEDULE, job_of
from tests.e2e.nodes import Federation, Node, alive, process_engine, wait_for

quiet = partial(job_of, silent=True)


def one_node(home: Path, command: list[str]) -> Federation:
    return Federation(home, [jobs.GUEST], process_engine("example:1.0.0", command=command))


def of_one_node(body: dict[str, Any]) -> dict[str, Any]:
    body["config"]["role"] = {"guest": [jobs.GUEST], "host": [jobs.GUEST]}
    return body


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose containers report nothing."""
    with one_node(tmp_path_factory.mktemp("silent"), jobs.component("patient.py")) as federation:
        federation[jobs.GUEST].register(A_PROVIDER)
        yield federation[jobs.GUEST]


def test_an_exit_code_counts_and_a_silent_success_too(silent: Node, register: Path):
    bodies = {
        "EXIT_1": quiet(register, {"a": 0}, code=1),
        "NO_CALLBACK": quiet(register, {"a": 0}, leaves=False),
        None: quiet(register, {"a": 0, "b": 0}, {"b": "a"}),
    }
    ids = {reason: silent.submit(of_one_node(body)) for reason, body in bodies.items()}
    for reason, job_id in ids.items():
        job = silent.wait_job(job_id, 60, outcome="FAILED" if reason else "SUCCEEDED")
        assert (job["failure"] or {}).get("reason") == reason
    job = silent.job(ids["EXIT_1"])
    assert job["failure"]["exit_code"] == 1
    log = silent.get(f"{SCHEDULE}/task/get_log", task_id=job["tasks"][0]["task_id"], log_level="info", start=0)
    assert "last words" in log["data"]["data"]


def test_containers_that_end_while_their_node_is_down_have_ended_as_they_did(silent: Node, register: Path):
    down = register.with_name("down")
    good = silent.submit(of_one_node(quiet(register, {"a": 0, "b": 0}, {"b": "a"}, until=str(down))))
    bad = silent.submit(of_one_node(quiet(register, {"c": 0}, code=3, until=str(down))))

    def there() -> list[int]:
        return [pid for task, pid in jobs.started(register) if task in "ac"]

    wait_for(lambda: len(there()) == 4, 60, 0.02)
    silent.kill()
    down.touch()
    wait_for(lambda: not any(map(alive, there())), 60, 0.05, "all containers have ended by themselves")
    silent.start()
    assert silent.wait_job(good, 60)["outcome"] == "SUCCEEDED"
    assert silent.wait_job(bad, 60, outcome="FAILED")["failure"]["reason"] == "EXIT_3"
    assert len(there()) == 4, "nothing was started again"


DYING = """
if [ -f "{register}/pid" ] && mkdir "{register}/there" 2>/dev/null
then while kill -0 "$(cat "{register}/pid")"; do sleep 0.01; done
fi
exec "{python}" "{component}"
"""
"""A component of which the first container waits for its gateway's death."""


def die_before_the_note(node: Node, there: Path) -> bool:
    """Kill the node once a container is there, and keep it from noting so; whether it had not done so before."""
    with closing(sqlite3.connect(node.home / "gateway.db", 30, isolation_level=None)) as disk:

        def states() -> set[str]:
            return {
                row[0] for row in disk.execute("select status from run where status not in ('SUCCESS', 'FAILED')")
            }

        wait_for(lambda: {"LAUNCHING", "RUNNING"} & states(), 60, 0.0005, "a container is to be started")
        disk.execute("begin immediate")  # from here on the node cannot write
        before = states()
        wait_for(there.is_dir, 60, 0.005, "a container is there")
        node.kill()
        disk.execute("rollback")
    return "RUNNING" not in before


def test_killed_between_the_start_of_a_container_and_the_note_of_it(tmp_path: Path, register: Path):
    """A container runs while on disk it is still to be started: the next gateway takes it for what it is."""
    script = DYING.format(
        register=register, python=sys.executable, component=Path(__file__).with_name("patient.py")
    )
    caught = 0
    with one_node(tmp_path, ["/bin/bash", "-c", script]) as federation:
        node = federation[jobs.GUEST]
        node.register(A_PROVIDER)
        for i in range(10):
            assert node.process is not None
            (register / "pid").write_text(str(node.process.pid))
            job_id = node.submit(of_one_node(quiet(register, {f"a{i}": 1, f"b{i}": 0}, {f"b{i}": f"a{i}"})))
            caught += die_before_the_note(node, register / "there")
            (register / "pid").unlink()
            node.start()
            job = node.wait_job(job_id, 90)
            assert job["outcome"] == "SUCCEEDED"
            started = Counter(p.name.rsplit(".", 1)[0] for p in register.iterdir() if p.name[1:2] == str(i))
            assert started == {f"{t}{i}.{role}.0": 1 for t in "ab" for role in ("guest", "host")}
            (register / "there").rmdir()
            if caught:
                return
    assert caught, "in none of ten tries the kill came before the note"
