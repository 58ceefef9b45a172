"""The command that moves secrets out of the configuration file."""

import typer

from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, check_exists, invalid_in
from gateway.cli.command import Output, command
from gateway.cli.output import say
from gateway.errors import Invalid

commands = typer.Typer(name="")  # without a name: its command belongs to no group


@command(commands, "move-secrets", "--config node.yml")
def move_secrets(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Move passwords, keys and tokens out of the configuration into files of mode 0600.

    The files are in the folder secrets next to the configuration. A running node goes on with
    the secrets that it has read at its start.
    """
    from gateway.config.moving import move_secrets

    check_exists(config)
    try:
        moved = move_secrets(config)
    except Invalid as error:
        raise invalid_in(config, error) from None
    except OSError as error:
        text = f"{error.filename} cannot be written: {error.strerror}; nothing was moved"
        raise CallFailed(text, EXIT_BAD_INPUT) from None
    yield [{"setting": move.setting, "file": str(move.file)} for move in moved]
    if not moved:
        say(f"{config} contains no secret in clear")
        return
    for move in moved:
        say(f"{move.setting}: {move.file}")
    say("to refuse secrets in clear from now on, set secrets.mode: refuse in the configuration")
