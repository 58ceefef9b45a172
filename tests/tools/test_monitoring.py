"""What is shipped for monitoring names figures and labels that a node has."""

import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.runtime import metrics
from tests.cli import everything
from tests.inprocess import ask, running

FILES = Path(__file__).parents[2] / "compose" / "monitoring"
_LABELS_OF_PROMETHEUS = {"le", "instance", "job"}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> str:
    with running(tmp_path_factory.mktemp("node")) as node:
        return ask(node, "operator", "GET", "/metrics").text + Path(metrics.__file__).read_text()


def expressions() -> list[str]:
    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    assert all(set(rule["annotations"]) == {"summary", "do"} for rule in rules)
    panels = json.loads((FILES / "grafana.json").read_text())["panels"]
    return [rule["expr"] for rule in rules] + [
        t["expr"] for panel in panels for t in panel["targets"]
    ]


def test_every_figure_and_label_exists(figures):
    for expression in expressions():
        named = re.findall(r"\bbfia_[a-z_]+", expression)
        assert named or expression.startswith("up{")
        for name in named:
            assert re.sub("_(total|bucket)$", "", name) in figures, name
        labels = {
            label
            for found in re.findall(r"(?:by|on) \(([^)]*)\)", expression)
            for label in found.split(", ")
        }
        labels |= set(re.findall(r"[{,]([a-z]+)=", expression))
        for label in labels - _LABELS_OF_PROMETHEUS:
            assert f'"{label}"' in figures, label
        assert expression.count("(") == expression.count(")")


def test_alerts_name_commands_that_exist():
    known = {name for name, command in everything().items() if not hasattr(command, "commands")}
    named = re.findall(r"bfia-gateway ([a-z]+(?: [a-z]+)?)", (FILES / "alerts.yml").read_text())
    assert named
    assert all(one in known or one.partition(" ")[0] in known for one in named)
