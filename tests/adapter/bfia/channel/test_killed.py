"""Two nodes' channels, each killed at any of its writes: order, no loss, no duplicate."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count, product

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from adapter.bfia.channel.ptp_pb2 import LegacyOutbound
from tests.adapter.bfia.channel.nodes import CHAN, OK, listening

# Codes after which a container repeats its push: peer unreachable, no capacity.
REPEATED_CODES = {"E0000000607", "E0000000700"}
# Unique numbers of messages, pops and sessions.
NUMBERS = count()


class KillableNode:
    """A node in a process of its own; its port stays when the process is killed."""

    def __init__(self, name, folder):
        self.name = name
        self.folder = folder
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def start(self, peer):
        """Start the process and wait until it serves."""
        self.peer = peer
        descriptor = self.socket.fileno()
        command = [sys.executable, "-m", "tests.adapter.bfia.channel.alone"]
        command += [
            self.name,
            str(self.folder),
            str(descriptor),
            peer.name,
            peer.url,
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=[descriptor],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == "ready\n"

    def arm(self, kill):
        """Let the process die at one of its next writes."""
        self.process.stdin.write(f"{kill.moment} {kill.write}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "armed\n"

    def restart(self):
        """Kill the process, unless it is dead already, and start it again."""
        self.stop()
        self.start(self.peer)

    def stop(self):
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    home = tmp_path_factory.mktemp("pair")
    alpha = KillableNode("alpha", home / "alpha")
    beta = KillableNode("beta", home / "beta")
    alpha.start(beta)
    beta.start(alpha)
    yield [alpha, beta]
    for node in (alpha, beta):
        node.stop()
        node.socket.close()


@dataclass(frozen=True)
class Kill:
    """The end of a node's process: amid or after one of its next writes."""

    node: int
    moment: str
    write: int


KILLS = [Kill(*choice) for choice in product((0, 1), ("after", "amid"), (1, 2, 3))]

NODES = st.integers(0, 1)
TOPICS = st.sampled_from("ab")
# Sizes up to the longest message that is stored in one piece, and one above it.
SIZES = st.sampled_from([0, 1, 300 << 10, (2 << 20) + 1])
# A kill in one request of three, as a restart takes a second.
MAYBE_KILL = st.sampled_from(24 * [None] + KILLS)


class Exchange(RuleBasedStateMachine):
    """Containers of two nodes exchange messages, while the nodes are killed."""

    def __init__(self, pair):
        super().__init__()
        self.pair = pair
        self.session = f"session_{next(NUMBERS)}"
        # acknowledged payloads that are not read yet, by reading node and topic
        self.unread = defaultdict(list)
        self.client = httpx.Client(
            trust_env=False,
            timeout=300,
        )
        self.pool = ThreadPoolExecutor(2)

    def teardown(self):
        """Read all messages, after which the topics are empty."""
        try:
            for reader, topic in self.unread:
                while self.unread[reader, topic]:
                    self.pop(reader, topic, None)
                _, payload = self.request(reader, "peek", topic, "last")
                assert payload == b""
        finally:
            self.client.close()
            self.pool.shutdown()

    @rule(
        reader=NODES,
        from_peer=st.booleans(),
        topic=TOPICS,
        size=SIZES,
        kill=MAYBE_KILL,
    )
    def push(self, reader, from_peer, topic, size, kill):
        number = next(NUMBERS)
        payload = f"{self.session} {number} ".encode() + os.urandom(size)
        writer = 1 - reader if from_peer else reader
        headers = {
            "x-ptp-target-node-id": self.pair[reader].name,
            "x-ptp-message-id": f"{number}",
        }
        code, _ = self.request_during(kill, writer, "push", topic, "writer", payload, **headers)
        assert code == OK
        self.unread[reader, topic].append(payload)

    @rule(reader=NODES, topic=TOPICS, kill=MAYBE_KILL)
    def pop(self, reader, topic, kill):
        pop_id = {"x-ptp-pop-id": f"{next(NUMBERS)}"}
        code, payload = self.request_during(kill, reader, "peek", topic, "reader", **pop_id)
        unread = self.unread[reader, topic]
        expected = unread.pop(0) if unread else b""
        assert code == OK
        # The beginnings tell the messages apart; whole payloads would be unreadable.
        assert payload == expected, (len(payload), payload[:50], expected[:50])

    @rule(reader=NODES, topic=TOPICS)
    def release(self, reader, topic):
        code, _ = self.request(reader, "release", topic, "reader")
        assert code == OK
        self.unread[reader, topic].clear()

    def request_during(self, kill, *args, **headers):
        """Send a request while a node is armed; restart the node, at the latest afterwards."""
        if kill is None:
            return self.request(*args, **headers)
        node = self.pair[kill.node]
        node.arm(kill)
        request = self.pool.submit(self.request, *args, **headers)
        death = self.pool.submit(node.process.wait)
        wait(
            [request, death],
            return_when=FIRST_COMPLETED,
        )
        node.restart()
        return request.result()

    def request(
        self,
        node,
        verb,
        topic,
        token,
        body=b"",
        **headers,
    ):
        """Send a request and repeat it until it is acknowledged; return code and payload."""
        url = f"{self.pair[node].url}{CHAN}{verb}"
        all_headers = {
            "x-ptp-session-id": self.session,
            "x-ptp-topic": topic,
            "x-ptp-token": token,
        }
        all_headers |= headers
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                response = self.client.post(
                    url,
                    content=body,
                    headers=all_headers,
                )
            except httpx.TransportError:
                continue
            message = LegacyOutbound.FromString(response.content)
            if message.code not in REPEATED_CODES:
                return message.code, message.payload
        raise AssertionError(f"{verb} was not acknowledged within 60 s")


@pytest.mark.slow
def test_an_acknowledged_message_survives_the_kill_of_either_gateway(pair):
    few_long_examples = settings(
        max_examples=3,
        stateful_step_count=16,
        deadline=None,
        phases=[Phase.generate],  # shrinking takes minutes
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
        ],
    )
    run_state_machine_as_test(lambda: Exchange(pair), settings=few_long_examples)
