"""Runs commands in the test's own process."""

import copy
import functools
import json
from typing import Any

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from gateway.bootstrap.node import Gateway
from gateway.cli.language import language_in_use
from gateway.cli.main import app
from tests.builders import raising as raising

_build_group = typer.main.get_group


@functools.cache
def _group_in(program: typer.Typer, language: str) -> TyperGroup:
    """Return the group of a program; its commands have their help in the language."""
    return _build_group(program)


def shared_group(program: typer.Typer) -> TyperGroup:
    """Return the group of a program with commands that are built once per language.

    Typer would build them for each call, which takes longer than most commands.
    """
    group = copy.copy(_group_in(program, language_in_use()))
    group.params = list(group.params)  # Typer adds options to it
    return group


typer.main.get_group = shared_group

NOBODY = "http://127.0.0.1:9"  # an address without a listener


def all_commands(command: Any = None, *words: str) -> dict[str, Any]:
    """Return the program, its groups and its commands by the words that call them.

    ``command`` and ``words`` name the group to start from; without them it is the program.
    """
    command = command or typer.main.get_command(app)
    commands = {" ".join(words): command}
    subcommands = getattr(command, "commands", {})
    for name, subcommand in subcommands.items():
        commands |= all_commands(subcommand, *words, name)
    return commands


def call(*words: str, **kwargs: Any) -> Result:
    """Run a command; ``kwargs`` go to `CliRunner.invoke`."""
    return CliRunner().invoke(app, list(words), **kwargs)


def call_node(
    group: str,
    gateway: Gateway,
    *words: str,
) -> Result:
    """Run a command of a group, or a command without a group, that talks to a node."""
    return call(group, *words, "--url", gateway.addresses()["operator"])


def json_from_node(
    group: str,
    gateway: Gateway,
    *words: str,
) -> Any:
    """Run a command that talks to a node with ``--json``; return the object that it prints.

    Log lines of the node, which is in the same process, may surround the object.
    """
    printed = call_node(group, gateway, *words, "--json").stdout
    body, _ = json.JSONDecoder().raw_decode(printed, printed.index("{\n"))
    return body
