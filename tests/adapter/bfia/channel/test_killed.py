"""Two nodes' channels, each killed at any of its writes: order, no loss, no duplicate, no other session."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import count, product

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from adapter.bfia.channel.ptp_pb2 import LegacyOutbound
from tests.adapter.bfia.channel.nodes import CHAN, OK, listening

AGAIN = {"E0000000607", "E0000000700"}
"""codes after which a container repeats its push"""
NUMBERS = count()


class Killable:
    """A node in a process of its own, whose port outlives it."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def start(self, other):
        self.other = other
        line = [
            sys.executable,
            "-m",
            "tests.adapter.bfia.channel.alone",
            self.name,
            str(self.folder),
        ]
        line += [str(self.socket.fileno()), other.name, other.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            line,
            pass_fds=[self.socket.fileno()],
            text=True,
            **pipes,
        )
        assert self.process.stdout.readline() == "ready\n"

    def dies(self, how, write):
        self.process.stdin.write(f"{how} {write}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "armed\n"

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    home = tmp_path_factory.mktemp("pair")
    pair = [Killable(name, home / name) for name in ("alpha", "beta")]
    for node, other in (pair, pair[::-1]):
        node.start(other)
    yield pair
    for node in pair:
        node.stop()
        node.socket.close()


NODES = st.integers(0, 1)
TOPICS = st.sampled_from("ab")
SIZES = st.sampled_from([0, 1, 300 << 10, (2 << 20) + 1])
KILLED = st.sampled_from(24 * [None] + list(product((0, 1), ("after", "amid"), (1, 2, 3))))
"""in one case of three, as a start takes a second"""


def machine(pair):
    class Killed(RuleBasedStateMachine):
        """``waiting[reading node, topic]``: what was pushed there and answered, and is not read."""

        def __init__(self):
            super().__init__()
            self.session = f"session_{next(NUMBERS)}"
            self.waiting = defaultdict(list)
            self.client = httpx.Client(trust_env=False, timeout=60)
            self.pool = ThreadPoolExecutor(2)

        def teardown(self):
            try:
                for reading, topic in self.waiting:
                    while self.waiting[reading, topic]:
                        self.pop(reading, topic, None)
                    assert self.ask(reading, "peek", topic, "last")[1] == b""
            finally:
                self.client.close()
                self.pool.shutdown()

        @rule(
            reading=NODES,
            from_other=st.booleans(),
            topic=TOPICS,
            size=SIZES,
            killed=KILLED,
        )
        def push(
            self,
            reading,
            from_other,
            topic,
            size,
            killed,
        ):
            number = next(NUMBERS)
            payload = f"{self.session} {number} ".encode() + os.urandom(size)
            node = 1 - reading if from_other else reading
            more = {"x-ptp-target-node-id": pair[reading].name, "x-ptp-message-id": f"{number}"}
            code, _ = self.while_killed(killed, node, "push", topic, "writer", payload, **more)
            assert code == OK
            self.waiting[reading, topic].append(payload)

        @rule(
            reading=NODES,
            topic=TOPICS,
            killed=KILLED,
        )
        def pop(
            self,
            reading,
            topic,
            killed,
        ):
            more = {"x-ptp-pop-id": f"{next(NUMBERS)}"}
            code, payload = self.while_killed(killed, reading, "peek", topic, "reader", **more)
            wanted = self.waiting[reading, topic].pop(0) if self.waiting[reading, topic] else b""
            assert (code, payload == wanted) == (OK, True), (
                len(payload),
                payload[:50],
                wanted[:50],
            )

        @rule(reading=NODES, topic=TOPICS)
        def release(self, reading, topic):
            assert self.ask(reading, "release", topic, "reader")[0] == OK
            self.waiting[reading, topic].clear()

        def while_killed(
            self,
            killed,
            *args,
            **more,
        ):
            """Ask, and kill a node at one of its writes meanwhile, or else when it has answered."""
            if killed is None:
                return self.ask(*args, **more)
            node, how, write = pair[killed[0]], *killed[1:]
            node.dies(how, write)
            asked = self.pool.submit(self.ask, *args, **more)
            wait([asked, self.pool.submit(node.process.wait)], return_when=FIRST_COMPLETED)
            node.stop()
            node.start(node.other)
            return asked.result()

        def ask(
            self,
            node,
            verb,
            topic,
            token,
            body=b"",
            **more,
        ):
            """Ask as a container does that repeats what was not answered."""
            named = {
                "x-ptp-session-id": self.session,
                "x-ptp-topic": topic,
                "x-ptp-token": token,
            }
            end = time.monotonic() + 60
            while True:
                try:
                    got = self.client.post(
                        f"{pair[node].url}{CHAN}{verb}", content=body, headers=named | more
                    )
                    answer = LegacyOutbound.FromString(got.content)
                    if answer.code not in AGAIN:
                        return answer.code, answer.payload
                except httpx.TransportError:
                    pass
                assert time.monotonic() < end

    return Killed


@pytest.mark.slow
def test_an_acknowledged_message_survives_the_kill_of_either_gateway(pair):
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    steady = settings(
        max_examples=3,
        stateful_step_count=16,
        deadline=None,
        phases=[Phase.generate],  # to look for a shorter way takes minutes
        suppress_health_check=checks,
    )
    run_state_machine_as_test(lambda: machine(pair)(), settings=steady)
