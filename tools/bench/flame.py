"""The flame graph of a job: where the scheduling node spends processor time.

The stacks are sampled by py-spy, from outside the process: a sampler inside it would run only when
the other threads wait.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.nodes import ROOT, Node, wait_for
from tools.bench import load
from tools.bench.flame_graph import Frame, flame_graph, tree
from tools.bench.nodes import chain, reporting_engine, two_nodes
from tools.bench.parts import PARTS, milliseconds, print_table

_PICTURE = ROOT / "docs" / "images" / "flame.svg"
_JOBS = 100  # one after the other
_SAMPLER = [
    str(Path(sys.executable).with_name("uv")),
    *("tool", "run", "--from", "py-spy==0.4.1", "py-spy"),
    *("record", "--format", "raw", "--threads", "--function", "--rate", "200"),
]
_LONGEST = "3600"  # seconds; the samples end by a signal
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Packages and modules of the functions that call everything else, which the picture leaves out.
_OUTER_PACKAGES = frozenset({"<frozen runpy>", "asyncio", "concurrent", "threading", "uvloop"})
_OUTER_MODULES = ("gateway.cli",)
_WAITING_MODULES = ("threading.", "queue.", "selectors.")


def measure_flame(_options: argparse.Namespace) -> None:
    """Draw the flame graph of a job into the documentation, and print its parts by thread."""
    stacks = _measured_stacks()
    if not stacks:
        print("The flame graph is not drawn: py-spy is not available\n")
        return
    root = tree(stacks)
    total = milliseconds(root.seconds, 1)
    title = f"A job of one task at its scheduling node: {total} of processor time"
    _PICTURE.write_text(flame_graph(root, title), encoding="utf-8")
    print_table(
        "flame",
        f"{title}; drawn into {_PICTURE.relative_to(ROOT)}",
        ["thread", "processor time", "share"],
        [_row(thread, root) for thread in root.by_width()],
    )


PARTS["flame"] = measure_flame


def _row(thread: Frame, root: Frame) -> list[object]:
    share = thread.seconds / root.seconds
    return [thread.name, milliseconds(thread.seconds, 1), f"{share:.0%}"]


def _measured_stacks() -> Mapping[str, float]:
    """Return the scheduling node's processor seconds for a job by stack; empty without py-spy."""
    with TemporaryDirectory() as home, two_nodes(reporting_engine()) as (node, _):
        load.run(node, chain(1))
        samples_file = Path(home) / "samples"
        command = [*_SAMPLER, "--duration", _LONGEST, "--output", str(samples_file)]
        sampler = subprocess.Popen(
            [*command, "--pid", str(node.addresses["pid"])],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sampler.stdout is not None
        if not sampler.stdout.readline():  # it says that it samples
            return {}
        processor_time = _processor_time(node)
        for _ in range(_JOBS):
            load.wait_until_ended(node, node.submit(chain(1)))
        processor_time = _processor_time(node) - processor_time
        sampler.send_signal(signal.SIGINT)
        sampler.communicate()
        wait_for(samples_file.exists, about="py-spy has written its samples")
        return stacks_of(samples_file.read_text(), processor_time / _JOBS)


def _processor_time(node: Node) -> float:
    """Return the seconds of processor time that a node has used."""
    _, _, fields = Path(f"/proc/{node.addresses['pid']}/stat").read_text().rpartition(")")
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_SECOND


def stacks_of(samples: str, seconds: float) -> Mapping[str, float]:
    """Return the seconds by stack, from py-spy's samples, a line for each stack and its number.

    ``seconds`` is the time of all stacks. Stacks that end in a wait are left out, though py-spy may
    count their threads as busy.
    """
    counts: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *functions = stack.split(";")
        names = [_name_of(function) for function in functions]
        while names and _is_outer(names[0]):
            del names[0]
        if names and not names[-1].startswith(_WAITING_MODULES):
            counts[";".join([_kind_of(thread), *names])] += int(count)
    total = counts.total()
    return {stack: count / total * seconds for stack, count in counts.items()}


def _kind_of(thread: str) -> str:
    """Return the kind of a thread, from a text such as ``thread (12): scheduler-0``."""
    _, _, name = thread.partition(": ")
    if name == "MainThread":
        return "event loop"
    if name.startswith("lane-"):
        return "calls to peers and engine"
    return name.rstrip("0123456789").rstrip("-_")


def _name_of(function: str) -> str:
    """Return a function with its module, from a text such as ``load (gateway/config.py:12)``."""
    name, _, place = function.partition(" (")
    file, _, _ = place.removesuffix(")").partition(":")
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"{module}.{name}"


def _is_outer(name: str) -> bool:
    return name.startswith(_OUTER_MODULES) or name.partition(".")[0] in _OUTER_PACKAGES
