"""``python -m gateway.cli``: the command line, as the installed script starts it."""

from gateway.cli import begin

begin()
