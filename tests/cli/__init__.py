import json
from typing import Any

import typer
from typer.testing import CliRunner, Result

from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from tests.builders import raising as raising

NOBODY = "http://127.0.0.1:9"


def everything(command: Any = None, *words: str) -> dict[str, Any]:
    """Return the program, its groups and its commands by the words that call them."""
    command = command or typer.main.get_command(app)
    found = {" ".join(words): command}
    for name, one in getattr(command, "commands", {}).items():
        found |= everything(one, *words, name)
    return found


def call(*words: str, **more: Any) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(words), **more)


def asking(
    group: str,
    gateway: Gateway,
    *words: str,
) -> Result:
    """Run a command of a group, or a command, that talks to a node."""
    return call(group, *words, "--url", gateway.addresses()["operator"])


def written(
    group: str,
    gateway: Gateway,
    *words: str,
) -> Any:
    """Return what a command prints for scripts."""
    printed = asking(group, gateway, *words, "--json").stdout
    return json.JSONDecoder().raw_decode(printed, printed.index("{\n"))[
        0
    ]  # the node here may log before and after
