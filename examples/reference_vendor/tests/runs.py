"""Starts the image's process with the environment that an engine sets."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent.parent
DATA = HERE.parent / "data"
RSA = {
    "intersect_method": "rsa",
    "only_output_key": "False",
    "rsa_params": '{"key_length": 1024}',
}


def environment(
    loopback,
    root,
    role="guest",
    **changes,
):
    values = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(HERE),
        "PYTHONWARNINGS": "error",
        "system.storage": f"file://{root}",
        "system.transport": loopback.address,
        "system.callback": loopback.callback,
        "config.self_role": f"{role}.0",
        "config.task_id": "task_1",
        "config.session_id": "session_1",
        "config.trace_id": "trace",
        "config.token": f"token-{role}",
        "config.log.path": str(root / "logs" / role),
        "config.node_id.guest.0": "N1",
        "config.node_id.host.0": "N1",
        "config.inst_id.guest.0": "I1",
        "config.inst_id.host.0": "I1",
        "config.deadline": "30",
        "runtime.component.name": "Intersection",
        "runtime.component.input.train_data": json.dumps(
            {"namespace": "testspace", "name": f"test_{role}"}
        ),
        "runtime.component.output.train_data": json.dumps(
            {"namespace": f"job-{role}-0", "name": "data"}
        ),
        "runtime.component.output.train-intersection": json.dumps(
            {"namespace": f"job-{role}-0", "name": "report"}
        ),
    }
    for name, value in RSA.items():
        values[f"runtime.component.parameter.{name}"] = value
    return {name: value for name, value in (values | changes).items() if value is not None}


@contextmanager
def started(env, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "refvendor", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process):
    """The exit code and the log lines."""
    out, err = process.communicate(timeout=90)
    assert err == ""
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def run(env, *arguments):
    with started(env, *arguments) as process:
        return ended(process)


def statuses(loopback, role):
    return [body["status"] for body in loopback.callbacks if body["role"] == f"{role}.0"]
