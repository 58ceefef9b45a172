"""Starts a node without the libraries of the command line, which a serving process would keep."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

# The options of the command ``serve`` and the fields of their values.
_FIELDS = {
    "--config": "config",
    "-c": "config",
    "--log-format": "log_format",
    "--ready-file": "ready_file",
}


@dataclass(frozen=True)
class ServeOptions:
    """The options of the command ``serve``, with their defaults."""

    config: Path = Path("node.yml")
    log_format: str = "text"
    ready_file: Path | None = None


def serve_options(arguments: Sequence[str]) -> ServeOptions | None:
    """Return the options of the command ``serve`` in the arguments of the command line.

    None for any other command, and for everything that typer has to explain, such as an unknown
    option or a missing file.
    """
    words = arguments[1:]
    is_serve = arguments[:1] == ["serve"]
    if not is_serve or len(words) % 2:
        return None
    values = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option not in _FIELDS or value.startswith("-"):
            return None
        values[_FIELDS[option]] = value
    options = ServeOptions(
        config=Path(values.get("config", ServeOptions.config)),
        log_format=values.get("log_format", ServeOptions.log_format),
    )
    if "ready_file" in values:
        options = replace(options, ready_file=Path(values["ready_file"]))
    return options if options.config.exists() else None


def serve(options: ServeOptions) -> None:
    """Serve a node until a signal. After an error, print it as the command does, and exit."""
    os.umask(0o077)  # as `gateway.cli.main.main` does
    _defer_models()
    _import_uvicorn()
    with absent("rich"):
        from gateway.cli.serve import run
    try:
        run(options.config, options.log_format, options.ready_file)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from gateway.cli.main import report_failed_start

        report_failed_start(options.config, error)


def _defer_models() -> None:
    """Let pydantic build the validators of each model when the model is first used.

    FastAPI alone has fifty models of OpenAPI documents, which an idle node never uses.
    """
    import pydantic

    pydantic.BaseModel.model_config = pydantic.ConfigDict(defer_build=True)


def _import_uvicorn() -> None:
    """Import uvicorn without its command line, which its package only passes on.

    The command line brings click and the watch of changed source files.
    """
    if "uvicorn" in sys.modules:
        return
    name = "uvicorn.main"
    command_line = ModuleType(name)
    vars(command_line).update(Server=None, main=None, run=None)
    sys.modules[name] = command_line
    import_module("uvicorn")
    del sys.modules[name]


@contextmanager
def absent(library: str) -> Iterator[None]:
    """Make an optional library look absent during imports, so that they do without it.

    Nothing happens if the library is loaded already.
    """
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # such an import raises ImportError
    try:
        yield
    finally:
        del sys.modules[library]
