"""`tools.bench.running_node` measures a node and a link."""

import json
import sys
from pathlib import Path

import pytest

from tests.inprocess import ME, running
from tools.bench.running_node import main

PROGRAM = (
    "running_node",
    "--requests",
    "10",
    "--mib",
    "1",
)


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path) as gateway:
        yield gateway


def measure(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Run the program with few requests and little data."""
    arguments = [*PROGRAM, *options]
    monkeypatch.setattr(sys, "argv", arguments)
    main()


def printed_by(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_node_and_its_storage_are_measured(node, tmp_path, monkeypatch, capsys):
    url = node.addresses()["operator"]
    measure(monkeypatch, "--url", url)
    assert printed_by(capsys).count(" ms ") == 6

    config = tmp_path / "node.yml"
    storage = tmp_path / "storage"
    address = url.removeprefix("http://")
    settings = {
        "node": {"id": ME},
        "engine": {"kind": "process"},
        "storage": {"url": f"file://{storage}"},
        "listen": {"operator": {"bind": address}},
    }
    config.write_text(json.dumps(settings))
    measure(monkeypatch, "--config", str(config))
    assert "MiB/s" in printed_by(capsys)
    remains = list(tmp_path.glob("**/bench-*"))
    assert remains == []


def test_a_link_that_fails_is_named(node, monkeypatch):
    url = node.addresses()["operator"]
    with pytest.raises(SystemExit, match=r"JG404, route: .*route test JG404"):
        measure(
            monkeypatch,
            "JG404",
            "--url",
            url,
        )
