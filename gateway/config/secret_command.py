"""Runs a command that prints a secret, within bounds of time and output."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO

COMMAND_SECONDS = 10.0  # time that a command may take to print a secret
MAX_SECRET_BYTES = 4096  # of a command's output, or of a secret's file


class CommandFailed(Exception):
    """A command printed no usable secret; the message says why, and shows none of its output."""


def secret_printed_by(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str:
    """Return the output of a command without blanks around it. Raises `CommandFailed`.

    - ``command``: program and arguments; no shell reads them
    - ``seconds``: time after which the command and its children are killed

    Its standard error is discarded, as it may contain the secret.
    """
    deadline = time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: an argument with a null character
        # The last argument is the cause alone, without the error's number and the file's name.
        raise CommandFailed(f"cannot be run: {error.args[-1]}") from error
    with process:
        try:
            assert process.stdout is not None  # because of PIPE
            output = _read(process.stdout, deadline)
            exit_code = process.wait(max(deadline - time.monotonic(), 0))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise CommandFailed(f"must end within {seconds:g} s") from None
        finally:
            _kill_group(process.pid)
    return _checked(output, exit_code)


def _read(pipe: IO[bytes], deadline: float) -> bytes:
    """Return all that a pipe delivers. Raises `TimeoutError`, and `CommandFailed` for too much.

    ``deadline`` is in seconds of the monotonic clock.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    output = b""
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):  # milliseconds
            raise TimeoutError
        piece = os.read(pipe.fileno(), MAX_SECRET_BYTES)
        if not piece:
            return output
        output += piece
        if len(output) > MAX_SECRET_BYTES:
            raise CommandFailed(f"must print at most {MAX_SECRET_BYTES} bytes")


def _kill_group(group: int) -> None:
    """Kill the processes of a group, which may have ended."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _checked(output: bytes, exit_code: int) -> str:
    """Return the secret in a command's output. Raises `CommandFailed`."""
    if exit_code != 0:
        raise CommandFailed(
            f"ended with code {exit_code}: run it as the gateway's user to see the cause"
        )
    try:
        secret = output.decode().strip()
    except UnicodeDecodeError:
        raise CommandFailed("must print text in UTF-8") from None
    if not secret:
        raise CommandFailed("printed nothing")
    return secret
