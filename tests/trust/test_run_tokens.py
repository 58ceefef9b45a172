"""A container uses the channel of its own job and reports its own task, and so does another node.

It proves which run it is by its token, else by its address.
"""

import base64
import re
import sqlite3
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.auth import RunTokens
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import key_of
from gateway.domain.run import Run
from gateway.domain.states import TaskStatus
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import FATE, KUSCIA, SPEC, Site, a_job_with, serving_site
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, containers, running
from tests.memory_engine import MemoryEngine

CHAN = "/v1/interconn/chan/"
CALLBACK = "/v1/platform/schedule/task/callback"
PEERS = "/v1/interconn/schedule/task/callback"
_numbers = count()
OK, DENIED, FULL = "E0000000000", "E0000000403", "E0000000700"
HERE = {"guest": (ME,), "host": (ME,)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


def request(
    node: Gateway,
    verb: str,
    headers: dict[str, str],
    listener: str = "container",
    **body: Any,
) -> Any:
    sent = {"topic": "t"} | (
        {"payload": base64.b64encode(b"secret").decode()} if verb in ("push", "invoke") else {}
    )
    headers = {"x-ptp-target-node-id": ME} | headers
    return ask(node, listener, "POST", CHAN + verb, json=sent | body, headers=headers).json()


def code(
    node: Gateway,
    verb: str,
    headers: dict[str, str],
    listener: str = "container",
    **body: Any,
) -> str:
    return str(request(node, verb, headers, listener, **body)["code"])


def read(node: Gateway, headers: dict[str, str]) -> bytes:
    return base64.b64decode(request(node, "peek", headers)["content"])


def test_a_container_cannot_touch_messages_of_another_job(site: Site):
    ours = containers(site.node, "job-ours", HERE)
    theirs = containers(site.node, "job-theirs", HERE)
    assert code(site.node, "push", ours["guest.0"]) == OK
    attack = theirs["host.0"] | {"x-ptp-session-id": "session_job-ours"}
    for verb in ("pop", "peek", "release", "push"):
        answer = request(site.node, verb, attack)
        assert answer["code"] == DENIED and "config.session_id" in answer["message"]
    assert read(site.node, ours["host.0"]) == b"secret"
    assert read(site.node, ours["host.0"]) == b""


def test_a_container_reaches_no_node_outside_its_job(site: Site):
    own = containers(site.node, "job-two", {"guest": (ME,), "host": (SPEC,)})["guest.0"]
    assert code(site.node, "push", own | {"x-ptp-target-node-id": FATE}) == DENIED
    assert not [a for a in site.peer.asked if "chan" in a.target]
    code(site.node, "push", own | {"x-ptp-target-node-id": SPEC})
    sent = next(a for a in site.peer.asked if "chan" in a.target)
    assert (
        own["x-ptp-token"] not in sent.headers.values()
    )  # a partner never gets a token that opens something here


def test_no_request_without_a_valid_token_is_taken(site: Site):
    own = containers(site.node, "job-anonymous", HERE)["guest.0"]
    run = site.node.store.local_jobs.get("job-anonymous").runs[0]
    before = site.node.broker.sessions()
    for token in (
        None,
        "x",
        run.token,
        run.run_id,
        own["x-ptp-token"][:-1],
        site.node.run_tokens.issue("x"),
    ):
        headers = {k: v for k, v in own.items() if k != "x-ptp-token"}
        headers |= {} if token is None else {"x-ptp-token": token}
        for verb in ("push", "pop", "peek", "release"):
            answer = request(site.node, verb, headers)
            assert answer["code"] == DENIED
            assert (
                answer["message"].startswith("RUN_TOKEN_REQUIRED")
                and "config.token" in answer["message"]
            )
    assert site.node.broker.sessions() == before


def test_a_token_opens_nothing_once_its_container_is_gone(site: Site):
    site.node.coordinator.submit(a_spec(roles=HERE, job_id="job-over"))
    runs = {label: site.run("job-over", label) for label in ("guest.0", "host.0")}
    guest, host = (
        {
            "x-ptp-session-id": "session_job-over",
            "x-ptp-token": site.node.run_tokens.issue(run.token),
        }
        for run in runs.values()
    )
    assert code(site.node, "push", guest) == OK
    site.succeed("job-over")
    wait_for(lambda: code(site.node, "push", guest) == DENIED)
    assert request(site.node, "peek", guest)["message"].startswith("RUN_TOKEN_REQUIRED")
    assert read(site.node, host) == b"secret"  # it still runs


def test_a_container_that_sends_no_token_is_recognised_by_its_address(site: Site):
    site.node.coordinator.submit(a_spec(roles=HERE, job_id="job-a"))
    guest, host = (site.run("job-a", f"{role}.0") for role in ("guest", "host"))
    assert isinstance(site.node.engine, MemoryEngine)
    session = {"x-ptp-session-id": "session_job-a"}
    site.node.engine.addresses |= {guest.name: "127.0.0.1", host.name: "10.255.0.2"}
    assert code(site.node, "push", session) == OK
    assert read(site.node, session) == b""  # the run that has pushed it
    site.node.engine.addresses |= {guest.name: "10.255.0.1", host.name: "127.0.0.1"}
    assert read(site.node, session) == b"secret"
    containers(site.node, "job-b", HERE)
    assert code(site.node, "push", {"x-ptp-session-id": "session_job-b"}) == DENIED
    site.node.engine.addresses |= {host.name: "10.255.0.2"}
    assert code(site.node, "push", session) == DENIED


def test_what_came_before_the_job_from_a_node_outside_it_is_not_read(site: Site):
    for peer in (SPEC, KUSCIA):
        headers = {
            "x-ptp-version": "1",
            "x-ptp-source-node-id": peer,
            "x-ptp-session-id": "session_job-foretold",
        }
        assert code(site.node, "invoke", headers, "peer") == OK
    own = containers(site.node, "job-foretold", {"guest": (ME,), "host": (SPEC,)})["guest.0"]
    answers = [request(site.node, "peek", own) for _ in range(2)]
    assert [one["metadata"].get("x-ptp-source-node-id") for one in answers] == [SPEC, None]
    assert read(site.node, own | {"x-ptp-target-node-id": KUSCIA}) == b""


def test_invented_sessions_leave_places_for_peers(site: Site):
    """A peer may push before the job has started here, so that unknown sessions are taken, but few."""
    own = containers(site.node, "job-inventive", HERE)["guest.0"]
    before = site.node.broker.sessions()
    assert {
        code(site.node, "push", own | {"x-ptp-session-id": f"session_{n}"}) for n in range(70)
    } == {DENIED}
    assert site.node.broker.sessions() == before

    def invoke(peer: str, session: str) -> str:
        headers = {
            "x-ptp-version": "1",
            "x-ptp-source-node-id": peer,
            "x-ptp-session-id": session,
        }
        return code(site.node, "invoke", headers, "peer")

    found = [invoke(KUSCIA, f"session_invented-{n}") for n in range(70)]
    assert found == [OK] * 64 + [FULL] * 6
    assert invoke(SPEC, "session_job-early") == OK


@pytest.fixture
def one_port(tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "routes.yml").write_text(yaml.safe_dump({SPEC: {"host": "127.0.0.1", "port": 9}}))
    any_port = {"bind": "127.0.0.1:0"}
    listen = {
        "peer": any_port,
        "container": None,
        "operator": any_port,
    }
    with running(tmp_path, make_engine=MemoryEngine.making({}), listen=listen) as node:
        yield node


def test_with_one_port_for_all_a_peer_is_not_taken_for_a_container(one_port: Gateway):
    own = containers(one_port, "job-one-port", HERE)
    run = one_port.store.local_jobs.get("job-one-port").runs[0]
    assert isinstance(one_port.engine, MemoryEngine)
    one_port.engine.addresses[run.name] = "127.0.0.1"
    assert code(one_port, "push", own["guest.0"], "peer") == OK
    anonymous = {"x-ptp-session-id": "session_job-one-port", "x-ptp-source-node-id": SPEC}
    for verb in ("pop", "peek", "release", "push"):
        assert code(one_port, verb, anonymous, "peer") == DENIED
    said = {
        "task_id": run.task_id,
        "role": "guest",
        "status": "FAILED",
    }
    answer = ask(
        one_port, "peer", "POST", CALLBACK, json=said, headers={"x-source-node-id": SPEC}
    ).json()
    assert (answer["code"], answer["data"]["reason"]) == (403, "RUN_TOKEN_REQUIRED")
    assert code(one_port, "peek", own["host.0"], "peer") == OK
    secret = one_port.run_tokens.issue(run.run_id)
    assert ask(one_port, "peer", "POST", f"{CALLBACK}?run={secret}", json=said).json()["code"] == 0
    invoke = {
        "x-ptp-version": "1",
        "x-ptp-source-node-id": SPEC,
        "x-ptp-session-id": "session_job-later",
    }
    assert code(one_port, "invoke", invoke, "peer") == OK
    to_others = invoke | {"x-ptp-session-id": "session_job-one-port"}
    assert (
        code(one_port, "invoke", to_others, "peer") != OK
    )  # of a job in which that node has no part
    own_id = {"x-ptp-source-node-id": ME, "x-node-id": ME}  # as a container may say it
    assert code(one_port, "push", own["guest.0"] | own_id, "peer") == OK


def test_a_copy_of_the_database_opens_nothing(site: Site):
    site.node.coordinator.submit(a_spec(roles=HERE, job_id="job-copied"))
    run = site.run("job-copied", "guest.0")
    own = site.node.launching.environment(site.node.store.local_jobs.get("job-copied"), run)
    secret = own["system.callback"].partition("?run=")[2]
    with sqlite3.connect(site.node.settings.database.url.removeprefix("sqlite:///")) as database:
        copy = "\n".join(database.iterdump())
    assert run.run_id in copy and own["config.token"] not in copy and secret not in copy
    for found in sorted(set(re.findall(r"[0-9a-f]{32,}", copy))):
        headers = {"x-ptp-session-id": "session_job-copied", "x-ptp-token": found}
        assert code(site.node, "peek", headers) == DENIED
        answer = ask(
            site.node, "container", "POST", f"{CALLBACK}?run={found}", json={"status": "FAILED"}
        ).json()
        assert answer["data"]["reason"] == "RUN_UNKNOWN"
    headers = {"x-ptp-session-id": own["config.session_id"], "x-ptp-token": own["config.token"]}
    assert code(site.node, "peek", headers) == OK


def test_the_key_of_the_tokens_is_this_users_alone_and_outlives_a_restart(tmp_path: Path):
    key = key_of(tmp_path)
    assert key == key_of(tmp_path) and len(key) == 32
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]
    token = RunTokens(key).issue("id")
    assert RunTokens(key_of(tmp_path)).id_of(token) == "id"
    assert RunTokens(b"another").id_of(token) is None


# ---------------------------------------------------------------- reports


@pytest.fixture
def run(site: Site) -> Run:
    """A run of this node's, whose container is up."""
    job_id = f"job-callback-{next(_numbers)}"
    site.node.coordinator.submit(a_spec("a", {"guest": (ME,)}, job_id=job_id))
    return site.run(job_id, "guest.0")


def report(
    site: Site,
    run: Run,
    token: str = "",
    **changes: str,
) -> str:
    """Report a success as a container; return the reason of the refusal, if it is refused."""
    body = {
        "task_id": run.task_id,
        "role": "guest",
        "status": "SUCCESS",
    } | changes
    params = {"run": token} if token else {}
    data = ask(site.node, "container", "POST", CALLBACK, json=body, params=params).json()["data"]
    return str(data.get("reason", ""))


def reported(site: Site, run: Run) -> TaskStatus | None:
    job_id = site.node.store.job_of_run(run.run_id)
    assert job_id is not None
    return next(
        r for r in site.node.store.local_jobs.get(job_id).runs if r.run_id == run.run_id
    ).reported


def located(
    site: Site,
    run: Run,
    address: str,
) -> None:
    assert isinstance(site.node.engine, MemoryEngine)
    site.node.engine.addresses[run.name] = address


def test_a_report_without_token_is_refused_from_another_containers_address(site: Site, run: Run):
    for role in ("guest", "guest.0", ""):  # the engine knows no address of the run
        assert report(site, run, role=role) == "NOT_AUTHORISED"
    located(site, run, "172.30.0.7")
    assert report(site, run) == "NOT_AUTHORISED"
    assert reported(site, run) is not TaskStatus.SUCCESS


def test_an_image_that_rebuilds_the_url_is_recognised_by_its_address(site: Site, run: Run):
    located(site, run, "127.0.0.1")
    assert report(site, run, role="host") == "NOT_AUTHORISED"
    assert report(site, run) == ""
    assert reported(site, run) is TaskStatus.SUCCESS


def test_the_runs_token_is_enough(site: Site, run: Run):
    assert (
        report(
            site,
            run,
            token=site.node.run_tokens.issue(run.run_id),
            task_id="",
            role="",
        )
        == ""
    )
    assert reported(site, run) is TaskStatus.SUCCESS


@pytest.mark.parametrize("sender", ["", SPEC, KUSCIA, ME, "JG0000000000000404"])
def test_a_node_reports_for_itself_only(site: Site, sender: str):
    """The one host of this job is a node of FATE's; an empty sender was taken for it, as it has the role."""
    site.peer.will(says())
    spec = a_job_with("JG0100000000000002")
    site.node.coordinator.submit(spec)
    task = wait_for(lambda: next(iter(site.node.store.jobs.get(spec.job_id).tasks.values())), 10)
    body: dict[str, Any] = {
        "task_id": task.task_id,
        "role": "host",
        "status": "FAILED",
    }
    headers = {"x-source-node-id": sender} if sender else {}
    said = ask(site.node, "peer", "POST", PEERS, json=body, headers=headers).json()
    after = site.node.store.jobs.get(spec.job_id).tasks["a"]
    assert all(
        status is not TaskStatus.FAILED
        for part in after.nodes.values()
        for status in part.roles.values()
    )
    if sender != ME:  # which plays the guest, so that news of the host has no effect
        outside = sender in (SPEC, KUSCIA)
        assert said["data"]["reason"] == ("TASK_UNKNOWN" if outside else "NOT_AUTHORISED")
    site.node.coordinator.stop(spec.job_id, "")
