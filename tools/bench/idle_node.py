"""Serves a node, and writes what its libraries take of the memory.

The module and a file are put before the command that serves the node. On SIGUSR2 the node writes
to the file, in JSON, the names of its threads and the resident memory by which the import of each
package made the process grow. Packages of this repository count by their parts.
"""

import importlib.machinery
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
# The command behind the module's own argument: interpreter, ``-c`` and code come first.
_INTERPRETER_WORDS = 3
_DIVIDED = ("adapter", "gateway")  # packages that count by their parts


class Imports:
    """The growth of the process during the execution of modules, by package.

    What a module imports counts for the packages of the imported modules, not for its own.
    """

    def __init__(self) -> None:
        self.growth: Counter[str] = Counter()  # bytes
        self._inner: list[int] = []  # growth within each module under way, for modules inside it

    def watch(self, loader: Any, method: str) -> None:
        """Measure a method of a class of loaders that executes or creates a module."""
        original: Callable[..., Any] = getattr(loader, method)

        def measured(instance: Any, subject: Any) -> Any:
            before = resident_bytes()
            self._inner.append(0)
            try:
                return original(instance, subject)
            finally:
                growth = resident_bytes() - before
                own_growth = growth - self._inner.pop()
                self.growth[_package_of(subject)] += own_growth
                if self._inner:
                    self._inner[-1] += growth

        setattr(loader, method, measured)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * _PAGE


def _package_of(subject: Any) -> str:
    """Return the package of a module or of its specification; of our own, with the part of it."""
    name = subject.__name__ if isinstance(subject, ModuleType) else subject.name
    package, *parts = str(name).split(".")
    if package in _DIVIDED:
        return ".".join([package, *parts[:1]])
    return package


def main() -> None:
    """Serve the node of the arguments."""
    report_file = Path(sys.argv[1])
    imports = Imports()
    imports.watch(importlib.machinery.SourceFileLoader, "exec_module")
    imports.watch(importlib.machinery.ExtensionFileLoader, "create_module")
    imports.watch(importlib.machinery.ExtensionFileLoader, "exec_module")

    def write_report(*_: object) -> None:
        report = {
            "threads": [thread.name for thread in threading.enumerate()],
            "growth": imports.growth,
        }
        part = report_file.with_suffix(".part")
        part.write_text(json.dumps(report))
        part.replace(report_file)

    signal.signal(signal.SIGUSR2, write_report)
    sys.argv = ["bfia-gateway", *sys.argv[2 + _INTERPRETER_WORDS :]]
    from gateway.cli import begin  # noqa: PLC0415 - its imports are to be measured

    begin()


if __name__ == "__main__":
    main()
