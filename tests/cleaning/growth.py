"""The resources that a node's process holds, and their growth between two measurements."""

import os
from collections.abc import Mapping
from pathlib import Path

from gateway.http.exchange_book import FOLDER
from tests.e2e.nodes import Node, wait_for


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
    status = _read_status(pid)
    memory, _ = status["VmRSS"].split()  # the unit is kB
    return {
        "files": len(files),
        "threads": int(status["Threads"]),
        "memory": int(memory),
        "children": _count_children(pid),
        "folders and files": _count_files(node.home / "state"),
    }


def check_growth(
    first: Mapping[str, int],
    last: Mapping[str, int],
    limits: Mapping[str, int],
) -> None:
    """Fail if a resource has grown by more than its limit between two measurements."""
    for resource, limit in limits.items():
        growth = last[resource] - first[resource]
        assert growth <= limit, f"{resource}: {first} became {last}"


def _read_status(pid: int) -> dict[str, str]:
    """Return the kernel's figures of a process, by name."""
    status = {}
    text = Path(f"/proc/{pid}/status").read_text()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        status[name] = value
    return status


def _count_children(pid: int) -> int:
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


def _count_files(state: Path) -> int:
    """Return the number of files and folders that a node should remove after its jobs.

    Saved logs stay, for half an hour the records of ended channel sessions, and the last requests
    of each partner, of which there are at most 20.
    """
    count = 0
    for path in state.rglob("*"):
        is_saved_log = "runs" in path.parts
        is_ended_session = path.suffix == ".ended"
        is_of_partner = FOLDER in path.parts
        count += not (is_saved_log or is_ended_session or is_of_partner)
    return count
