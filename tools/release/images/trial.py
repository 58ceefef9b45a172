"""A node with one job, inside an installation: one node plays both parties of the shell vendor.

    python trial.py EXAMPLES FOLDER

It imports nothing of the project: the gateway of the interpreter that runs it is tried. EXAMPLES
is the folder ``examples`` of the sources, FOLDER an empty folder for the node.
"""

import csv
import io
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

NODE = "JG0100001100000010"
COMMAND = [sys.executable, "-m", "gateway.cli.main"]
PORT = 17380
START_TIMEOUT = 300.0  # seconds; an emulated machine is slow
JOB_TIMEOUT = 600.0  # seconds
PAUSE = 0.5  # seconds between two looks


def main() -> None:
    """Run the trial; print its result as JSON. Ends with an error if a step fails."""
    examples, folder = (Path(word).resolve() for word in sys.argv[1:3])
    config = configure(examples, folder)
    doctor = run_command("doctor", "--config", str(config), "--json")
    gateway = subprocess.Popen(
        [*COMMAND, "serve", "--config", str(config), "--ready-file", str(folder / "ready.json")]
    )
    try:
        address = await_ready(folder / "ready.json", gateway)
        result = run_job(address, examples)
    finally:
        gateway.terminate()
        gateway.wait()
    print(
        json.dumps(
            {
                "machine": platform.machine(),
                "doctor": [step["result"] for step in json.loads(doctor)["steps"]],
                "job": result,
            }
        )
    )


def configure(examples: Path, folder: Path) -> Path:
    """Write the node's configuration, with the vendor as a process; return its path."""
    config = folder / "node.yml"
    run_command(
        "init",
        *("--node", NODE, "--output", str(config), "--engine", "process", "--port", str(PORT)),
    )
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    script = str(examples / "shell_vendor" / "run.sh")
    image = registration_of(examples)["metadata"]["image"]
    settings["engine"]["process"] = {"images": {image: {"command": ["/bin/sh", script]}}}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return config


def registration_of(examples: Path) -> Any:
    """Return the vendor's registration."""
    path = examples / "shell_vendor" / "register.json"
    return json.loads(path.read_text(encoding="utf-8"))


def run_command(*words: str) -> str:
    """Return the output of a command of the gateway. Raises `SystemExit` with its text."""
    process = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        sys.exit(f"{words[0]} failed:\n{process.stdout}{process.stderr}")
    return process.stdout


def await_ready(file: Path, gateway: subprocess.Popen[bytes]) -> str:
    """Return the operators' address once the node responds."""
    deadline = time.monotonic() + START_TIMEOUT
    while not file.exists():
        if gateway.poll() is not None or time.monotonic() > deadline:
            sys.exit("the gateway did not start")
        time.sleep(PAUSE)
    return str(json.loads(file.read_text(encoding="utf-8"))["operator"])


def run_job(address: str, examples: Path) -> dict[str, Any]:
    """Run a job of both roles on the node; return its outcome and the host's report."""
    client = httpx.Client(base_url=address, timeout=120, trust_env=False)
    post(client, "/v2/provider/register", json=registration_of(examples))
    for role, rows in (("guest", 3), ("host", 5)):
        post(
            client,
            "/v2/component/upload/file",
            files={"file": ("table.csv", table_of(rows))},
            data=upload_fields(role),
        )
    body = post(client, "/v1/platform/schedule/job/create_all", json=job_of())
    job_id = body["data"]["job_id"]
    job = await_end(client, job_id)
    if job["outcome"] != "SUCCEEDED":
        sys.exit(f"the job ended as {job['outcome']}: {job.get('failure')}")
    report = client.get(f"/api/v1/jobs/{job_id}/outputs").json()["outputs"]
    counts = {output["party"]: output["value"] for output in report if output["key"] == "counts"}
    return {"outcome": job["outcome"], "counts": counts}


def post(client: httpx.Client, path: str, **options: Any) -> Any:
    """Return the response to a request. Raises `SystemExit` for a refusal."""
    response = client.post(path, **options)
    body = response.json()
    if response.status_code >= 400 or body.get("code", 0) != 0:
        sys.exit(f"{path}: {body}")
    return body


def await_end(client: httpx.Client, job_id: str) -> dict[str, Any]:
    """Return a job after its end."""
    deadline = time.monotonic() + JOB_TIMEOUT
    while True:
        job: dict[str, Any] = client.get(f"/api/v1/jobs/{job_id}").json()
        if job["status"] in ("FINISHED", "REJECTED"):
            return job
        if time.monotonic() > deadline:
            sys.exit(f"the job is still {job['status']}")
        time.sleep(PAUSE)


def table_of(rows: int) -> bytes:
    """Return a table with a number of rows."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", "x"])
    for number in range(rows):
        writer.writerow([f"id{number}", number])
    return text.getvalue().encode()


def upload_fields(role: str) -> dict[str, str]:
    """Return the fields of the upload of a role's table."""
    return {
        "namespace": "trial",
        "name": role,
        "head": "true",
        "partitions": "1",
        "meta": json.dumps({"delimiter": ",", "match_id_name": "id"}),
    }


def job_of() -> dict[str, Any]:
    """Return the job as ``create_all`` takes it."""
    component = {
        "name": "echo",
        "componentName": "Echo",
        "provider": "shellworks",
        "version": "1.0.0",
        "input": [],
        "output": [{"type": "dataset", "key": "copy"}, {"type": "report", "key": "counts"}],
    }
    inputs = {}
    for role in ("guest", "host"):
        inputs[role] = {"0": {"echo": {"dataset_id": f"trial#{role}"}}}
    return {
        "flow_id": "trial",
        "dag": {"version": "2.0", "components": [component]},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": NODE},
            "role": {"guest": [NODE], "host": [NODE]},
            "job_params": {"common": {"sync_type": "poll"}},
            "task_params": {"common": {}, **inputs},
        },
    }


if __name__ == "__main__":
    main()
