"""Runs inside a machine without a network: installs the bundle, as an operator would.

    python3.11 inside_machine.py install|upgrade

It prints JSON as its last line. Folders: /bundle, /old (the former version's wheels), /examples,
/trial.py.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

NODE = "JG0100001100000010"
STATE = Path("/var/lib/bfia")
CONFIG = STATE / "node.yml"
PREFIX = Path("/opt/bfia")
INSTALLER = "/bundle/install.sh"
START_TIMEOUT = 120.0  # seconds


def run(*command, user=None):
    """Run a command; return its output. Ends the script with the output if the command fails."""
    print("+", *command, flush=True)
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user,
        group=user,
        cwd="/",
    )
    print(process.stdout, flush=True)
    if process.returncode != 0:
        sys.exit(f"exit code {process.returncode}")
    return process.stdout


def fresh():
    """Install from nothing, twice, and run the demo."""
    run("sh", INSTALLER, "check")
    run(
        "sh",
        INSTALLER,
        "install",
        "--node",
        NODE,
    )
    again = run("sh", INSTALLER, "install")
    demo = run("sh", INSTALLER, "demo")
    run("sh", INSTALLER, "uninstall")
    return {
        "again": "is in" in again,
        "demo": "AUC, both together" in demo,
        "user": run("id", "-un", "bfia").strip(),
        "data_stay": CONFIG.exists(),
        "programs_stay": PREFIX.exists(),
    }


def former_version():
    """Install the former version by hand, as its documents said, and run a job."""
    pip = next(Path("/bundle/wheels").glob("pip-*.whl")) / "pip"
    run(
        "python3.11",
        "-m",
        "venv",
        "--without-pip",
        str(PREFIX),
    )
    python = str(PREFIX / "bin" / "python")
    options = (
        "--quiet",
        "--no-index",
        "--no-deps",
        "--find-links",
        "/old/wheels",
    )
    run(
        python,
        str(pip),
        "install",
        *options,
        "--requirement",
        "/old/requirements.txt",
    )
    run(
        python,
        str(pip),
        "install",
        *options,
        "bfia-gateway",
    )
    run(
        "useradd",
        "--system",
        "--user-group",
        "--home-dir",
        str(STATE),
        "bfia",
    )
    STATE.mkdir(mode=0o700)
    shutil.chown(STATE, "bfia", "bfia")
    run(
        python,
        "/trial.py",
        "/examples",
        str(STATE),
        user="bfia",
    )


def look(program):
    """Return the schema that a version finds, and the jobs that its gateway shows."""
    command = str(program / "bin" / "bfia-gateway")
    check = run(
        command,
        "migrate",
        "--check",
        "--json",
        "--config",
        str(CONFIG),
        user="bfia",
    )
    ready = STATE / "ready.json"
    ready.unlink(missing_ok=True)
    serve = [
        command,
        "serve",
        "--config",
        str(CONFIG),
        "--ready-file",
        str(ready),
    ]
    gateway = subprocess.Popen(
        serve,
        user="bfia",
        group="bfia",
        cwd="/",
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        jobs = run(
            command,
            "job",
            "list",
            "--json",
            "--config",
            str(CONFIG),
            user="bfia",
        )
    finally:
        gateway.terminate()
        gateway.wait()
    return {
        "schema": json.loads(check)["newest"],
        "outcomes": outcomes(json.loads(jobs)),
    }


def outcomes(listing):
    return [job["outcome"] for job in listing["jobs"]]


def upgrade():
    """Upgrade the former version, look at its job, and go back twice."""
    former_version()
    results = {"before": look(PREFIX)}
    run("sh", INSTALLER, "upgrade")
    results["after"] = look(PREFIX / "current")
    results["again"] = run(
        "sh",
        INSTALLER,
        "upgrade",
    ).strip()
    run("sh", INSTALLER, "rollback")
    results["back"] = look(PREFIX / "current")
    run("sh", INSTALLER, "upgrade")
    results["finally"] = look(PREFIX / "current")
    results["kept"] = len(list((STATE / "backups").glob("replaced-*/gateway.db")))
    return results


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "install": fresh,
                "upgrade": upgrade,
            }[sys.argv[1]]()
        )
    )
