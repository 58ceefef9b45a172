"""`tools.bench.running_node` measures a node and a link."""

import json
import sys
from pathlib import Path

import pytest

from tests.inprocess import ME, running
from tools.bench.running_node import main


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path) as gateway:
        yield gateway


def measure(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["running_node", "--requests", "10", "--mib", "1", *options])
    main()


def test_a_node_and_its_storage_are_measured(node, tmp_path, monkeypatch, capsys):
    url = node.addresses()["operator"]
    measure(monkeypatch, "--url", url)
    assert capsys.readouterr().out.count(" ms ") == 6
    config = tmp_path / "node.yml"
    text = {
        "node": {"id": ME},
        "engine": {"kind": "process"},
        "storage": {"url": f"file://{tmp_path / 'storage'}"},
        "listen": {"operator": {"bind": url.removeprefix("http://")}},
    }
    config.write_text(json.dumps(text))
    measure(monkeypatch, "--config", str(config))
    assert "MiB/s" in capsys.readouterr().out
    assert not list(tmp_path.glob("**/bench-*"))


def test_a_link_that_fails_is_named(node, monkeypatch):
    with pytest.raises(SystemExit, match=r"JG404, route: .*route test JG404"):
        measure(
            monkeypatch,
            "JG404",
            "--url",
            node.addresses()["operator"],
        )
