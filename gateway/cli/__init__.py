"""The command line: thin calls of the gateway's interfaces.

Heavy libraries are imported only in the functions that use them, so that a command starts fast.
"""

import sys

# Modules that libraries would load at every start if they could be imported: the command line of
# httpx, with click and pygments, and the models of pydantic 1, which FastAPI compares with ours.
_UNUSED_MODULES = ("httpx._main", "pydantic.v1")


def begin() -> None:
    """Run the command of the command line: the entry point of the installed script."""
    for module in _UNUSED_MODULES:
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    from gateway.cli.main import main

    main()
