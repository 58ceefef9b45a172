"""A component of a few lines that keeps the container contract, or breaks it in the way that is asked for.

Standard library only, written from the contract alone. Usage: ``python tiny_vendor.py [MISTAKE]``.
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
MISTAKE = sys.argv[1] if len(sys.argv) > 1 else ""


def variable(name: str) -> str:
    return os.environ[name]


def post(url: str, body: dict[str, object], **headers: str) -> dict[str, object]:
    sent = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return dict(json.loads(answer.read()))


def tell(status: str) -> None:
    if MISTAKE == "no callback" or (MISTAKE == "no end" and status != "RUNNING"):
        return
    if MISTAKE == "only the end" and status == "RUNNING":
        return
    url = variable("system.callback")
    if MISTAKE == "shortens the address":
        url = url.partition("?")[0]
    task = "task_of_another_job" if MISTAKE == "another task" else variable("config.task_id")
    body = {"task_id": task, "status": status, "role": variable("config.self_role")}
    if status != "RUNNING":
        code = "00000000" if status == "SUCCESS" else "99999999"
        body["result_code"] = "4444" if MISTAKE == "tells an unlisted code" else code
    post(url, body)
    if MISTAKE == "odd status" and status == "RUNNING":
        post(url, body | {"status": "RUNNING_WELL"})


def place(kind: str, name: str) -> Path:
    address = json.loads(variable(f"runtime.component.{kind}.{name}"))
    root = variable("system.storage").removeprefix("file://")
    return Path(root, address["namespace"], address["name"])


def channel(operation: str, topic: str, target: str, **fields: object) -> dict[str, object]:
    node = variable(f"config.node_id.{target}")
    form = {}
    if operation == "push" and variable("config.self_role") == "guest.0":
        node = {"another node": "JG9999", "its own node": variable("config.node_id.guest.0")}.get(MISTAKE, node)
        form = {"content_type": "text/plain"} if MISTAKE == "another form" else {}
        topic += "x" if MISTAKE == "another topic" else ""
    return post(
        f"http://{variable('system.transport')}/v1/interconn/chan/{operation}",
        {"topic": topic, **fields},
        **form,
        x_ptp_tech_provider_code="tiny",
        x_ptp_trace_id=variable("config.trace_id"),
        x_ptp_token="mine" if MISTAKE == "another token" else variable("config.token"),
        x_ptp_session_id=variable("config.session_id"),
        x_ptp_target_node_id=node,
    )


def work() -> int:
    me = variable("config.self_role")
    peer = "host.0" if me == "guest.0" else "guest.0"
    if MISTAKE == "none, it is quick":  # too far on to be ended by what comes now
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("RUNNING")
    if MISTAKE == "none, it is quick":
        time.sleep(0.3)
        tell("SUCCESS")
        return 0
    if MISTAKE != "says nothing":
        print(f"info {me} begins", flush=True)
    prefix = "runtime.component.parameter."
    told = {name.removeprefix(prefix) for name in os.environ if name.startswith(prefix)}
    if MISTAKE == "refuses unknown parameters" and told - KNOWN:
        return failure(f"unknown parameters: {told - KNOWN}")
    if MISTAKE == "greets as host" and ("greeting" in told) is me.startswith("guest"):
        return failure("greeting is not set" if me == "host.0" else "greeting is set")
    if MISTAKE == "needs the optional" and "greeting" not in told:
        return failure("greeting is not set")
    if MISTAKE == "asks the platform":
        url = f"http://{variable('system.transport')}/v1/platform/schedule/job/query_job_list"
        try:
            post(url, {})
        except urllib.error.HTTPError as error:
            error.close()
    source = place("input", "table")
    if not source.exists():
        if MISTAKE == "hides failures":
            tell("SUCCESS")
            return 0
        return failure("no input")
    if MISTAKE == "none, it reads on" and (
        place("input", "model").joinpath("data_0").read_text() != "a model"
        or place("input", "more").joinpath("data_0").read_text() == ""
    ):
        return failure("another model")
    rows = sum(1 for part in source.glob("data_*") for _ in part.open()) - 1
    channel("push", f"rows.{me}", peer, payload=base64.b64encode(str(rows).encode()).decode())
    begun = time.monotonic()
    while not (answer := channel("pop", f"rows.{peer}", me, timeout=1000)).get("content"):
        if MISTAKE.startswith(("another", "its own")) and time.monotonic() > begun + 2:
            return failure("nothing comes")
        time.sleep(0.05)
    if MISTAKE == "changes its input":
        (source / "data_0").write_text("gone\n")
    target = place("output", "counts")
    if MISTAKE == "writes elsewhere instead":
        target = target.with_name("my-own-name")
    target.mkdir(parents=True, exist_ok=True)
    theirs = int(base64.b64decode(str(answer["content"])))
    content = "none" if MISTAKE == "writes no json" else json.dumps({"rows": rows, "peer": theirs})
    (target / "data_0").write_text(content)
    if MISTAKE == "writes elsewhere, too":
        (target.parent.parent / "scratch").write_text("for me")
    tell("SUCCESS")
    return 3 if MISTAKE == "exit code 3" else 0


def failure(why: str) -> int:
    print(f"error {why}", flush=True)
    tell("FAILED")
    return 1


def ended(number: int, frame: FrameType | None) -> NoReturn:
    if MISTAKE == "calls its end a success":
        tell("SUCCESS")
        sys.exit(0)
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN if MISTAKE == "ignores SIGTERM" else ended)
    sys.exit(work())
