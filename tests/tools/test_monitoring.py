"""The shipped alerts and dashboard name metrics, labels and commands that exist."""

import json
import re
from pathlib import Path

import pytest
import yaml

from gateway.runtime import metrics
from tests.cli import all_commands
from tests.world import NodeSetup

NODE = NodeSetup()

FILES = Path(__file__).parents[2] / "compose" / "monitoring"
PROMETHEUS_LABELS = {"le", "instance", "job"}


@pytest.fixture(scope="module")
def exposition(node) -> str:
    """The metrics of a node, followed by the source code of all metrics, since some need a job."""
    return node.get("/metrics").text + Path(metrics.__file__).read_text()


def alerts():
    groups = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    return groups[0]["rules"]


def panels():
    return json.loads((FILES / "grafana.json").read_text())["panels"]


def expressions() -> list[str]:
    """Return the PromQL expressions of all alerts and panels."""
    from_alerts = [alert["expr"] for alert in alerts()]
    from_panels = []
    for panel in panels():
        for target in panel["targets"]:
            from_panels.append(target["expr"])
    return from_alerts + from_panels


def test_every_alert_has_a_summary_and_a_remedy():
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "do"}


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_of_an_expression_exists(expression, exposition):
    names = re.findall(r"\bbfia_[a-z_]+", expression)
    assert names or expression.startswith("up{")
    for name in names:
        metric = re.sub("_(total|bucket)$", "", name)
        assert metric in exposition, metric

    labels = set(re.findall(r"[{,]([a-z]+)=", expression))
    for grouping in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        labels.update(grouping.split(", "))
    for label in labels - PROMETHEUS_LABELS:
        assert f'"{label}"' in exposition, label
    assert expression.count("(") == expression.count(")")


def test_alerts_name_commands_that_exist():
    commands = set()
    for name, command in all_commands().items():
        is_group = hasattr(command, "commands")
        if not is_group:
            commands.add(name)
    mentions = re.findall(
        r"bfia-gateway ([a-z]+(?: [a-z]+)?)",
        (FILES / "alerts.yml").read_text(),
    )
    assert mentions
    for words in mentions:
        # the second word may be an argument
        assert words in commands or words.partition(" ")[0] in commands
