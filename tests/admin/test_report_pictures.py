"""What a run reported, by API and by command: listed, as tables, and as a picture that runs and loads nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from gateway.bootstrap.node import Gateway
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_FAILED
from gateway.cli.main import app
from tests.cleaning.ended import left_behind
from tests.inprocess import ask, running

JOB = "job-00000000000000000000000000000050"
LOSS = [{"tree": n, "loss": 1 / (n + 1)} for n in range(30)]
URL = f"/api/v1/jobs/{JOB}/reports/a/guest.0/report"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as node:
        left_behind(node, JOB, 60.0)
        written = node.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-report" / "data_0"
        written.write_text(json.dumps({"auc": 0.987654321, "remark": "<b>", "loss": LOSS}))
        yield node


def cli(node: Gateway, *words: str) -> Result:
    return CliRunner().invoke(app, ["job", *words, "--url", node.addresses()["operator"]], env={"COLUMNS": "200"})


def test_a_report_names_its_pictures_and_each_is_svg_without_rights(node: Gateway):
    found = ask(node, "operator", "GET", URL).json()
    assert found["plots"] == ["loss", "values"]
    for params in ({}, {"series": "loss"}, {"series": "values"}):
        answer = ask(node, "operator", "GET", f"{URL}/plot", params=params)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "a guest.0 report" in "".join(ElementTree.fromstring(answer.content).itertext())


@pytest.mark.parametrize(
    ("url", "params", "reason"),
    [
        (URL, {"series": "los"}, "NO_PLOT"),
        (URL.replace("report", "model").replace("/models/", "/reports/"), {}, "NO_REPORT"),
        (URL.replace(JOB, "job-none"), {}, "JOB_UNKNOWN"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(node: Gateway, url: str, params: dict[str, str], reason: str):
    answer = ask(node, "operator", "GET", f"{url}/plot", params=params)
    assert (answer.status_code, answer.json()["data"]["reason"]) == (404, reason), answer.text


def test_commands_list_show_and_draw(node: Gateway, tmp_path: Path):
    listed = cli(node, "reports", JOB)
    assert listed.exit_code == 0 and "auc 0.987654" in listed.stdout and "loss of 30 rows" in listed.stdout
    file = tmp_path / "loss.svg"
    shown = cli(node, "report", JOB, "a", "report", "--plot", str(file), "--series", "loss")
    assert shown.exit_code == 0, shown.stderr
    assert "0.987654" in shown.stdout and "and 10 rows more" in shown.stdout and str(file) in shown.stdout
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert json.loads(cli(node, "report", JOB, "a", "report", "--json").stdout)["values"]["auc"] == 0.987654321


def test_commands_say_what_there_is_instead(node: Gateway, tmp_path: Path):
    other = cli(node, "report", JOB, "b", "report")
    assert other.exit_code == EXIT_BAD_INPUT and "a report --party guest.0" in other.stderr
    assert cli(node, "report", JOB, "a", "report", "--series", "loss").exit_code == EXIT_BAD_INPUT
    file = tmp_path / "x.svg"
    wrong = cli(node, "report", JOB, "a", "report", "--plot", str(file), "--series", "los")
    assert wrong.exit_code == EXIT_FAILED and "'loss'" in wrong.stderr and not file.exists()
