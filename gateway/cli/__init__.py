"""The command line: thin calls of the gateway's own interfaces; heavy libraries are imported where used."""

import sys


def begin() -> None:
    """Run a command: the entry point, which loads the commands."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # its command, with pygments and click
    from gateway.cli.main import main

    main()
