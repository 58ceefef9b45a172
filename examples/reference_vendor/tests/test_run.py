"""Whole runs of the image's process: exit codes, report, last line, signals. The transport is on
loopback.
"""

import csv
import json
import os
import re
import signal

import pytest
import servers
from runs import DATA, HERE, ended, environment, run, started, statuses


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_two_processes_intersect_real_data(loopback, root):
    with (
        started(environment(loopback, root, "guest")) as guest,
        started(environment(loopback, root, "host")) as host,
    ):
        for process in (guest, host):
            code, lines = ended(process)
            assert code == 0
            last = lines[-1]
            assert last["result_code"] == "00000000"
            assert last["status"] == "SUCCESS"
            assert last["exit_code"] == 0
            assert all({"time", "level", "message"} <= set(line) for line in lines)
            assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", last["time"])
    for role, width in (("guest", 12), ("host", 21)):
        output = rows(root / f"job-{role}-0" / "data" / "data_0")
        ids = [row[0] for row in output[1:]]
        assert len(ids) == 509
        assert ids == sorted(ids)
        assert {len(row) for row in output} == {width}
        assert rows(root / f"job-{role}-0" / "report" / "data_0") == [
            ["party", "count"],
            ["guest.0", "540"],
            ["host.0", "535"],
            ["intersection", "509"],
        ]
        assert statuses(loopback, role) == ["RUNNING", "SUCCESS"]
        (copy,) = (root / "logs" / role).iterdir()
        assert json.loads(copy.read_text().splitlines()[-1])["result_code"] == "00000000"
    assert loopback.held() == 0, "both released what they read"
    finished = [body for body in loopback.callbacks if body["status"] == "SUCCESS"]
    assert {body["result_code"] for body in finished} == {"00000000"}
    bodies = " ".join(json.dumps(request.body) for request in loopback.requests)
    assert not any(row[0] in bodies for row in rows(DATA / "breast_hetero_guest.csv")[1:20])


def test_parties_work_together_on_s3_and_on_hdfs(loopback, root):
    with servers.bucket() as s3, servers.folder() as hdfs:
        for place, role in ((s3, "guest"), (hdfs, "host")):
            place.operator.write(
                f"testspace/test_{role}", (DATA / f"breast_hetero_{role}.csv").read_bytes()
            )
        with (
            started(environment(loopback, root, "guest", **{"system.storage": s3.url})) as guest,
            started(environment(loopback, root, "host", **{"system.storage": hdfs.url})) as host,
        ):
            assert [ended(process)[0] for process in (guest, host)] == [0, 0]
        for place, role in ((s3, "guest"), (hdfs, "host")):
            report = bytes(place.operator.read(f"job-{role}-0/report/data_0")).decode()
            assert report.split() == [
                "party,count",
                "guest.0,540",
                "host.0,535",
                "intersection,509",
            ]


def test_an_empty_environment_names_every_variable_and_exits_2():
    code, lines = run({"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE)})
    assert code == 2
    assert lines[-1]["result_code"] == "99999999"
    for name in (
        "system.storage",
        "system.transport",
        "config.self_role",
        "config.task_id",
        "config.session_id",
    ):
        assert name in lines[-1]["result_message"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"runtime.component.parameter.intersect_method": "dh"}, 2, "intersect_method"),
        (
            {"runtime.component.parameter.rsa_params": '{"key_length": 512}'},
            2,
            "rsa_params.key_length",
        ),
        (
            {"runtime.component.name": "Union"},
            2,
            "runtime.component.name: must be one of Intersection",
        ),
        (
            {"config.self_role": "arbiter.0", "config.node_id.arbiter.0": "N1"},
            2,
            "has the roles guest, host",
        ),
        ({"system.transport": "nowhere"}, 2, "system.transport"),
        ({"config.session_id": None, "config.node_id.host.0": ""}, 2, "config.node_id.host.0"),
        ({"config.deadline": "0.5"}, 3, "host.0's message hello 0 did not come"),
        ({"system.storage": "ftp://h:1?username=u&password=hunter2"}, 4, "ftp is not supported"),
    ],
)
def test_exit_codes_and_reports_of_failures(
    loopback,
    root,
    changes,
    code,
    words,
):
    exit_code, lines = run(environment(loopback, root, **changes))
    assert exit_code == code
    last = lines[-1]
    assert last["status"] == "FAILED"
    assert last["result_code"] == "99999999"
    assert last["exit_code"] == code
    assert words in last["result_message"]
    assert "hunter2" not in json.dumps(lines)
    report = loopback.callbacks[-1]
    assert report["status"] == "FAILED"
    assert report["result_code"] == "99999999"
    assert words in report["result_message"]


def test_a_failing_party_ends_its_peer_with_it(loopback, root):
    (root / "testspace" / "test_host").unlink()
    with (
        started(environment(loopback, root, "guest")) as guest,
        started(environment(loopback, root, "host")) as host,
    ):
        host_code, host_lines = ended(host)
        guest_code, guest_lines = ended(guest)
    assert host_code == 4
    assert guest_code == 1
    assert "testspace/test_host" in host_lines[-1]["result_message"]
    assert "host.0 gave up" in guest_lines[-1]["result_message"]
    assert not (root / "job-guest-0").exists(), "nothing half-written"


def test_an_output_that_cannot_be_written_exits_4(loopback, root):
    (root / "job-guest-0").write_text("in the way")
    with (
        started(environment(loopback, root, "guest")) as guest,
        started(environment(loopback, root, "host")) as host,
    ):
        assert ended(guest)[0] == 4
        assert ended(host)[0] == 0
    assert statuses(loopback, "guest") == ["RUNNING", "FAILED"]


def test_a_log_directory_that_cannot_be_written_does_not_matter(loopback, root):
    (root / "logs").write_text("in the way")
    code, lines = run(environment(loopback, root, **{"config.deadline": "0.2"}))
    assert code == 3
    assert any(line["message"] == "log directory cannot be written" for line in lines)


@pytest.mark.parametrize("callback", ["heard", "held"])
def test_sigterm_reports_and_exits_143(
    loopback,
    root,
    callback,
):
    if callback == "held":
        loopback.fault = lambda request: "503" if request.path == "/callback" else None
    with started(environment(loopback, root)) as guest:
        loopback.wait_for(lambda: any(request.verb == "pop" for request in loopback.requests))
        guest.send_signal(signal.SIGTERM)
        code, lines = ended(guest)
    assert code == 143
    assert lines[-1]["status"] == "FAILED"
    assert lines[-1]["result_code"] == "99999999"
    assert lines[-1]["exit_code"] == 143
    if callback == "heard":
        assert statuses(loopback, "guest") == ["RUNNING", "FAILED"]
        assert loopback.callbacks[-1]["result_message"] == "terminated by SIGTERM"


def test_the_selftest_passes():
    code, lines = run(
        {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE),
        },
        "--selftest",
    )
    assert code == 0
    assert lines[-1]["result_code"] == "00000000"
    assert {line["component"] for line in lines[:-1]} == {
        "Intersection",
        "HeteroSecureBoost",
        "HeteroLR",
    }


def test_a_failure_without_a_name_keeps_its_words_to_itself(loopback, root):
    """A bug may quote data: the platform hears its type, the party's own log the rest."""
    path = root / "sitecustomize.py"
    path.write_text(
        "import refvendor.components.intersection as i\n"
        "def broken(*a):\n    raise KeyError('secret-person-1')\n"
        "i.read_rows = broken\n"
    )
    with (
        started(
            environment(
                loopback,
                root,
                "guest",
                PYTHONPATH=f"{HERE}{os.pathsep}{root}",
            )
        ) as guest,
        started(environment(loopback, root, "host")) as host,
    ):
        code, lines = ended(guest)
        assert ended(host)[0] == 1
    assert code == 1
    assert lines[-1]["result_message"] == "internal error: KeyError"
    assert "secret-person-1" not in json.dumps(loopback.callbacks)
    assert any("secret-person-1" in line.get("trace", "") for line in lines)
