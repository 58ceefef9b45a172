"""A job over FATE's partner protocol between real nodes, with a node of the standard beside."""

import json
import sysconfig
from typing import Any

from tests.e2e import jobs
from tests.e2e.nodes import VENDOR_COMMAND, Federation, process_engine, wait_for
from tests.e2e.recorder import Recorder

GUEST, HOST, ARBITER = jobs.GUEST, jobs.HOST, jobs.ARBITER
FORMS = {
    GUEST: "bare",
    HOST: "protobuf",
    ARBITER: "grpc",
}


def speaking(form: str) -> dict[str, Any]:
    """Return the settings of a process engine with an image that sends its messages in a form."""
    python, option, code = VENDOR_COMMAND
    with_grpcio = code.replace(
        "import sys; ", f"import sys; sys.path.append({sysconfig.get_path('platlib')!r}); "
    )
    return process_engine(
        "unionpay:2.0.0",
        command=["/usr/bin/env", f"CHANNEL_FORM={form}", python, option, with_grpcio],
    )


def test_one_job_mixes_a_party_of_fates_protocol_and_one_of_the_standards(tmp_path):
    """No party is told another one's data, in either protocol; each sends its messages in a form of its own."""
    federation = Federation(tmp_path, FORMS, speaking("json"), fate={"enabled": True})
    guest, host, arbiter = federation.nodes.values()
    for node, form in FORMS.items():
        federation[node].settings["engine"] = speaking(form)
    with Recorder({node.id: node.peer_port for node in (host, arbiter)}) as recorder:
        by_fate = {"host": "127.0.0.1", "profile": "fate-partner"}
        guest.route(**{HOST: by_fate | {"port": recorder.port}, ARBITER: recorder.port})
        host.route(**{GUEST: by_fate | {"port": guest.peer_port}, ARBITER: arbiter.peer_port})
        with federation:
            jobs.prepare(federation, GUEST, HOST)
            job_id = guest.submit(jobs.lr_job(GUEST, HOST, ARBITER, max_iter=2))
            job = guest.wait_job(job_id, 120)
            assert job["progress"] == 100
            by_name = {t["name"]: set(t["nodes"]) for t in job["tasks"]}
            assert by_name == {
                "intersect_rsa_1": {GUEST, HOST},
                "hetero_lr_1": {GUEST, HOST, ARBITER},
            }
            assert guest.outputs(job_id)["hetero_lr_1", "guest.0", "report0"]["there"]
            assert host.job(job_id)["outcome"] == "SUCCEEDED"
            told = "/v2/partner/job/stop"
            wait_for(
                lambda: told in {s.path for s in recorder.seen},
                20,
                about="the host is told of the end",
            )

    mine = [s for s in recorder.seen if job_id in json.dumps(s.body)]
    assert {s.path.split("/")[1] for s in mine if s.to == ARBITER} == {"v1"}
    control = [s for s in mine if s.to == HOST and "/chan/" not in s.path]
    asked = [s.path.removeprefix("/v2/partner") for s in control if not s.path.endswith("/collect")]
    order = [path for path in asked if path != "/job/update"]
    assert len(asked) > len(order), "the progress was reported"
    task = ["/task/resource/apply", "/task/status/update", "/task/start"]
    assert order[: 4 + 2 * len(task)] == [
        "/job/create",
        "/job/status/update",
        "/job/resource/apply",
        "/job/start",
        *task,
        *task,
    ]
    assert sorted(order[10:]) == ["/job/status/update", "/job/stop", *["/task/status/update"] * 2]
    assert all(s.answer["code"] == 0 for s in control)
    (created,) = (s.body for s in control if s.path.endswith("/job/create"))
    assert "test_guest" not in json.dumps(created)
    assert "test_host" in json.dumps(created)
    collected = [s.answer["data"]["party_status"] for s in control if s.path.endswith("/collect")]
    assert set(collected) <= {"running", "success"}
    assert {s.body["task_id"] for s in control if "/task/" in s.path} == {
        f"{job_id}_{name}" for name in ("intersect_rsa_1", "hetero_lr_1")
    }
