"""The command line: thin calls of the gateway's own interfaces; heavy libraries are imported where used."""

import signal
import sys


def begin() -> None:
    """Run a command: the entry point, which loads the commands; Ctrl-C meanwhile leaves no traceback."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # its command, with pygments and click
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored on purpose
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.main import main

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
