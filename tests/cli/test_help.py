"""Every command explains itself, with an example."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.main import app


def commands(group: typer.Typer, *words: str) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        yield (*words, command.name or command.callback.__name__)  # type: ignore[union-attr]
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, *words, *([inner.name] if isinstance(inner.name, str) else []))


ALL = {" ".join(words): words for words in commands(app)}


def test_no_command_is_forgotten():
    assert {"gc", "serve", "job submit", "job plan", "data grant", "route test", "provider check"} < set(ALL)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"version"}))
def test_a_command_shows_an_example(name: str):
    done = CliRunner().invoke(app, [*ALL[name], "--help"])
    assert done.exit_code == 0 and f"Example: bfia-gateway {name}" in " ".join(done.stdout.split())


def test_a_full_disk_behind_the_output_is_a_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")
