"""The command line: thin calls of the gateway's interfaces.

Heavy libraries are imported only in the functions that use them, so that a command starts fast.
"""

import sys


def begin() -> None:
    """Run the command of the command line: the entry point of the installed script."""
    # Keep httpx from importing its own command line, which loads pygments and click at every start.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from gateway.cli.main import main

    main()
