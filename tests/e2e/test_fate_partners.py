"""A job over FATE's partner protocol between real nodes, with a third node of the standard."""

import json
import sysconfig
from typing import Any

from tests.e2e import jobs
from tests.e2e.jobs import ARBITER, GUEST, HOST
from tests.e2e.nodes import VENDOR_COMMAND, Federation, Node, process_engine, wait_for
from tests.e2e.recorder import Exchange, Recorder

# The form in which the containers of each node send their messages.
FORMS = {
    GUEST: "bare",
    HOST: "protobuf",
    ARBITER: "grpc",
}
PARTNER = "/v2/partner"
TASK = ["/task/resource/apply", "/task/status/update", "/task/start"]


def engine_with_form(form: str) -> dict[str, Any]:
    """Return the settings of a process engine with an image that sends messages in a form."""
    python, option, code = VENDOR_COMMAND
    # grpcio is installed for the tests, and not in the vendor's environment.
    with_grpcio = f"import sys\nsys.path.append({sysconfig.get_path('platlib')!r})\n{code}"
    command = ["/usr/bin/env", f"CHANNEL_FORM={form}", python, option, with_grpcio]
    return process_engine("unionpay:2.0.0", command=command)


def route_through(
    recorder: Recorder,
    guest: Node,
    host: Node,
    arbiter: Node,
) -> None:
    """Connect guest and host by FATE's protocol, and both to the arbiter by the standard's.

    The guest's requests pass the recorder.
    """
    by_fate = {
        "host": "127.0.0.1",
        "profile": "fate-partner",
    }
    guest.route(**{HOST: by_fate | {"port": recorder.port}, ARBITER: recorder.port})
    host.route(**{GUEST: by_fate | {"port": guest.peer_port}, ARBITER: arbiter.peer_port})


def was_told_of_the_end(recorder: Recorder) -> bool:
    """Return whether the host was told of the job's end."""
    return any(exchange.path == f"{PARTNER}/job/stop" for exchange in recorder.exchanges)


def test_one_job_mixes_a_party_of_fates_protocol_and_one_of_the_standards(tmp_path):
    """No party learns another one's data; each sends messages in a form of its own."""
    federation = Federation(
        tmp_path,
        FORMS,
        engine_with_form("json"),
        fate={"enabled": True},
    )
    guest, host, arbiter = federation.nodes.values()
    for node_id, form in FORMS.items():
        federation[node_id].settings["engine"] = engine_with_form(form)
    with Recorder({node.id: node.peer_port for node in (host, arbiter)}) as recorder:
        route_through(recorder, guest, host, arbiter)
        with federation:
            jobs.prepare(federation, GUEST, HOST)
            job_id = guest.submit(jobs.lr_job(GUEST, HOST, ARBITER, max_iter=2))
            job = guest.wait_job(job_id, 120)
            assert job["progress"] == 100
            nodes_of_tasks = {task["name"]: set(task["nodes"]) for task in job["tasks"]}
            assert nodes_of_tasks == {
                "intersect_rsa_1": {GUEST, HOST},
                "hetero_lr_1": {GUEST, HOST, ARBITER},
            }
            assert guest.outputs(job_id)["hetero_lr_1", "guest.0", "report0"]["there"]
            assert host.wait_job(job_id)["outcome"] == "SUCCEEDED"
            wait_for(lambda: was_told_of_the_end(recorder), 20, about="the host is told of the end")

    about_job = [exchange for exchange in recorder.exchanges if job_id in json.dumps(exchange.body)]
    check_arbiter_s_requests(about_job)
    check_host_s_requests(about_job, job_id)


def check_arbiter_s_requests(exchanges: list[Exchange]) -> None:
    """Check that all requests to the arbiter are the standard's."""
    paths = [exchange.path for exchange in exchanges if exchange.to == ARBITER]
    assert {path.split("/")[1] for path in paths} == {"v1"}


def check_host_s_requests(
    exchanges: list[Exchange],
    job_id: str,
) -> None:
    """Check order, responses and contents of the requests to the host."""
    control = []
    for exchange in exchanges:
        if exchange.to == HOST and "/chan/" not in exchange.path:
            control.append(exchange)
    assert {exchange.response["code"] for exchange in control} == {0}

    collects = [exchange for exchange in control if exchange.path.endswith("/collect")]
    statuses = {exchange.response["data"]["party_status"] for exchange in collects}
    assert statuses <= {"running", "success"}

    changes = [exchange for exchange in control if exchange not in collects]
    paths = [exchange.path.removeprefix(PARTNER) for exchange in changes]
    assert "/job/update" in paths  # the progress was reported
    order = [path for path in paths if path != "/job/update"]
    assert order[:10] == [
        "/job/create",
        "/job/status/update",
        "/job/resource/apply",
        "/job/start",
        *TASK,
        *TASK,
    ]
    assert sorted(order[10:]) == [
        "/job/status/update",
        "/job/stop",
        "/task/status/update",
        "/task/status/update",
    ]

    (create,) = [exchange for exchange in control if exchange.path.endswith("/job/create")]
    assert "test_guest" not in json.dumps(create.body)
    assert "test_host" in json.dumps(create.body)
    tasks = {exchange.body["task_id"] for exchange in control if "/task/" in exchange.path}
    assert tasks == {f"{job_id}_intersect_rsa_1", f"{job_id}_hetero_lr_1"}
