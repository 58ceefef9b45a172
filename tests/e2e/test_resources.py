"""Two real nodes with little memory: who has to wait says so, through the death of either gateway."""

from pathlib import Path
from typing import Any

from tests.e2e.jobs import GUEST, HOST, STOP, job_of, patient_nodes, running, status
from tests.e2e.nodes import Node, wait_for

GIB_OF_NODE = 4


def a_job(register: Path, name: str, lasts: float, guest: float, host: float) -> Any:
    body = job_of(register, {name: lasts})
    for role, memory in (("guest", guest), ("host", host)):
        body["config"]["job_params"][role] = {"0": {"resources": {"cpu": -1, "memory": memory, "disk": -1}}}
    return body


def resources(node: Node) -> dict[str, Any]:
    return node.get("/api/v1/resources")


def free(node: Node) -> float:
    found = resources(node)
    held = sum(one["memory_gib"] for one in found["holders"])
    assert found["total"]["memory_gib"] - found["remaining"]["memory_gib"] == held
    return float(found["remaining"]["memory_gib"])


def reason(node: Node, job_id: str) -> str:
    return next((one["reason"] for one in resources(node)["waiting"] if one["job_id"] == job_id), "")


def test_a_job_waits_for_memory_at_the_partner_through_the_death_of_both_gateways(tmp_path: Path, register: Path):
    with patient_nodes(tmp_path, resources={"memory_gib": GIB_OF_NODE}) as two:
        guest, host = two[GUEST], two[HOST]
        first = guest.submit(a_job(register, "first", 600, guest=1, host=3))
        wait_for(lambda: running(register) == ["first", "first"], 60, about="the first job runs")
        assert (free(guest), free(host)) == (3, 1)
        second = guest.submit(a_job(register, "second", 0.1, guest=2, host=2))
        said = wait_for(lambda: reason(host, second), 60, about="the second job waits")
        held = f"held by job {first} (memory 3 GiB)"
        assert said == f"needs memory 2 GiB on node {HOST}, free memory 1 GiB, {held}"
        for node in (guest, host):
            node.kill()
            node.start()
        wait_for(lambda: reason(host, second), 60, about="it waits again")
        wait_for(lambda: free(guest) == 3, 60, about="and holds nothing elsewhere")
        assert free(host) == 1
        third = guest.submit(a_job(register, "third", 0.1, guest=1, host=1))  # fits beside: no blocked head
        guest.wait_job(third, 60)
        assert status(guest, second)["job_status"] == "READY"
        assert guest.post(STOP, {"job_id": first})["code"] == 0
        guest.wait_job(second, 60)
        for node in (guest, host):
            wait_for(lambda node=node: free(node) == GIB_OF_NODE, 60, about="all is returned")
            found = resources(node)
            assert (found["holders"], found["waiting"]) == ([], [])
            # a return whose answer died with a gateway is asked for again, changes nothing and is counted
            assert (found["returned_by_reconciler"], found["expired"]) == (0, 0)
