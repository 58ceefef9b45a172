"""A container, like a node, uses only the channel of its own job and reports only for itself.

A container proves its run by a token, or by its network address if it sends no token.
"""

import base64
import re
import sqlite3
import stat
from dataclasses import replace
from itertools import count

import pytest

from gateway.auth import RunTokens
from gateway.bootstrap.parts import run_token_key
from gateway.domain.states import RunStatus, TaskStatus
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import FATE, KUSCIA, SPEC, a_job_with, serving_site
from tests.builders import a_spec
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER, ask, containers
from tests.memory_engine import MemoryEngine, Script

CHANNEL = "/v1/interconn/chan"
CALLBACK_OF_CONTAINERS = "/v1/platform/schedule/task/callback"
CALLBACK_OF_PEERS = "/v1/interconn/schedule/task/callback"
VERBS = ("push", "pop", "peek", "release")
OK = "E0000000000"
DENIED = "E0000000403"
FULL = "E0000000700"
BOTH_AT_ME = {
    "guest": (ME,),
    "host": (ME,),
}
WITH_PARTNER = {
    "guest": (ME,),
    "host": (SPEC,),
}
job_numbers = count()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        yield site


@pytest.fixture
def node(site):
    return site.node


def call_channel(node, verb, headers, listener="container"):
    """Call the channel about topic "t"; return the body of the response."""
    body = {"topic": "t"}
    if verb in ("push", "invoke"):
        body["payload"] = base64.b64encode(b"secret").decode()
    headers = {"x-ptp-target-node-id": ME} | headers
    path = f"{CHANNEL}/{verb}"
    return ask(node, listener, "POST", path, json=body, headers=headers).json()


def code_of(node, verb, headers, listener="container"):
    """Call the channel; return the code of the response."""
    return call_channel(node, verb, headers, listener)["code"]


def peek(node, headers):
    """Return the next message's content, b"" if there is none."""
    return base64.b64decode(call_channel(node, "peek", headers)["content"])


def invoke(node, peer, session):
    """Send a message as another node; return the code of the response."""
    headers = {
        "x-ptp-version": "1",
        "x-ptp-source-node-id": peer,
        "x-ptp-session-id": session,
    }
    return code_of(node, "invoke", headers, "peer")


def headers_of_run(node, job_id, run):
    """Return what the container of a run sends with its messages."""
    return {
        "x-ptp-session-id": f"session_{job_id}",
        "x-ptp-token": node.run_tokens.issue(run.token),
    }


# ---------------------------------------------------------------- messages


def test_a_container_cannot_touch_messages_of_another_job(node):
    ours = containers(node, "job-ours", BOTH_AT_ME)
    theirs = containers(node, "job-theirs", BOTH_AT_ME)
    assert code_of(node, "push", ours["guest.0"]) == OK

    attack = theirs["host.0"] | {"x-ptp-session-id": "session_job-ours"}
    for verb in VERBS:
        response = call_channel(node, verb, attack)
        assert response["code"] == DENIED
        assert "config.session_id" in response["message"]

    assert peek(node, ours["host.0"]) == b"secret"
    assert peek(node, ours["host.0"]) == b""


def test_a_release_spares_the_session_until_the_other_runs_have_ended(node):
    job_id = "job-released"
    headers = containers(node, job_id, BOTH_AT_ME, launched=True)
    assert code_of(node, "push", headers["guest.0"]) == OK

    release_session(node, headers["host.0"])
    unread = node.broker.usage().messages
    end_run(node, job_id, "guest.0")
    release_session(node, headers["host.0"])

    assert node.broker.usage().messages == unread - 1
    assert peek(node, headers["host.0"]) == b""


def test_a_run_that_has_reported_its_end_releases_nothing_of_others(node):
    """The job may have begun a further task, whose messages are in the same session."""
    headers = containers(node, "job-reported", BOTH_AT_ME)
    assert code_of(node, "push", headers["guest.0"]) == OK

    release_session(node, headers["host.0"])

    assert peek(node, headers["host.0"]) == b"secret"


def release_session(node, headers):
    """Release the session of a container without naming a topic."""
    path = f"{CHANNEL}/release"
    response = ask(node, "container", "POST", path, json={}, headers=headers).json()
    assert response["code"] == OK


def end_run(node, job_id, label):
    """Record the success of the run of a party."""

    def with_success(job):
        runs = []
        for run in job.runs:
            if run.party.label == label:
                run = replace(run, status=RunStatus.SUCCESS)
            runs.append(run)
        return replace(job, runs=tuple(runs))

    node.store.local_jobs.update(job_id, with_success)


def test_a_container_reaches_no_node_outside_its_job(site):
    headers = containers(site.node, "job-two", WITH_PARTNER)["guest.0"]
    to_another_node = headers | {"x-ptp-target-node-id": FATE}
    before = channel_requests(site)

    assert code_of(site.node, "push", to_another_node) == DENIED

    assert channel_requests(site) == before


def test_a_container_may_name_the_institution_of_its_target(site):
    headers = containers(site.node, "job-institution", WITH_PARTNER)["guest.0"]
    target = {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": SPEC}

    call_channel(site.node, "push", headers | target)

    request = channel_requests(site)[-1]
    assert request.headers["x-ptp-target-node-id"] == SPEC


def test_a_partner_never_receives_the_token_of_a_run(site):
    headers = containers(site.node, "job-of-two", WITH_PARTNER)["guest.0"]

    call_channel(
        site.node,
        "push",
        headers | {"x-ptp-target-node-id": SPEC},
    )

    request = channel_requests(site)[-1]
    assert headers["x-ptp-token"] not in request.headers.values()


def channel_requests(site):
    """Return the requests about messages that partners have received."""
    return [request for request in site.peer.asked if "chan" in request.target]


def test_no_request_without_a_valid_token_is_served(node):
    headers = containers(node, "job-anonymous", BOTH_AT_ME)["guest.0"]
    run = node.store.local_jobs.get("job-anonymous").runs[0]
    sessions = node.broker.sessions()
    without_token = {"x-ptp-session-id": headers["x-ptp-session-id"]}
    wrong_tokens = (
        "x",
        run.token,
        run.run_id,
        headers["x-ptp-token"][:-1],
        node.run_tokens.issue("x"),
    )

    attacks = [without_token]
    for token in wrong_tokens:
        attacks.append(without_token | {"x-ptp-token": token})
    for attack in attacks:
        for verb in VERBS:
            response = call_channel(node, verb, attack)
            assert response["code"] == DENIED
            assert response["message"].startswith("RUN_TOKEN_REQUIRED")
            assert "config.token" in response["message"]
    assert node.broker.sessions() == sessions


def test_a_token_opens_nothing_once_its_container_has_ended(site):
    node = site.node
    node.job_requests.submit(a_spec(roles=BOTH_AT_ME, job_id="job-over"))
    guest = headers_of_run(
        node,
        "job-over",
        site.run("job-over", "guest.0"),
    )
    host = headers_of_run(
        node,
        "job-over",
        site.run("job-over", "host.0"),
    )
    assert code_of(node, "push", guest) == OK

    site.succeed("job-over")  # the guest

    wait_for(lambda: code_of(node, "push", guest) == DENIED)
    assert call_channel(node, "peek", guest)["message"].startswith("RUN_TOKEN_REQUIRED")
    assert peek(node, host) == b"secret"  # the host still runs


def set_addresses(node, addresses):
    """Set the network addresses of runs, by their names."""
    assert isinstance(node.engine, MemoryEngine)
    node.engine.addresses |= addresses


def test_a_container_that_sends_no_token_is_recognised_by_its_address(site):
    node = site.node
    node.job_requests.submit(a_spec(roles=BOTH_AT_ME, job_id="job-a"))
    guest = site.run("job-a", "guest.0").name
    host = site.run("job-a", "host.0").name
    session = {"x-ptp-session-id": "session_job-a"}

    set_addresses(node, {guest: "127.0.0.1", host: "10.255.0.2"})
    assert code_of(node, "push", session) == OK
    assert peek(node, session) == b""  # the run does not receive its own message

    set_addresses(node, {guest: "10.255.0.1", host: "127.0.0.1"})
    assert peek(node, session) == b"secret"
    containers(node, "job-b", BOTH_AT_ME)
    assert code_of(node, "push", {"x-ptp-session-id": "session_job-b"}) == DENIED

    set_addresses(node, {host: "10.255.0.2"})
    assert code_of(node, "push", session) == DENIED


def test_earlier_messages_of_a_node_outside_the_job_are_not_read(node):
    assert invoke(node, SPEC, "session_job-foretold") == OK
    assert invoke(node, KUSCIA, "session_job-foretold") == OK
    roles = {
        "guest": (ME,),
        "host": (SPEC,),
    }
    headers = containers(node, "job-foretold", roles)["guest.0"]

    first = call_channel(node, "peek", headers)
    second = call_channel(node, "peek", headers)

    assert first["metadata"]["x-ptp-source-node-id"] == SPEC
    assert "x-ptp-source-node-id" not in second["metadata"]
    assert peek(node, headers | {"x-ptp-target-node-id": KUSCIA}) == b""


def test_a_container_cannot_invent_sessions(node):
    headers = containers(node, "job-inventive", BOTH_AT_ME)["guest.0"]
    sessions = node.broker.sessions()

    for number in range(70):
        invented = headers | {"x-ptp-session-id": f"session_{number}"}
        assert code_of(node, "push", invented) == DENIED

    assert node.broker.sessions() == sessions


def test_invented_sessions_of_a_peer_leave_room_for_other_peers(node):
    """A peer may push before the job has started here: few unknown sessions are accepted."""
    codes = [invoke(node, KUSCIA, f"session_invented-{number}") for number in range(70)]

    assert codes == [OK] * 64 + [FULL] * 6
    assert invoke(node, SPEC, "session_job-early") == OK


# ---------------------------------------------------------------- one port for peers and containers


@pytest.fixture
def one_port(world):
    """Give a node whose containers use the peers' listener."""
    any_port = {"bind": "127.0.0.1:0"}
    listen = {
        "peer": any_port,
        "container": None,
        "operator": any_port,
    }
    # An engine in memory, which needs at least one image.
    images = {"unused:1": Script()}
    route = {
        "host": "127.0.0.1",
        "port": 9,
    }
    return world.node(
        routes={SPEC: route},
        scripts=images,
        settings={"listen": listen},
    )


def test_with_one_port_a_container_is_known_by_its_token(one_port):
    runs = containers(one_port, "job-one-port", BOTH_AT_ME)
    assert code_of(one_port, "push", runs["guest.0"], "peer") == OK
    assert code_of(one_port, "peek", runs["host.0"], "peer") == OK
    # A container may name its node as the sender.
    with_node = {
        "x-ptp-source-node-id": ME,
        "x-node-id": ME,
    }
    assert code_of(one_port, "push", runs["guest.0"] | with_node, "peer") == OK


def test_with_one_port_a_peer_does_not_count_as_a_container(one_port):
    """Attack: a peer sends from the address that the engine names for a container."""
    containers(one_port, "job-one-port", BOTH_AT_ME)
    run = one_port.store.local_jobs.get("job-one-port").runs[0]
    set_addresses(one_port, {run.name: "127.0.0.1"})

    headers = {
        "x-ptp-session-id": "session_job-one-port",
        "x-ptp-source-node-id": SPEC,
    }
    for verb in VERBS:
        assert code_of(one_port, verb, headers, "peer") == DENIED
    failure = {
        "task_id": run.task_id,
        "role": "guest",
        "status": "FAILED",
    }
    headers = {"x-source-node-id": SPEC}
    response = ask(
        one_port, "peer", "POST", CALLBACK_OF_CONTAINERS, json=failure, headers=headers
    ).json()
    assert response["code"] == 403
    assert response["data"]["reason"] == "RUN_TOKEN_REQUIRED"

    token = one_port.run_tokens.issue(run.run_id)
    path = f"{CALLBACK_OF_CONTAINERS}?run={token}"
    assert ask(one_port, "peer", "POST", path, json=failure).json()["code"] == 0


def test_with_one_port_a_peer_brings_messages_only_to_its_own_jobs(one_port):
    containers(one_port, "job-one-port", BOTH_AT_ME)
    assert invoke(one_port, SPEC, "session_job-later") == OK
    assert invoke(one_port, SPEC, "session_job-one-port") != OK


# ---------------------------------------------------------------- secrets at rest


def test_a_copy_of_the_database_opens_nothing(site):
    node = site.node
    node.job_requests.submit(a_spec(roles=BOTH_AT_ME, job_id="job-copied"))
    run = site.run("job-copied", "guest.0")
    job = node.store.local_jobs.get("job-copied")
    environment = node.launching.environment(job, run)
    token = environment["config.token"]
    callback_token = environment["system.callback"].partition("?run=")[2]
    database = node.settings.database.url.removeprefix("sqlite:///")
    with sqlite3.connect(database) as connection:
        copy = "\n".join(connection.iterdump())
    assert run.run_id in copy
    assert token not in copy
    assert callback_token not in copy

    session = environment["config.session_id"]
    for secret in sorted(set(re.findall(r"[0-9a-f]{32,}", copy))):
        headers = {
            "x-ptp-session-id": session,
            "x-ptp-token": secret,
        }
        assert code_of(node, "peek", headers) == DENIED
        path = f"{CALLBACK_OF_CONTAINERS}?run={secret}"
        response = ask(node, "container", "POST", path, json={"status": "FAILED"}).json()
        assert response["data"]["reason"] == "RUN_UNKNOWN"
    assert code_of(node, "peek", {"x-ptp-session-id": session, "x-ptp-token": token}) == OK


def test_the_key_of_the_tokens_is_this_users_alone_and_outlives_a_restart(tmp_path):
    key = run_token_key(tmp_path)
    assert len(key) == 32
    assert run_token_key(tmp_path) == key
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    token = RunTokens(key).issue("id")

    assert RunTokens(run_token_key(tmp_path)).id_of(token) == "id"
    assert RunTokens(b"another").id_of(token) is None


# ---------------------------------------------------------------- reports


@pytest.fixture
def run(site):
    """Give a run of this node, whose container is up."""
    job_id = f"job-callback-{next(job_numbers)}"
    site.node.job_requests.submit(a_spec("a", {"guest": (ME,)}, job_id=job_id))
    return site.run(job_id, "guest.0")


def report_success(node, run, token="", **changes):
    """Report a success as a container; return the reason of the refusal, or ""."""
    body = {
        "task_id": run.task_id,
        "role": "guest",
        "status": "SUCCESS",
        **changes,
    }
    query = {"run": token} if token else {}
    path = CALLBACK_OF_CONTAINERS
    response = ask(node, "container", "POST", path, json=body, params=query).json()
    return response["data"].get("reason", "")


def reported_status(node, run):
    """Return the status that a run has reported, None before its first report."""
    job_id = node.store.job_of_run(run.run_id)
    runs = {stored.run_id: stored for stored in node.store.local_jobs.get(job_id).runs}
    return runs[run.run_id].container_report.status


@pytest.mark.parametrize(
    "role",
    ["guest", "guest.0", ""],
)
def test_a_report_without_a_token_is_refused_if_the_address_is_unknown(node, run, role):
    assert report_success(node, run, role=role) == "NOT_AUTHORISED"
    assert reported_status(node, run) is not TaskStatus.SUCCESS


def test_a_report_without_token_is_refused_from_another_containers_address(node, run):
    set_addresses(node, {run.name: "172.30.0.7"})
    assert report_success(node, run) == "NOT_AUTHORISED"
    assert reported_status(node, run) is not TaskStatus.SUCCESS


def test_an_image_that_rebuilds_the_url_is_recognised_by_its_address(node, run):
    set_addresses(node, {run.name: "127.0.0.1"})
    assert report_success(node, run, role="host") == "NOT_AUTHORISED"
    assert report_success(node, run) == ""
    assert reported_status(node, run) is TaskStatus.SUCCESS


def test_the_runs_token_is_enough(node, run):
    token = node.run_tokens.issue(run.run_id)
    assert report_success(node, run, token, task_id="", role="") == ""
    assert reported_status(node, run) is TaskStatus.SUCCESS


@pytest.mark.parametrize(
    ("sender", "reason"),
    [
        ("", "NOT_AUTHORISED"),
        (SPEC, "TASK_UNKNOWN"),
        (KUSCIA, "TASK_UNKNOWN"),
        (ME, None),  # plays the guest: a report for the host has no effect
        (STRANGER, "NOT_AUTHORISED"),
    ],
)
def test_a_node_reports_for_itself_only(site, sender, reason):
    """The job's host is a FATE node; an empty sender once counted as the node with that role."""
    node = site.node
    site.peer.will(says())
    spec = a_job_with(FATE)
    node.job_requests.submit(spec)
    [task] = wait_for(
        lambda: list(node.store.jobs.get(spec.job_id).tasks.values()),
        10,
    )
    failure = {
        "task_id": task.task_id,
        "role": "host",
        "status": "FAILED",
    }
    headers = {"x-source-node-id": sender} if sender else {}

    response = ask(node, "peer", "POST", CALLBACK_OF_PEERS, json=failure, headers=headers).json()

    if reason is not None:
        assert response["data"]["reason"] == reason
    job = node.store.jobs.get(spec.job_id)
    for part in job.tasks["a"].nodes.values():
        assert TaskStatus.FAILED not in part.roles.values()
    node.job_requests.stop(spec.job_id, "")
