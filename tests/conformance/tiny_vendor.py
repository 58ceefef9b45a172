"""A component of a few lines that keeps the container contract, or breaks it with some mistakes.

Standard library only, written from the contract alone. Usage: ``python tiny_vendor.py [MISTAKE]…``.
"""

import base64
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import NoReturn

PARAMETER_PREFIX = "runtime.component.parameter."
PARAMETERS = {"greeting"}
VARIABLES = dict(os.environ)  # of the container contract
MISTAKES = sys.argv[1:]
LONG = 9 << 20  # bytes of a message that gateways pass on in parts


def post(
    url: str,
    body: dict[str, object],
    **headers: str,
) -> dict[str, object]:
    """Post JSON without a proxy; hyphens in the names of headers are written as underscores."""
    all_headers = {"content-type": "application/json"}
    for name, value in headers.items():
        all_headers[name.replace("_", "-")] = value
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        all_headers,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as response:
        return dict(json.loads(response.read()))


def report(status: str) -> None:
    """Report a status of the task by the callback."""
    is_end = status != "RUNNING"
    if "no end" in MISTAKES and is_end:
        return
    url = VARIABLES["system.callback"]
    if "shortens the address" in MISTAKES:
        url = url.partition("?")[0]
    body: dict[str, object] = {
        "task_id": VARIABLES["config.task_id"],
        "status": status,
        "role": VARIABLES["config.self_role"],
    }
    if "another task" in MISTAKES:
        body["task_id"] = "task_of_another_job"
    if is_end:
        body["result_code"] = result_code(status)
    post(url, body)
    if "odd status" in MISTAKES and not is_end:
        post(url, {**body, "status": "RUNNING_WELL"})


def result_code(status: str) -> str:
    if "tells an unlisted code" in MISTAKES:
        return "4444"
    if status == "SUCCESS":
        return "00000000"
    return "99999999"


def data_folder(kind: str, name: str) -> Path:
    """Return the folder of an input or an output."""
    address = json.loads(VARIABLES[f"runtime.component.{kind}.{name}"])
    root = VARIABLES["system.storage"].removeprefix("file://")
    return Path(root, address["namespace"], address["name"])


def channel(
    operation: str,
    topic: str,
    target: str,
    **fields: object,
) -> dict[str, object]:
    """Push a message to a party, or pop one of this party."""
    node = VARIABLES[f"config.node_id.{target}"]
    if operation == "push" and VARIABLES["config.self_role"] == "guest.0":
        if "another node" in MISTAKES:
            node = "JG9999"
        if "its own node" in MISTAKES:
            node = VARIABLES["config.node_id.guest.0"]
        if "another topic" in MISTAKES:
            topic += "x"
    token = VARIABLES["config.token"]
    if "another token" in MISTAKES:
        token = "mine"
    return post(
        f"http://{VARIABLES['system.transport']}/v1/interconn/chan/{operation}",
        {"topic": topic, **fields},
        x_ptp_tech_provider_code="tiny",
        x_ptp_trace_id=VARIABLES["config.trace_id"],
        x_ptp_token=token,
        x_ptp_session_id=VARIABLES["config.session_id"],
        x_ptp_target_node_id=node,
    )


def work() -> int:
    """Do the task and return the exit code."""
    own_party = VARIABLES["config.self_role"]
    report("RUNNING")
    if "says nothing" not in MISTAKES:
        print(f"info {own_party} begins", flush=True)
    problem = parameter_problem(own_party)
    if problem:
        return fail(problem)
    if "asks the platform" in MISTAKES:
        ask_platform()
    if not data_folder("input", "table").exists():
        if "hides failures" in MISTAKES:
            report("SUCCESS")
            return 0
        return fail("no input")
    if "none, it reads on" in MISTAKES and not has_further_inputs():
        return fail("another model")
    exchange_counts(own_party)
    report("SUCCESS")
    if "exit code 3" in MISTAKES:
        return 3
    return 0


def parameter_problem(own_party: str) -> str:
    """Return why the task fails because of its parameters; empty if it does not."""
    names = set()
    for variable in VARIABLES:
        if variable.startswith(PARAMETER_PREFIX):
            names.add(variable.removeprefix(PARAMETER_PREFIX))
    if "refuses unknown parameters" in MISTAKES and names - PARAMETERS:
        return f"unknown parameters: {names - PARAMETERS}"
    if "greets as host" in MISTAKES:
        is_greeted = "greeting" in names
        if own_party == "host.0" and not is_greeted:
            return "greeting is not set"
        if own_party != "host.0" and is_greeted:
            return "greeting is set"
    return ""


def ask_platform() -> None:
    """Send a request to a path that is not for components."""
    url = f"http://{VARIABLES['system.transport']}/v1/platform/schedule/job/query_job_list"
    try:
        post(url, {})
    except urllib.error.HTTPError as error:
        error.close()


def has_further_inputs() -> bool:
    """Return whether the model is the test's and the second table is not empty."""
    model = (data_folder("input", "model") / "data_0").read_text()
    table = (data_folder("input", "more") / "data_0").read_text()
    return model == "a model" and table != ""


def exchange_counts(own_party: str) -> None:
    """Exchange the numbers of rows with the partner and write both."""
    partner = "guest.0"
    if own_party == "guest.0":
        partner = "host.0"
    source = data_folder("input", "table")
    lines = sum(len(part.read_text().splitlines()) for part in source.glob("data_*"))
    rows = lines - 1  # without the header
    payload = base64.b64encode(str(rows).encode()).decode()
    if "sends a long message" in MISTAKES:
        payload = base64.b64encode(str(rows).encode().rjust(LONG)).decode()
    channel("push", f"rows.{own_party}", partner, payload=payload)
    if "awaits what nobody sends" in MISTAKES:
        receive_count("nothing", own_party)
    partner_rows = receive_count(f"rows.{partner}", own_party)
    if "changes its input" in MISTAKES:
        (source / "data_0").write_text("gone\n")
    write_output(json.dumps({"rows": rows, "peer": partner_rows}))


def receive_count(topic: str, own_party: str) -> int:
    """Wait for a number on the channel."""
    while True:
        message = channel(
            "pop",
            topic,
            own_party,
            timeout=1000,
        )
        if message.get("content"):
            return int(base64.b64decode(str(message["content"])))
        time.sleep(0.05)


def write_output(content: str) -> None:
    target = data_folder("output", "counts")
    if "writes elsewhere instead" in MISTAKES:
        target = target.with_name("my-own-name")
    if "writes no json" in MISTAKES:
        content = "none"
    target.mkdir(parents=True, exist_ok=True)
    (target / "data_0").write_text(content)
    if "writes elsewhere, too" in MISTAKES:
        (target.parent.parent / "scratch").write_text("for me")


def fail(reason: str) -> int:
    """Report a failure and return the exit code."""
    print(f"error {reason}", flush=True)
    report("FAILED")
    return 1


def exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    if "ignores SIGTERM" in MISTAKES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, exit_on_signal)
    sys.exit(work())
