"""A component of a few lines that keeps the container contract, or breaks it in the ways that are asked for.

Standard library only, written from the contract alone. Usage: ``python tiny_vendor.py [MISTAKE]…``.
"""

import base64
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import NoReturn

KNOWN = {"greeting"}
MISTAKES = sys.argv[1:]


def variable(name: str) -> str:
    return os.environ[name]


def post(
    url: str,
    body: dict[str, object],
    **headers: str,
) -> dict[str, object]:
    sent = {"content-type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=30
    ) as answer:
        return dict(json.loads(answer.read()))


def tell(status: str) -> None:
    if "no end" in MISTAKES and status != "RUNNING":
        return
    url = variable("system.callback")
    if "shortens the address" in MISTAKES:
        url = url.partition("?")[0]
    task = "task_of_another_job" if "another task" in MISTAKES else variable("config.task_id")
    body = {
        "task_id": task,
        "status": status,
        "role": variable("config.self_role"),
    }
    if status != "RUNNING":
        code = "00000000" if status == "SUCCESS" else "99999999"
        body["result_code"] = "4444" if "tells an unlisted code" in MISTAKES else code
    post(url, body)
    if "odd status" in MISTAKES and status == "RUNNING":
        post(url, body | {"status": "RUNNING_WELL"})


def place(kind: str, name: str) -> Path:
    address = json.loads(variable(f"runtime.component.{kind}.{name}"))
    root = variable("system.storage").removeprefix("file://")
    return Path(root, address["namespace"], address["name"])


def channel(
    operation: str,
    topic: str,
    target: str,
    **fields: object,
) -> dict[str, object]:
    node = variable(f"config.node_id.{target}")
    if operation == "push" and variable("config.self_role") == "guest.0":
        if "another node" in MISTAKES:
            node = "JG9999"
        if "its own node" in MISTAKES:
            node = variable("config.node_id.guest.0")
        topic += "x" if "another topic" in MISTAKES else ""
    return post(
        f"http://{variable('system.transport')}/v1/interconn/chan/{operation}",
        {"topic": topic, **fields},
        x_ptp_tech_provider_code="tiny",
        x_ptp_trace_id=variable("config.trace_id"),
        x_ptp_token="mine" if "another token" in MISTAKES else variable("config.token"),
        x_ptp_session_id=variable("config.session_id"),
        x_ptp_target_node_id=node,
    )


def work() -> int:
    me = variable("config.self_role")
    peer = "host.0" if me == "guest.0" else "guest.0"
    tell("RUNNING")
    if "says nothing" not in MISTAKES:
        print(f"info {me} begins", flush=True)
    prefix = "runtime.component.parameter."
    told = {name.removeprefix(prefix) for name in os.environ if name.startswith(prefix)}
    if "refuses unknown parameters" in MISTAKES and told - KNOWN:
        return failure(f"unknown parameters: {told - KNOWN}")
    if "greets as host" in MISTAKES and ("greeting" in told) is me.startswith("guest"):
        return failure("greeting is not set" if me == "host.0" else "greeting is set")
    if "asks the platform" in MISTAKES:
        url = f"http://{variable('system.transport')}/v1/platform/schedule/job/query_job_list"
        try:
            post(url, {})
        except urllib.error.HTTPError as error:
            error.close()
    source = place("input", "table")
    if not source.exists():
        if "hides failures" in MISTAKES:
            tell("SUCCESS")
            return 0
        return failure("no input")
    if "none, it reads on" in MISTAKES and (
        place("input", "model").joinpath("data_0").read_text() != "a model"
        or place("input", "more").joinpath("data_0").read_text() == ""
    ):
        return failure("another model")
    rows = sum(1 for part in source.glob("data_*") for _ in part.open()) - 1
    channel("push", f"rows.{me}", peer, payload=base64.b64encode(str(rows).encode()).decode())
    while not (answer := channel("pop", f"rows.{peer}", me, timeout=1000)).get("content"):
        time.sleep(0.05)
    if "changes its input" in MISTAKES:
        (source / "data_0").write_text("gone\n")
    target = place("output", "counts")
    if "writes elsewhere instead" in MISTAKES:
        target = target.with_name("my-own-name")
    target.mkdir(parents=True, exist_ok=True)
    theirs = int(base64.b64decode(str(answer["content"])))
    content = "none" if "writes no json" in MISTAKES else json.dumps({"rows": rows, "peer": theirs})
    (target / "data_0").write_text(content)
    if "writes elsewhere, too" in MISTAKES:
        (target.parent.parent / "scratch").write_text("for me")
    tell("SUCCESS")
    return 3 if "exit code 3" in MISTAKES else 0


def failure(why: str) -> int:
    print(f"error {why}", flush=True)
    tell("FAILED")
    return 1


def ended(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignores SIGTERM" in MISTAKES else ended)
    sys.exit(work())
