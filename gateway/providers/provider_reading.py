"""Reads registrations of others: small ones here, large ones in a process with a limit of time and memory.

However a description is built, the gateway goes on answering: its interpreter runs one thread at a time, so work
that vendors can make long must not be done in it.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from provider_registry.limits import ROOT
from provider_registry.model import InvalidDescription, Provider
from provider_registry.registration import from_document
from provider_registry.worker import MOST_BYTES, read, read_value, too_many_values

SMALL = 64 * 1024
"""bytes of a body that is read here: a few milliseconds' work"""
_MOST_KEPT = 20
"""folders of workers that failed"""


class Reader:
    """Turns the body of a registration into a provider."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """``folder`` is where workers leave their output, ``seconds`` how long one may take."""
        self._folder = folder
        self._seconds = seconds

    def read(self, body: bytes | Mapping[str, Any]) -> tuple[Provider, bool]:
        """Return (provider, whether the body is one component with its image). Raises `Invalid`.

        The reason is NOT_CHECKED where a worker did not come to an end; the problem tells where its output is.
        """
        try:
            if not isinstance(body, bytes):
                return read_value(body)
            small = len(body) <= SMALL
            refused = len(body) > MOST_BYTES or too_many_values(body)  # at once, without a process
            return read(body) if small or refused else self._in_worker(body)
        except InvalidDescription as error:
            raise Invalid([Problem(*p) for p in error.problems]) from error

    def _in_worker(self, body: bytes) -> tuple[Provider, bool]:
        place = self._folder / uuid.uuid4().hex
        place.mkdir(parents=True, mode=0o700)
        (place / "request.json").write_bytes(body)
        result = place / "result.json"
        cause = self._run(place, result)
        if cause:
            self._forget_old()
            rule = f"could not be checked: {cause}; the worker's output is in {place}"
            raise Invalid([Problem(ROOT, rule, f"{len(body)} bytes")], reason="NOT_CHECKED")
        said = json.loads(result.read_text(encoding="utf-8"))
        shutil.rmtree(place, ignore_errors=True)
        if "problems" in said:
            raise Invalid([Problem(*p) for p in said["problems"]])
        return from_document(said["provider"]), bool(said["single"])

    def _run(self, place: Path, result: Path) -> str:
        """Have a process read the request; return why there is no result, or nothing."""
        command = [sys.executable, "-P", "-m", "provider_registry.worker", "request.json", result.name]
        environment = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": os.defpath}
        try:
            with (place / "output.log").open("wb") as log:
                done = subprocess.run(
                    command,
                    cwd=place,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=self._seconds,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return f"it took longer than {self._seconds:g} s (providers.check_seconds)"
        except OSError as error:
            return f"no process can be started ({error.strerror})"
        return "" if result.exists() else f"the worker ended with {done.returncode}"

    def _forget_old(self) -> None:
        places = sorted(self._folder.iterdir(), key=lambda place: place.stat().st_mtime)
        for place in places[:-_MOST_KEPT]:
            shutil.rmtree(place, ignore_errors=True)
