"""The command ``serve`` starts a node without the command line's libraries, with equal results."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway.cli import main
from gateway.cli.start import ServeOptions, serve_options
from tests.forks import ROOT

SERVE = [sys.executable, "-m", "gateway.cli", "serve", "--config"]


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "node.yml"
    file.write_text("node: {id: A}\n")
    return file


def test_plain_options_start_a_node_directly(config):
    arguments = ["serve", "-c", str(config), "--log-format", "json", "--ready-file", "ready"]
    assert serve_options(arguments) == ServeOptions(config, "json", Path("ready"))


def test_defaults_are_those_of_the_command():
    declared = inspect.signature(main.serve).parameters.values()
    assert ServeOptions() == ServeOptions(**{each.name: each.default for each in declared})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["init"],
        ["--lang", "zh", "serve"],
        ["serve", "--help"],
        ["serve", "--config"],
        ["serve", "--config", "--log-format", "json"],
        ["serve", "--unknown", "1"],
        ["serve", "--config=node.yml"],
        ["serve", "--config", "missing.yml"],
    ],
)
def test_typer_explains_all_other_arguments(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert serve_options(arguments) is None


def test_a_refused_start_names_every_problem(tmp_path):
    file = tmp_path / "node.yml"
    file.write_text(yaml.safe_dump({"node": {"id": "A"}, "limits": {"body_bytes": "x", "y": 1}}))
    environment = os.environ | {"LC_ALL": "C"}
    process = subprocess.run(
        [*SERVE, str(file)], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 2
    assert f"{file} cannot be used (INVALID)" in process.stderr
    assert "body_bytes" in process.stderr
    assert "limits.y" in process.stderr
    assert "Traceback" not in process.stderr
