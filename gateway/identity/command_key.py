"""A private key behind a command, such as the client of a key management service.

The content is the command's standard input, and the raw signature its standard output. Its standard
error output goes to that of the gateway.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from gateway.errors import SigningFailed
from gateway.identity.signers import SIGN_TIMEOUT, SIGNATURE_UNUSABLE, SIGNER_TIMEOUT

_MAX_OUTPUT = 4096  # bytes; the longest signature, of RSA with 16,384 bits, has 2048


class CommandKey:
    """A `gateway.identity.signers.KeyHolder` that runs a command for each signature."""

    def __init__(self, command: Sequence[str], timeout: float = SIGN_TIMEOUT) -> None:
        """``command``: program and arguments, run without a shell; ``timeout``: seconds."""
        self._command = list(command)
        self._name = command[0]  # in messages, which leave out the arguments
        self._timeout = timeout

    def signature(self, content: bytes, algorithm: str) -> bytes:
        """Return the command's output. Raises `SigningFailed`."""
        # A file instead of a pipe: a command that reads nothing cannot block the gateway.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(content)
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # ValueError: an argument with a null character
                # The last argument is the cause alone, without the error's number.
                text = f"the signing command {self._name} cannot be run: {error.args[-1]}"
                raise SigningFailed(text) from error
        try:
            return self._output(process)
        finally:
            _kill_group(process)

    def _output(self, process: "subprocess.Popen[bytes]") -> bytes:
        """Return the complete output of a process that succeeds. Raises `SigningFailed`."""
        deadline = time.monotonic() + self._timeout
        output = self._read(process, deadline)
        try:
            status = process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired as error:
            raise self._timed_out() from error
        if status != 0:
            raise SigningFailed(f"the signing command {self._name} ends with exit code {status}")
        return output

    def _read(self, process: "subprocess.Popen[bytes]", deadline: float) -> bytes:
        """Return everything that a process writes. Raises `SigningFailed` after the deadline."""
        assert process.stdout is not None
        output = b""
        with process.stdout as stdout, selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while selector.select(max(deadline - time.monotonic(), 0)):
                part = os.read(stdout.fileno(), _MAX_OUTPUT)
                if not part:
                    return output
                output += part
                if len(output) > _MAX_OUTPUT:
                    text = (
                        f"the signing command {self._name} writes more than {_MAX_OUTPUT} bytes, "
                        "too many for a signature"
                    )
                    raise SigningFailed(text, reason=SIGNATURE_UNUSABLE)
        raise self._timed_out()

    def _timed_out(self) -> SigningFailed:
        """Return the error of a command that does not end."""
        text = f"the signing command {self._name} has not ended after {self._timeout:g} s"
        return SigningFailed(text, reason=SIGNER_TIMEOUT)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with all its children, if any are left, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
