"""Many jobs in a row leave nothing that grows: files, threads, child processes or memory."""

import os
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.cleaning.ended import session_folders
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

WARM_UP = 25  # jobs before the first measurement
COUNT = 50  # jobs between the two measurements
AT_ONCE = 25  # jobs submitted before the test waits for their end

# How much of each resource of a node's process may have been added between the measurements.
MAX_GROWTH = {
    "files": 10,
    "threads": 16,
    "children": 0,
    "memory": 30 * 1024,  # KiB
    "folders and files": 0,
}


def run_jobs(
    federation: Federation,
    count: int,
) -> None:
    """Run so many jobs and wait until both nodes have cleaned up after them."""
    guest, host = federation.nodes.values()
    for start in range(0, count, AT_ONCE):
        for number in range(start, start + AT_ONCE):
            job = jobs.echo_job(guest.id, host.id)
            job["flow_id"] = f"flow-{number}"
            guest.submit(job)
        for node in (guest, host):
            wait_until_idle(node)


def wait_until_idle(node: Node) -> None:
    """Wait until no job is under way at a node."""

    def is_idle() -> bool:
        return node.get("/api/v1/drain")["jobs"] == []

    wait_for(is_idle, 60, about="all is tidied up")


def measure(node: Node) -> dict[str, int]:
    """Return the resources of a node's process (memory in KiB) and its number of files on disk."""
    assert node.process is not None
    pid = node.process.pid
    files = os.listdir(f"/proc/{pid}/fd")
    status = read_status(pid)
    memory, _ = status["VmRSS"].split()  # the unit is kB
    return {
        "files": len(files),
        "threads": int(status["Threads"]),
        "memory": int(memory),
        "children": count_children(pid),
        "folders and files": count_files(node.home / "state"),
    }


def read_status(pid: int) -> dict[str, str]:
    """Return the kernel's figures of a process, by name."""
    status = {}
    text = Path(f"/proc/{pid}/status").read_text()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        status[name] = value
    return status


def count_children(pid: int) -> int:
    """Return the number of child processes of a process."""
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        if not stat.exists():
            continue
        # The command, in parentheses, may contain spaces; state and parent follow it.
        _, _, after_command = stat.read_text().rpartition(")")
        state_and_parent = after_command[:20]
        count += f" {pid} " in state_and_parent
    return count


def count_files(state: Path) -> int:
    """Return the number of files and folders that a node should remove after its jobs.

    Saved logs stay, and for half an hour the records of ended channel sessions.
    """
    count = 0
    for path in state.rglob("*"):
        is_saved_log = "runs" in path.parts
        is_ended_session = path.suffix == ".ended"
        count += not is_saved_log and not is_ended_session
    return count


@pytest.mark.slow
def test_nothing_grows_over_many_jobs(tmp_path):
    engine = process_engine(
        "example:1.0.0",
        command=["/bin/true"],
    )
    parties = [jobs.GUEST, jobs.HOST]
    with Federation(tmp_path, parties, engine) as federation:
        nodes = list(federation.nodes.values())
        for node in nodes:
            node.register(A_PROVIDER)
        run_jobs(federation, WARM_UP)
        before = [measure(node) for node in nodes]

        run_jobs(federation, COUNT)

        for node, first in zip(nodes, before, strict=True):
            check_growth(first, measure(node))
            check_nothing_is_left(node)


def check_growth(
    first: dict[str, int],
    last: dict[str, int],
) -> None:
    """Fail if a resource has grown by more than its limit between two measurements."""
    for resource, limit in MAX_GROWTH.items():
        growth = last[resource] - first[resource]
        assert growth <= limit, f"{resource}: {first} became {last}"


def check_nothing_is_left(node: Node) -> None:
    """Fail unless a node has no trace of its jobs except their records, all of them SUCCEEDED."""
    state = node.home / "state"
    assert session_folders(state) == []
    outputs = list(node.storage.glob("job-*"))
    assert outputs == []
    assert node.get("/api/v1/orphans") == {
        "unknown": [],
        "lost": [],
    }
    cleaning = node.get("/api/v1/gc", orphans=1)
    assert cleaning["items"] == []
    listing = node.get("/api/v1/jobs", limit=200)
    outcomes = [job["outcome"] for job in listing["jobs"]]
    assert outcomes == ["SUCCEEDED"] * (WARM_UP + COUNT)
    assert os.listdir(state / "process") == []
