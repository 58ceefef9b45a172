"""Two gateways on one database are one node: each job is advanced by one of them at a time, whichever dies."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from zipfile import ZipFile

import httpx
import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import events, job_of, started
from tests.e2e.nodes import Node, alive, process_engine, wait_for
from tests.e2e.two_gateways import shared_node

pytestmark = [pytest.mark.slow, pytest.mark.mariadb]

Shared = tuple[Node, Node, Node]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Shared]:
    engine = process_engine("example:1.0.0", command=jobs.component("patient.py"))
    engine["process"]["images"]["example:2.0.0"] = {"command": jobs.component("ping_pong.py")}
    provider = A_PROVIDER | {
        "version": "2.0.0",
        "metadata": {"base_url": "", "image": "example:2.0.0"},
    }
    kept = {"lost_gateway": 600.0}
    with shared_node(tmp_path_factory.mktemp("nodes"), f"{worker_id}_both", engine, kept) as nodes:
        for node in (nodes[0], nodes[2]):
            node.register(provider)
        yield nodes


def test_jobs_handed_in_at_both_are_advanced_once(shared, register):
    first, second, host = shared
    count = 6

    def submit(i: int) -> str:
        body = job_of(register, {f"a{i}": 0.2, f"b{i}": 0.2}, {f"b{i}": f"a{i}"})
        return (first, second)[i % 2].submit(body)

    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(submit, range(count)))
    for i, job_id in enumerate(ids):
        (second, first)[i % 2].wait_job(job_id, 120)  # each tells of the other's
        for event, times in (("create accepted", 2), ("start accepted", 2), ("job FINISHED", 1)):
            assert len(events(first, job_id, event)) == times, (event, first.timeline(job_id))
        assert (
            len(events(first, job_id, "task accepted"))
            == 2
            == len(events(host, job_id, "task accepted"))
        )
    found = Counter(path.name.rpartition(".")[0] for path in register.iterdir())
    assert set(found.values()) == {1} and len(found) == 4 * count, (
        "each task ran once at each party"
    )
    wait_for(lambda: not any(alive(pid) for _, pid in started(register)), 30)
    assert "of a0 as guest.0" in _asked(first, ids[0], "runs/guest.0/a0/log").text
    elsewhere = _asked(second, ids[0], "runs/guest.0/a0/log")  # its containers were the first's
    assert elsewhere.status_code == 404
    assert elsewhere.json()["data"]["reason"] == "LOG_ELSEWHERE"
    assert first.peer in elsewhere.json()["msg"]
    with ZipFile(BytesIO(_asked(second, ids[0], "archive").content)) as archive:
        assert f"is at the gateway {first.peer}".encode() in archive.read("INCOMPLETE")


def _asked(
    node: Node,
    job_id: str,
    path: str,
) -> httpx.Response:
    return node.ask("GET", f"/api/v1/jobs/{job_id}/{path}")


def test_messages_stay_ordered_and_unique_while_a_gateway_dies(shared):
    """The partner's messages come to the gateway without the session."""
    other, holder, host = shared
    body = jobs.echo_job(rounds=120)
    body["dag"]["components"][0]["version"] = "2.0.0"
    job_id = holder.submit(body)

    def received() -> int:
        return sum(of["messages"] for of in host.job(job_id)["channel_received"])

    for least in (5, 20):
        wait_for(lambda least=least: received() >= least, about="messages pass")
        assert other.job(job_id)["channel_received"] == []
        holder.kill()
        holder.start()
    assert other.wait_job(job_id, 120)["progress"] == 100
    for node in (other, host):
        assert len(events(node, job_id, "run RUNNING")) == 1


def test_the_other_goes_on_with_what_the_dead_one_scheduled(shared, register):
    """The node only schedules: its partner plays both roles, so that no container dies with the gateway."""
    victim, other, host = shared
    host.stop()
    host.settings["node"] = {"id": jobs.HOST, "coordinator": jobs.GUEST}
    host.start()
    died = register.with_name("died")
    body = job_of(register, {"a": 0, "b": 0}, {"b": "a"}, until=str(died))
    body["config"]["initiator"] = {"role": "guest", "node_id": jobs.HOST}
    body["config"]["role"] = {"guest": [jobs.HOST], "host": [jobs.HOST]}
    ids = [host.submit(body) for _ in range(2)]
    wait_for(lambda: len(started(register)) == 4, 60)
    victim.kill()
    died.touch()
    for job_id in ids:
        other.wait_job(job_id, 90)
        assert len(events(other, job_id, "job FINISHED")) == 1
    assert Counter(path.name.rpartition(".")[0] for path in register.iterdir()) == dict.fromkeys(
        [f"{task}.{role}.0" for task in "ab" for role in ("guest", "host")], 2
    )
