"""The command line: thin calls of the gateway's interfaces.

Heavy libraries are imported only in the functions that use them, so that a command starts fast.
"""

import sys

# Modules that libraries would load at every start if they could be imported: the command line of
# httpx, with click and pygments; the models of pydantic 1, which FastAPI compares with ours; and
# greenlet, for SQLAlchemy's asynchronous engines.
_UNUSED_MODULES = ("httpx._main", "pydantic.v1", "greenlet")


def begin() -> None:
    """Run the command of the command line: the entry point of the installed script."""
    for module in _UNUSED_MODULES:
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    from gateway.cli.start import serve, serve_options

    options = serve_options(sys.argv[1:])
    if options is not None:
        serve(options)
        return
    from gateway.cli.main import main

    main()
