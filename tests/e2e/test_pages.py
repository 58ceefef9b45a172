"""The commands of the pages on the first node and the first hours work as they are written.

A page's commands run in its order in one shell, in an empty folder. They differ from the page in
three things: the ports are free ones, the partner's address is a real node's, and a node that
keeps running goes to the background. ``bfia-gateway`` is a fork of a process that has imported
everything (`tests.forks`).
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from tests import forks
from tests.e2e.nodes import (
    REFERENCE_IMAGE,
    ROOT,
    Federation,
    example,
    free_ports,
    process_engine,
    wait_for,
)

ME, PARTNER = "JG0100001100000010", "JG0100002200000020"
PARTNERS_ADDRESS = "10.0.0.7:7380"
"""as the pages name it"""
PLAN = "curl -s 127.0.0.1:7382/api/v1/jobs/plan -H 'content-type: application/json'"
COMMAND = """#!{python} -ISs
import json, os, socket, sys
way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
way.connect({place!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
socket.send_fds(way, [request.encode()], [0, 1, 2])
sys.exit(int(way.recv(16)))
"""


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(
        rf"^```{kind}\n(.*?)^```",
        text,
        re.DOTALL | re.MULTILINE,
    )


def commands(block: str) -> list[str]:
    """Return a block's commands, each with the lines that continue it."""
    return [c for c in block.replace("\\\n", " ").splitlines() if c.strip()]


@pytest.mark.parametrize(
    "page", ["README", "docs/first-node", "docs/vendor", "docs/platform", "docs/admin"]
)
def test_both_languages_tell_the_same(page):
    english, chinese = (
        [
            re.sub(" +#.*", "", c)
            for kind in ("sh", "yaml")
            for b in blocks(p, kind)
            for c in commands(b)
        ]
        for p in (f"{page}.md", f"{page}.zh-CN.md")
    )
    assert english == chinese != []


@contextmanager
def gateway_in(folder: Path) -> Iterator[dict[str, str]]:
    """Put ``bfia-gateway`` into a folder; yield the environment that finds it.

    Its processes are ended afterwards.
    """
    started: list[forks.Process] = []

    def run(way: socket.socket) -> None:
        with way:
            request, files, _, _ = socket.recv_fds(
                way,
                1 << 20,
                3,
            )
            words, env, cwd = json.loads(request)
            stdin, stdout, stderr = files
            process = forks.start(
                words,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                cwd=cwd,
            )
            started.append(process)
            for file in files:
                os.close(file)
            way.send(str(process.wait() % 256).encode())

    def serve() -> None:
        while True:
            try:
                way, _ = listener.accept()
            except OSError:
                return
            Thread(
                target=run,
                args=(way,),
                daemon=True,
            ).start()

    with (
        TemporaryDirectory() as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(f"{short}/s")
        listener.listen()
        Thread(target=serve, daemon=True).start()
        command = folder / "bin" / "bfia-gateway"
        command.parent.mkdir(exist_ok=True)
        command.write_text(COMMAND.format(python=sys.executable, place=f"{short}/s"))
        command.chmod(0o755)
        path = f"{command.parent}:{os.environ['PATH']}"
        try:
            yield os.environ | {
                "PATH": path,
                "no_proxy": "*",
                "COLUMNS": "200",
            }
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for process in started:
                process.kill()


def run_commands(text: str, folder: Path) -> str:
    """Run commands in a folder that looks like a checkout; return their output."""
    text = re.sub(
        r"^(bfia-gateway serve .*)$",
        "\\1 --ready-file up.json > serve.log 2>&1 &\n"
        "until [ -e up.json ]; do kill -0 $!; sleep 0.1; done",
        text,
        flags=re.MULTILINE,
    )
    for part in ("examples", ".venv-vendor"):
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    with gateway_in(folder) as env:
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; set -v\n{text}"],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def page_commands(
    page: str,
    names: dict[str, str],
) -> str:
    """Return a page's commands. ``names`` has the replacements of texts in the page."""
    text = "".join(blocks(f"docs/{page}.md", "sh"))
    for name, real in names.items():
        text = text.replace(name, real)
    return text


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Federation]:
    """A partner's node with the vendor's image and a table, and our node, not started."""
    federation = Federation(
        tmp_path / "nodes",
        [ME, PARTNER],
        process_engine(REFERENCE_IMAGE),
    )
    partner = federation[PARTNER]
    # Without our key: a node of the page makes one itself.
    partner.route(**{ME: federation[ME].peer_port})
    try:
        partner.start()
        partner.register(example("reference_vendor/register_reference.json"))
        partner.upload(ROOT / "examples/data/breast_hetero_host.csv", "partner", "customers")
        yield federation
    finally:
        federation.__exit__(True)


@pytest.mark.parametrize(
    ("page", "language"),
    [
        ("admin", "C.UTF-8"),
        ("admin.zh-CN", "zh_CN.UTF-8"),
    ],
)
def test_first_hour_of_an_admin(pair, tmp_path, page, language, monkeypatch):
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setenv("LANG", language)
    listen = pair[ME].settings["listen"]
    ports = {
        "7380": listen["peer"]["bind"],
        "7381": listen["container"]["bind"],
        "7382": listen["operator"]["bind"],
    }
    # As an admin would change the addresses that `init` writes.
    moved = "; ".join(f's/bind: "[0-9.]*:{port}"/bind: "{bind}"/' for port, bind in ports.items())
    create = "bfia-gateway token create"
    healthy = f"curl -s {ports['7382']}/health/ready"
    audit = f"curl -s -o /dev/null -w '%{{http_code}}' {ports['7382']}/api/v1/audit"
    names = {
        PARTNERS_ADDRESS: pair[PARTNER].peer.removeprefix("http://"),
        "127.0.0.1:7382": ports["7382"],
        create: f"sed -i '{moved}' node.yml; {create}",
        healthy: f'[ "$({audit})" = 401 ]; {healthy}',
    }
    (tmp_path / "admin").mkdir()
    partners_key = subprocess.run(
        [
            sys.executable,
            "-m",
            "gateway.cli.main",
            "identity",
            "export",
            "-c",
            str(pair[PARTNER].home / "node.yml"),
        ],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    ).stdout
    (tmp_path / "admin" / "their-keys.pem").write_bytes(partners_key)
    assert "data partner, contract 17" in run_commands(
        page_commands(page, names), tmp_path / "admin"
    )


def test_first_hour_of_a_vendor_and_then_of_a_platform(pair):
    me = pair[ME]
    me.start()
    names = {"127.0.0.1:7382": me.operator.removeprefix("http://")}
    run_commands(page_commands("vendor", names), me.home)
    assert "SUCCEEDED" in run_commands(page_commands("platform", names), me.home)


def test_the_first_node_runs_the_example_job(tmp_path):
    shell = blocks("docs/first-node.md", "sh")
    ports = dict(zip(("7380", "7381", "7382"), map(str, free_ports(3)), strict=True))

    def free_port(shipped: re.Match[str]) -> str:
        return ports[shipped.group()]

    def with_free_ports(text: str) -> str:
        # In one pass: a free port may contain the digits of a shipped one.
        return re.sub("738[012]", free_port, text)

    def run(
        command: str,
        job_id: str = "",
    ) -> dict[str, Any]:
        command = with_free_ports(command.replace("…", job_id))
        line = ["bash", "-c", f"export no_proxy='*'; {command}"]
        return dict(
            json.loads(
                subprocess.run(
                    line,
                    cwd=ROOT,
                    capture_output=True,
                    check=True,
                ).stdout
            )
        )

    first = (
        next(commands(b)[0] for b in shell if "bfia-gateway init" in b).partition("#")[0].split()
    )
    config = tmp_path / "node.yml"
    assert forks.run([*first[1:], "--engine", "process", "--output", str(config)]).returncode == 0
    (images,) = (b.strip() for b in blocks("docs/first-node.md", "yaml") if "images:" in b)
    text = with_free_ports(config.read_text(encoding="utf-8"))
    assert "\n    images: {}\n" in text
    images = images.replace("/path/to/checkout", str(ROOT))
    config.write_text(
        text.replace("\n    images: {}\n", f"\n    {images}\n"),
        encoding="utf-8",
    )

    ready = tmp_path / "ready.json"
    process = forks.start(["serve", "--config", str(config), "--ready-file", str(ready)])
    try:
        wait_for(lambda: process.poll() is not None or ready.exists(), 60, about="the node is up")
        *work, status = commands(next(b for b in shell if "create_all" in b))
        for command in work:
            response = run(command)
            assert response["code"] == 0, (command, response)
        plan = run(f"{PLAN} -d @examples/first_job.json")
        assert plan["warnings"] == []
        job_id = response["data"]["job_id"]
        wait_for(lambda: run(status, job_id)["data"]["job_status"] == "RUNNING", 60, 0.2, "it runs")
        stop = next(commands(b)[0] for b in shell if "stop_all" in b)
        assert run(stop, job_id)["code"] == 0
        outcome = wait_for(lambda: run(status, job_id)["data"]["outcome"], 60, 0.2, "it ended")
        assert outcome == "STOPPED"
    finally:
        process.terminate()
        process.wait(60)
