"""Entry point of the console script. It loads the commands, which takes a second or so on a busy machine."""

import signal


def main() -> None:
    """Run a command. Ctrl-C before the commands are loaded ends the process at once, with no words."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else somebody wants it ignored
    if own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.main import main as run

    if own:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
