"""The third machine of the Swarm: it is lost, and its packet filter closes what docs/swarm.md says."""

import contextlib
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engines.base import Missing, Running
from tests.contracts.engine_acts import WAITS, Heard, a_spec, ended, exits
from tests.contracts.harnesses import SwarmHarness
from tests.e2e.nodes import ROOT

pytestmark = [pytest.mark.swarm, pytest.mark.xdist_group("the third machine")]


@pytest.fixture
def third() -> Iterator[SwarmHarness]:
    with contextlib.closing(SwarmHarness("==3")) as harness:
        yield harness


def test_a_run_on_a_machine_that_is_gone_is_lost_and_nothing_runs_twice(third: SwarmHarness) -> None:
    """The third machine loses its link: its run is missing, others go on; back again, it has ended what it had."""
    with contextlib.closing(SwarmHarness()) as harness:
        near, far = harness.engine(), third.engine()
        stays, lost = a_spec(harness, WAITS), a_spec(third, WAITS)
        near.launch(stays)
        far.launch(lost)
        heard = Heard()
        far.watch(heard)
        try:
            _machine("cut", 3)
            heard.of(lost.name)
            assert far.probe(lost.name) == Missing() and isinstance(near.probe(stays.name), Running)
            far.stop(lost.name, 1)
            far.remove(lost.name)
            assert far.list() == []
        finally:
            _machine("mend", 3)
        again = a_spec(third, exits(0))
        far.launch(again)
        assert ended(far, again.name).code == 0


@pytest.mark.s3
def test_the_documented_rules_leave_a_run_the_gateway_and_its_storage_alone(third: SwarmHarness) -> None:
    """The block of docs/swarm.md, word for word but for its addresses, at the machine's own packet filter."""
    host, storage = os.environ["BFIA_TEST_SWARM_HOST"], urlsplit(os.environ["BFIA_TEST_S3"])
    engine = third.engine()
    with socket.create_server((host, 0)) as gateway, socket.create_server((host, 0)) as operators:
        door, other = gateway.getsockname()[1], operators.getsockname()[1]
        text = (ROOT / "docs" / "swarm.md").read_text(encoding="utf-8")
        rules = re.findall(r"^(iptables -I .*?)(?: +#.*)?$", text, re.MULTILINE)[
            :-1
        ]  # the last: on its own machine
        there = {"10.0.0.7": str(storage.hostname), "9000": str(storage.port), "10.0.0.5": host, "7381": str(door)}
        rules = [re.sub("|".join(there), lambda found: there[found[0]], rule) for rule in rules]
        assert len(rules) == 4
        targets = [
            (host, door),
            (storage.hostname, storage.port),
            (host, other),
            (host.rpartition(".")[0] + ".11", 2377),
        ]
        targets += [("10.214.3.1", 2377), ("192.0.2.1", 80), ("169.254.169.254", 80)]
        tries = "  try: socket.create_connection(to, 3); print(*to)\n  except OSError: pass"
        code = f"import socket\nfor to in {targets!r}:\n{tries}"
        for rule in rules:
            _machine("in", 3, *shlex.split(rule))
        try:
            spec = a_spec(third, WAITS, command=("python3", "-c", code))
            engine.launch(spec)
            assert ended(engine, spec.name).code == 0
        finally:
            for rule in rules:
                _machine("in", 3, *shlex.split(rule.replace(" -I ", " -D ")))
        reached = engine.logs(spec.name).stdout.decode().splitlines()
        assert reached == [f"{host} {door}", f"{storage.hostname} {storage.port}"]


def _machine(act: str, number: int, *words: str) -> None:
    home = Path(os.environ["BFIA_TEST_SWARM"]).parent
    command = ["bash", str(ROOT / ".ci" / "swarm.sh"), act, str(number), *words]
    subprocess.run(command, check=True, env={**os.environ, "BFIA_RT": str(home)}, timeout=120)
