"""Two nodes' channels, each killed at any of its writes: order, no loss, no duplicate."""

import multiprocessing
import os
import random
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count, product

import httpx
import pytest

from adapter.bfia.channel.ptp_pb2 import LegacyOutbound
from tests.adapter.bfia.channel import alone
from tests.adapter.bfia.channel.nodes import CHAN, OK, listening

# Codes after which a container repeats its push: peer unreachable, no capacity.
REPEATED_CODES = {"E0000000607", "E0000000700"}
# Seconds after which a request that is not acknowledged fails the test.
LONGEST_OUTAGE = 300
RETRY_PAUSE = 0.01  # seconds before a request is repeated
# Unique numbers of messages, pops and sessions.
NUMBERS = count()


class KillableNode:
    """A node in a process of its own; its port stays when the process is killed."""

    def __init__(self, processes, name, folder):
        """``processes``: the context of `multiprocessing` that starts processes."""
        self.processes = processes
        self.name = name
        self.folder = folder
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def start(self, peer):
        """Start the process and wait until it serves."""
        self.peer = peer
        self.commands, its_end = self.processes.Pipe()
        with its_end:
            self.process = self.processes.Process(
                target=alone.run,
                args=(self.name, self.folder, self.socket, peer.name, peer.url, its_end),
            )
            self.process.start()
        assert self.commands.recv() == "ready"

    def arm(self, kill):
        """Let the process die at one of its next writes."""
        self.commands.send((kill.moment, kill.write))
        assert self.commands.recv() == "armed"

    def restart(self):
        """Kill the process, unless it is dead already, and start it again."""
        self.stop()
        self.start(self.peer)

    def stop(self):
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.commands.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    home = tmp_path_factory.mktemp("pair")
    # forks each process from one that has imported the node
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([alone.__name__])
    alpha = KillableNode(processes, "alpha", home / "alpha")
    beta = KillableNode(processes, "beta", home / "beta")
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

NODES = (0, 1)
TOPICS = ("a", "b")
# Sizes up to the longest message that is stored in one piece, and one above it.
SIZES = (0, 1, 300 << 10, (2 << 20) + 1)
# A kill in one request of three, as a restart takes a second.
MAYBE_KILL = 24 * [None] + KILLS
VERBS = ("push", "push", "pop", "pop", "release")
STEPS = 16  # requests of one exchange


class Exchange:
    """Containers of two nodes exchange messages, while the nodes are killed."""

    def __init__(self, pair, seed):
        """``seed``: seeds the random choice of the requests."""
        self.pair = pair
        self.choose = random.Random(seed).choice
        self.session = f"session_{next(NUMBERS)}"
        # acknowledged payloads that are not read yet, by reading node and topic
        self.unread = defaultdict(list)
        self.client = httpx.Client(
            trust_env=False,
            timeout=300,
        )
        self.pool = ThreadPoolExecutor(2)

    def close(self):
        """Close the connections."""
        self.client.close()
        self.pool.shutdown()

    def step(self):
        """Push a message, read one, or release a topic, chosen at random."""
        reader = self.choose(NODES)
        topic = self.choose(TOPICS)
        kill = self.choose(MAYBE_KILL)
        match self.choose(VERBS):
            case "push":
                self.push(reader, topic, kill)
            case "pop":
                self.pop(reader, topic, kill)
            case "release":
                self.release(reader, topic)

    def read_all(self):
        """Read all messages, after which the topics are empty."""
        for reader, topic in self.unread:
            while self.unread[reader, topic]:
                self.pop(reader, topic, None)
            _, payload = self.request(reader, "peek", topic, "last")
            assert payload == b""

    def push(self, reader, topic, kill):
        number = next(NUMBERS)
        payload = f"{self.session} {number} ".encode() + os.urandom(self.choose(SIZES))
        writer = self.choose(NODES)
        headers = {
            "x-ptp-target-node-id": self.pair[reader].name,
            "x-ptp-message-id": f"{number}",
        }
        code, _ = self.request_during(kill, writer, "push", topic, "writer", payload, **headers)
        assert code == OK
        self.unread[reader, topic].append(payload)

    def pop(self, reader, topic, kill):
        pop_id = {"x-ptp-pop-id": f"{next(NUMBERS)}"}
        code, payload = self.request_during(kill, reader, "peek", topic, "reader", **pop_id)
        unread = self.unread[reader, topic]
        expected = unread.pop(0) if unread else b""
        assert code == OK
        # The beginnings tell the messages apart; whole payloads would be unreadable.
        assert payload == expected, (len(payload), payload[:50], expected[:50])

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
        death = self.pool.submit(node.process.join)
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
        end = time.monotonic() + LONGEST_OUTAGE
        while time.monotonic() < end:
            with suppress(httpx.TransportError):
                response = self.client.post(
                    url,
                    content=body,
                    headers=all_headers,
                )
                message = LegacyOutbound.FromString(response.content)
                if message.code not in REPEATED_CODES:
                    return message.code, message.payload
            time.sleep(RETRY_PAUSE)
        raise AssertionError(f"{verb} was not acknowledged within {LONGEST_OUTAGE} s")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_an_acknowledged_message_survives_the_kill_of_either_gateway(pair, seed):
    with closing(Exchange(pair, seed)) as exchange:
        for _ in range(STEPS):
            exchange.step()
        exchange.read_all()
