"""The demo, as a newcomer runs it: to its end with processes, and interrupted with containers."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.cli.demo.nodes import MARKER
from tests import forks
from tests.e2e.nodes import ROOT, alive, wait_for
from tests.plain import NO_TLS


def demo(
    home: Path,
    *options: str,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    return forks.run(
        ["demo", "--dir", str(home), *options], env=os.environ | environment, timeout=800
    )


def processes_below(home: Path) -> list[str]:
    """Return the command lines of processes with this folder as argument or working directory."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                folder = os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(home) in line or str(home) in folder:
                lines.append(line)
    return lines


def is_training(home: Path) -> bool:
    """Return whether both parties of the demo's job train."""
    try:
        operator = json.loads((home / "bank" / "ready.json").read_text())["operator"]
        jobs = httpx.get(f"{operator}/api/v1/jobs", trust_env=False, verify=NO_TLS).json()["jobs"]
        if not jobs:
            return False
        job = httpx.get(
            f"{operator}/api/v1/jobs/{jobs[0]['job_id']}", trust_env=False, verify=NO_TLS
        ).json()
    except (OSError, httpx.HTTPError):
        return False
    states = [s for task in job["tasks"] for node in task["nodes"].values() for s in node.values()]
    assert job["status"] not in ("FINISHED", "REJECTED"), job
    return job["tasks"][1]["name"] == "secureboost" and states[2:] == ["RUNNING", "RUNNING"]


def hear_signals() -> None:
    """Restore SIGINT: a test run in the background of a shell ignores it, and so would a child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def containers_below(home: Path) -> list[str]:
    """Return the containers that mount this folder."""
    mounting = []
    for container in containers("bfia.node"):
        inspection = subprocess.run(
            ["docker", "inspect", container],
            capture_output=True,
            text=True,
            check=False,
        )
        if json.dumps(str(home))[1:-1] in inspection.stdout:
            mounting.append(container)
    return mounting


def containers(label: str) -> list[str]:
    command = ["docker", "ps", "-aq", "--filter", f"label={label}"]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def installation_of(container: str) -> str:
    command = [
        "docker",
        "inspect",
        "--format",
        '{{index .Config.Labels "bfia.installation"}}',
        container,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.slow
@pytest.mark.docker
def test_a_demo_that_is_interrupted_in_mid_training_leaves_nothing_running(
    tmp_path, reference_image
):
    home = tmp_path / "demo"
    command = [
        sys.executable,
        "-m",
        "gateway.cli.main",
        "demo",
        "--dir",
        str(home),
        "--engine",
        "docker",
    ]
    command += ["--key-length", "1024"]
    with (
        (tmp_path / "said").open("w") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            preexec_fn=hear_signals,
        ) as process,
    ):
        try:
            wait_for(
                lambda: process.poll() is not None or is_training(home),
                90,
                0.1,
                "both parties train",
            )
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert containers_below(home) != [], (tmp_path / "said").read_text()
            installations = {installation_of(container) for container in containers_below(home)}
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, (tmp_path / "said").read_text()
        finally:
            process.kill()
    assert processes_below(home) == []
    assert containers_below(home) == []
    for installation in installations:
        assert containers(f"bfia.installation={installation}") == []


def test_a_python_without_the_reference_vendor_is_named(tmp_path):
    done = demo(tmp_path / "demo", "--vendor-python", sys.executable)
    assert done.returncode == 1
    assert f"{sys.executable} does not have the reference vendor" in done.stderr
    assert "bfia_reference_vendor" in done.stderr


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path):
    home = tmp_path / "mine"
    (home / "bank").mkdir(parents=True)
    (home / "bank" / "accounts").write_text("precious")
    done = demo(home)
    assert done.returncode == 1
    assert "not made by a demo" in done.stderr
    assert str(home) in done.stderr
    assert (home / "bank" / "accounts").read_text() == "precious"
    assert [p.name for p in home.iterdir()] == ["bank"]


def test_a_demo_that_cannot_start_says_why_and_replaces_only_demos(tmp_path):
    home = tmp_path / "demo"
    (home / "bank").mkdir(parents=True)
    for name in (MARKER, "notes", "bank/old"):
        (home / name).write_text("mine")
    done = demo(
        home,
        BFIA_GATEWAY__LIMITS__BODY_BYTES="none",
        LC_ALL="zh_CN.UTF-8",
    )
    assert done.returncode == 1
    assert "银行的节点未能启动" in done.stderr
    assert "limits.body_bytes" in done.stderr
    assert processes_below(tmp_path) == []
    assert (home / "notes").read_text() == "mine"
    assert not (home / "bank" / "old").exists()


@pytest.mark.slow
def test_a_demo_shows_its_result_and_can_keep_its_nodes(tmp_path):
    home = tmp_path / "demo"
    done = demo(
        home,
        "--keep",
        "--closed",
        "--data",
        "credit",
        "--key-length",
        "1024",
    )
    pids = {
        name: json.loads((home / name / "ready.json").read_text())["pid"]
        for name in ("bank", "partner")
    }
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        for text in (
            "synthetic",
            "partner needs no open port now",
            "bank's address for partner is link://",
            "AUC, both together",
            "AUC, the bank alone",
            "loss per tree",
            "models and reports",
        ):
            assert text in done.stdout, done.stdout
        assert re.search(r"common ids +[1-9]", done.stdout)
        words = re.findall(
            r"^  (?:bank|partner) +((?:[a-z]{5} ?){6})$",
            done.stdout,
            re.MULTILINE,
        )
        assert len(words) == 2
        assert words[0] == words[1]
        for name in pids:
            assert str(home / name / "node.yml") in done.stdout
        entries = {}
        for name in pids:
            (entry,) = yaml.safe_load((home / name / "routes.yml").read_text()).values()
            assert entry["signing"] == "required"
            entries[name] = entry
        assert entries["bank"]["reached"] == "by-link"
        assert "url" not in entries["bank"]
        assert entries["partner"]["dial"] == "out"
        assert entries["partner"]["url"].startswith("https://")
        assert entries["partner"]["certificate"]
        again = demo(home, LC_ALL="zh_CN.UTF-8")
        assert again.returncode == 1
        assert "先前演示的节点仍在运行" in again.stderr
        assert set(again.stderr.partition("kill ")[2].split()) == {str(p) for p in pids.values()}
        assert all(alive(pid) for pid in pids.values())
        assert (home / "bank" / "gateway.db").exists()
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
    wait_for(
        lambda: not processes_below(tmp_path), 30, about="the nodes that were kept are stopped"
    )
