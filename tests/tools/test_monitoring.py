"""The shipped alerts and dashboard name metrics, labels and commands that exist."""

import json
import re
from itertools import chain
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
    current_metrics = node.get("/metrics").text
    source = Path(metrics.__file__).read_text()
    return current_metrics + source


def alerts() -> list[dict[str, str]]:
    """Return the shipped alerts."""
    text = (FILES / "alerts.yml").read_text()
    (group,) = yaml.safe_load(text)["groups"]
    return group["rules"]


def targets() -> list[dict[str, str]]:
    """Return the queries of all panels of the shipped dashboard."""
    text = (FILES / "grafana.json").read_text()
    panels = json.loads(text)["panels"]
    return list(chain.from_iterable(panel["targets"] for panel in panels))


def expressions() -> list[str]:
    """Return the PromQL expressions of all alerts and panels."""
    from_alerts = [alert["expr"] for alert in alerts()]
    from_panels = [target["expr"] for target in targets()]
    return from_alerts + from_panels


def labels_of(expression: str) -> set[str]:
    """Return the labels that a PromQL expression selects or groups by, without Prometheus' own."""
    selected = re.findall(r"[{,]([a-z]+)=", expression)
    groupings = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
    grouped = ", ".join(groupings).split(", ")
    return {*selected, *grouped} - PROMETHEUS_LABELS - {""}


def command_names() -> set[str]:
    """Return the names of all commands except groups of commands."""
    names = set()
    for name, command in all_commands().items():
        is_group = hasattr(command, "commands")
        if not is_group:
            names.add(name)
    return names


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

    for label in labels_of(expression):
        assert f'"{label}"' in exposition, label

    opening = expression.count("(")
    closing = expression.count(")")
    assert opening == closing


def test_alerts_name_commands_that_exist():
    commands = command_names()
    mentions = re.findall(
        r"bfia-gateway ([a-z]+(?: [a-z]+)?)",
        (FILES / "alerts.yml").read_text(),
    )
    assert mentions
    for words in mentions:
        # The second word may be an argument.
        first_word = words.partition(" ")[0]
        assert {words, first_word} & commands, words
