"""Two gateways on one database are one node: one of them advances a job, whichever dies."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.contracts.databases import careless_database, careless_postgresql
from tests.e2e import jobs
from tests.e2e.jobs import events, job_of, started
from tests.e2e.nodes import Node, alive, process_engine, wait_for
from tests.e2e.two_gateways import shared_node

pytestmark = [pytest.mark.slow, pytest.mark.mariadb]

DATABASES = {
    "mariadb": careless_database,
    "postgresql": careless_postgresql,
}
on_mariadb = pytest.mark.parametrize("shared", ["mariadb"], indirect=True)
on_both = pytest.mark.parametrize(
    "shared",
    [
        "mariadb",
        pytest.param(
            "postgresql",
            marks=pytest.mark.postgresql,
        ),
    ],
    indirect=True,
)

# The first and the second gateway of the guest's node, and the host's node.
Shared = tuple[Node, Node, Node]


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
) -> Iterator[Shared]:
    """The nodes, with version 1.0.0 of the component (`patient.py`) and 2.0.0 (`ping_pong.py`)."""
    home = tmp_path_factory.mktemp("nodes")
    engine = process_engine(
        "example:1.0.0",
        command=jobs.component("patient.py"),
    )
    engine["process"]["images"]["example:2.0.0"] = {"command": jobs.component("ping_pong.py")}
    ping_pong = A_PROVIDER | {
        "version": "2.0.0",
        "metadata": {
            "base_url": "",
            "image": "example:2.0.0",
        },
    }
    # Runs of a gateway that is down count as lost only after the tests.
    pace = {"lost_gateway": 600.0}
    database = DATABASES[request.param]
    with shared_node(home, f"{worker_id}_both", engine, pace, database) as nodes:
        first, _, host = nodes
        first.register(ping_pong)
        host.register(ping_pong)
        yield nodes


def containers_by_name(register: Path) -> Counter[str]:
    """Return how many containers were started, by task and party."""
    return Counter(file.name.rpartition(".")[0] for file in register.iterdir())


def no_container_runs(register: Path) -> bool:
    return not any(alive(pid) for _, pid in started(register))


def job_part(
    node: Node,
    job_id: str,
    path: str,
) -> httpx.Response:
    """Return the response of a path below a job."""
    return node.ask("GET", f"/api/v1/jobs/{job_id}/{path}")


@on_both
def test_jobs_handed_in_at_both_are_advanced_once(shared, register):
    first, second, host = shared
    bodies = []
    for number in range(6):
        a, b = f"a{number}", f"b{number}"
        bodies.append(job_of(register, {a: 0.2, b: 0.2}, {b: a}))
    submitters = [first, second] * 3
    # Each job is observed at the gateway at which it was not submitted.
    observers = [second, first] * 3

    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(Node.submit, submitters, bodies))

    for observer, job_id in zip(observers, ids, strict=True):
        observer.wait_job(job_id, 120)
        for event, times in (
            ("create accepted", 2),
            ("start accepted", 2),
            ("job FINISHED", 1),
            ("task accepted", 2),
        ):
            timeline = first.timeline(job_id)
            assert len(events(first, job_id, event)) == times, (event, timeline)
        assert len(events(host, job_id, "task accepted")) == 2
    containers = containers_by_name(register)
    assert len(containers) == 24  # two tasks of six jobs at two parties
    assert set(containers.values()) == {1}
    wait_for(lambda: no_container_runs(register), 30)
    check_logs(first, second, ids[0])


def check_logs(
    first: Node,
    second: Node,
    job_id: str,
) -> None:
    """Check the logs of a job with containers of the first gateway at both gateways."""
    log = job_part(first, job_id, "runs/guest.0/a0/log")
    assert "of a0 as guest.0" in log.text

    refused = job_part(second, job_id, "runs/guest.0/a0/log")
    assert refused.status_code == 404
    assert refused.json()["data"]["reason"] == "LOG_ELSEWHERE"
    assert first.peer in refused.json()["msg"]

    content = job_part(second, job_id, "archive").content
    with ZipFile(BytesIO(content)) as archive:
        assert f"is at the gateway {first.peer}".encode() in archive.read("INCOMPLETE")


def received_messages(node: Node, job_id: str) -> int:
    """Return how many messages of a job a node has received."""
    return sum(session["messages"] for session in node.job(job_id)["channel_received"])


@on_mariadb
def test_messages_stay_ordered_and_unique_while_a_gateway_dies(shared):
    """The partner's messages come to the gateway without the session."""
    without_session, with_session, host = shared
    body = jobs.echo_job(rounds=120)
    body["dag"]["components"][0]["version"] = "2.0.0"
    job_id = with_session.submit(body)

    for count in (5, 20):
        wait_for(
            lambda count=count: received_messages(host, job_id) >= count, about="messages pass"
        )
        assert without_session.job(job_id)["channel_received"] == []
        with_session.kill()
        with_session.start()

    assert without_session.wait_job(job_id, 120)["progress"] == 100
    for node in (without_session, host):
        assert len(events(node, job_id, "run RUNNING")) == 1


@on_mariadb
def test_the_other_goes_on_with_what_the_dead_one_scheduled(shared, register):
    """The shared node only schedules, so that no container dies with its gateway.

    Its partner plays both roles.
    """
    victim, survivor, host = shared
    host.stop()
    host.settings["node"] = {
        "id": jobs.HOST,
        "coordinator": jobs.GUEST,
    }
    host.start()
    end_of_tasks = register.with_name("died")
    body = job_of(
        register,
        {"a": 0, "b": 0},
        {"b": "a"},
        until=str(end_of_tasks),
    )
    body["config"]["initiator"] = {
        "role": "guest",
        "node_id": jobs.HOST,
    }
    body["config"]["role"] = {
        "guest": [jobs.HOST],
        "host": [jobs.HOST],
    }
    ids = [host.submit(body) for _ in range(2)]
    wait_for(lambda: len(started(register)) == 4, 60)

    victim.kill()
    end_of_tasks.touch()

    for job_id in ids:
        survivor.wait_job(job_id, 90)
        assert len(events(survivor, job_id, "job FINISHED")) == 1
    # Both jobs ran each task once at each party.
    assert containers_by_name(register) == {
        "a.guest.0": 2,
        "a.host.0": 2,
        "b.guest.0": 2,
        "b.host.0": 2,
    }
