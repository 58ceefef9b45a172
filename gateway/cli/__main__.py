"""``python -m gateway.cli``: the command line, as the installed script starts it."""

from gateway.cli import begin

if __name__ == "__main__":  # tests import every module of the package
    begin()
