"""Many jobs in a row leave nothing that grows: no open files, threads, containers, folders, memory."""

import os
from pathlib import Path

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

COUNT, AT_ONCE, WARM_UP = 50, 25, 25
MOST = {
    "files": 10,
    "threads": 16,
    "children": 0,
    "memory": 30 * 1024,
    "folders and files": 0,
}
"""by how much what a node holds may have grown; memory in KiB"""


def run(federation: Federation, count: int) -> None:
    guest, host = federation.nodes.values()
    for start in range(0, count, AT_ONCE):
        for number in range(start, start + AT_ONCE):
            guest.submit(jobs.echo_job(guest.id, host.id) | {"flow_id": f"flow-{number}"})
        for node in (guest, host):
            wait_for(
                lambda node=node: node.get("/api/v1/drain")["jobs"] == [],
                60,
                about="all is tidied up",
            )


def held(node: Node) -> dict[str, int]:
    """Return what the node's process holds, memory in KiB, and what lies in its folder for the time being.

    Saved logs stay, and for half an hour the word that a channel's session has ended.
    """
    assert node.process is not None
    place = Path(f"/proc/{node.process.pid}")
    status = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    children = sum(
        f" {node.process.pid} " in stat.read_text().rpartition(")")[2][:20]
        for stat in Path("/proc").glob("[0-9]*/stat")
        if stat.exists()
    )
    return {
        "files": len(os.listdir(place / "fd")),
        "threads": int(status["Threads"]),
        "memory": int(status["VmRSS"].split()[0]),
        "children": children,
        "folders and files": sum(
            "runs" not in p.parts and p.suffix != ".ended" for p in (node.home / "state").rglob("*")
        ),
    }


@pytest.mark.slow
def test_nothing_grows_over_many_jobs(tmp_path):
    engine = process_engine("example:1.0.0", command=["/bin/true"])
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine) as federation:
        for node in federation.nodes.values():
            node.register(A_PROVIDER)
        run(federation, WARM_UP)
        before = {node.id: held(node) for node in federation.nodes.values()}
        run(federation, COUNT)
        for node in federation.nodes.values():
            after = held(node)
            for what, most in MOST.items():
                grown = after[what] - before[node.id][what]
                assert grown <= most, f"{what}: {before[node.id]} became {after}"
            assert [p for p in (node.home / "state" / "channel").iterdir() if p.is_dir()] == []
            assert [p.name for p in node.storage.glob("job-*")] == []
            assert node.get("/api/v1/orphans") == {"unknown": [], "lost": []}
            assert node.get("/api/v1/gc", orphans=1)["items"] == []
            listed = node.get("/api/v1/jobs", limit=200)["jobs"]
            assert [job["outcome"] for job in listed] == ["SUCCEEDED"] * (WARM_UP + COUNT)
            assert os.listdir(node.home / "state" / "process") == []
