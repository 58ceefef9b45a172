"""Commands as on a machine without the checkout."""

import os
import subprocess


def run(*command, folder=None):
    """Run a command without the checkout's variables; return its output. Fails with all of it."""
    variables = dict(os.environ)
    variables.pop("PYTHONPATH", None)
    process = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout
