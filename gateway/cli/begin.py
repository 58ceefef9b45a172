"""Entry point of the console script. It loads the commands, which takes a second or so on a busy machine."""

import signal


def main() -> None:
    """Run a command. Ctrl-C while the commands are loaded ends the process without a traceback."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored on purpose
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.main import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
