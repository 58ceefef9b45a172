"""What the README tells to type, typed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.nodes import ROOT, alive, free_ports, wait_for


def blocks(readme: str, kind: str) -> list[str]:
    text = (ROOT / readme).read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """Return the block's commands, each with the lines that continue it."""
    return [c for c in block.replace("\\\n", " ").splitlines() if c.strip()]


def test_both_languages_tell_the_same():
    def told(readme: str) -> list[str]:
        return [
            c.partition("#")[0].rstrip()
            for kind in ("sh", "yaml")
            for b in blocks(readme, kind)
            for c in commands(b)
        ]

    assert told("README.md") == told("README.zh-CN.md")


@pytest.mark.slow
def test_one_node_runs_the_example_as_the_readme_says(tmp_path: Path):
    shell, yaml_blocks = blocks("README.md", "sh"), blocks("README.md", "yaml")
    gateway = [sys.executable, "-m", "gateway.cli.main"]
    ports = dict(zip(("7380", "7381", "7382"), map(str, free_ports(3)), strict=True))

    def on_free_ports(text: str) -> str:
        return re.sub("738[012]", lambda found: ports[found.group()], text)

    first = next(commands(b)[0] for b in shell if "bfia-gateway init" in b).partition("#")[0].split()
    node = tmp_path / "node.yml"
    init = [*gateway, *first[1:], "--engine", "process", "--output", str(node)]
    subprocess.run(init, cwd=ROOT, check=True, capture_output=True)
    images = next(b for b in yaml_blocks if "unionpay:2.0.0" in b).strip().replace("/path/to/checkout", str(ROOT))
    text = on_free_ports(node.read_text(encoding="utf-8"))
    assert "\n    images: {}\n" in text
    node.write_text(text.replace("\n    images: {}\n", f"\n    {images}\n"), encoding="utf-8")

    ready = tmp_path / "ready.json"
    serve = [*gateway, "serve", "--config", str(node), "--ready-file", str(ready)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(serve, cwd=ROOT, stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: process.poll() is not None or ready.exists(), 60, about="the node is up")
            assert alive(process.pid) and process.poll() is None, (tmp_path / "log").read_text()
            *work, status = commands(next(b for b in shell if "create_all" in b))
            for command in work:
                answer = asked(on_free_ports(command))
                assert answer["code"] == 0, (command, answer)
            status = on_free_ports(status).replace("…", answer["data"]["job_id"])
            over = wait_for(
                lambda: (found := asked(status)["data"])["job_status"] == "FINISHED" and found,
                240,
                0.5,
                "it ended",
            )
            assert over["outcome"] == "SUCCEEDED", over
        finally:
            process.terminate()


def asked(command: str) -> dict:
    done = subprocess.run(
        ["bash", "-c", f"export no_proxy='*'; {command}"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, (command, done.stderr)
    return dict(json.loads(done.stdout))
