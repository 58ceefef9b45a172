"""``bfia-gateway provider init``: a component that works, to begin a provider with."""

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, check_may_write
from gateway.cli.command import Output, command
from gateway.cli.output import say
from gateway.cli.providers import commands

# Valid names of a provider, whose image has the same name, and of a component.
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_COMPONENT = re.compile(r"\w[\w-]*")


@command(commands, "init", "overlap && cd overlap && pytest")
def init(
    name: Annotated[
        str, typer.Argument(help="The provider's name: lower-case letters, digits, . _ -")
    ],
    component: Annotated[
        str, typer.Option(help="The component's name; default: made from the provider's name.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write into; default: the name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> Output:
    """Write a component that works, to be changed: program, Dockerfile, description and a test.
    Needs no gateway.

    Two parties learn which ids they have in common; bfia-gateway docs vendor explains each line.
    """
    if not _NAME.fullmatch(name):
        text = (
            f"{name!r} cannot name an image: expected lower-case letters, digits, . _ - (such as "
            "overlap)"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    component = component or _component_name(name)
    if not _COMPONENT.fullmatch(component):
        text = (
            f"{component!r} cannot name a component: expected letters, digits, _ - (such as "
            "Overlap)"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    folder = output or Path(name)
    contents = _filled_template(folder, name, component)
    for file in contents:
        check_may_write(file, force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in contents.items():
            file.write_text(text, "utf-8")
            file.chmod(0o644)  # COPY keeps it, and another user runs the image
    except OSError as error:
        raise CallFailed(f"{folder} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from None
    yield {"files": sorted(map(str, contents))}
    for file in sorted(contents):
        say(f"wrote {file}")
    place = shlex.quote(str(folder.absolute()))  # the check runs the command in folders of its own
    program = _in_double_quotes(f"{place}/main.py")
    say(
        f'next: bfia-gateway provider check {place}/register.json --command "$(which python3) '
        f'{program}"'
    )


def _in_double_quotes(text: str) -> str:
    """Return a text as a shell reads it unchanged inside double quotes."""
    return re.sub(r'([\\$`"])', r"\\\1", text)


def _component_name(image_name: str) -> str:
    """Return a component's name from its image's: ``private-overlap`` → ``PrivateOverlap``."""
    words = re.split("[._-]", image_name)
    return "".join(word[:1].upper() + word[1:] for word in words)


def _filled_template(
    folder: Path,
    name: str,
    component: str,
) -> dict[Path, str]:
    """Return the text of each new file, with the names of the provider and its component."""
    module = re.sub(r"\W", "_", name)  # in names of Python files, which may have no dot or dash
    contents = {}
    for template in files("gateway.conformance").joinpath("template").iterdir():
        file = folder / template.name.removesuffix(".txt").replace("NAME", module)
        text = template.read_text("utf-8").replace("test_NAME", f"test_{module}")
        contents[file] = text.replace("NAME", name).replace("Overlap", component)
    return contents
