"""The network for tests: its firewalls, and its end."""

import socket
import subprocess
import sys

import pytest

from tests.e2e.nodes import wait_for
from tests.forks import ROOT
from tests.namespaces import Namespace
from tests.network.lab import Lab

pytestmark = pytest.mark.network

PORT = 8080

# Makes a host with a server, and with a cable to a namespace of the test.
MAKES_A_HOST = """\
import sys, time
from pathlib import Path
from tests.network.lab import Lab

seen_from, log = sys.argv[1:]
host = Lab().host()
host.do("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", seen_from)
server = host.serving([sys.executable, "-m", "http.server", "8080"], Path(log), 8080)
server.__enter__()
print("ready", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_hosts_whose_test_was_killed(tmp_path):
    observer = Namespace()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            MAKES_A_HOST,
            observer.path,
            str(tmp_path / "log"),
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert "far@" in observer.do("ip", "link")
        process.kill()

    def is_gone() -> bool:
        return "far@" not in observer.do("ip", "link")

    wait_for(is_gone, about="the host is gone")
    observer.close()


def test_a_firewall_lets_calls_out_to_the_allowed_hosts_only():
    with Lab() as lab:
        office = lab.host()
        proxy = lab.host()
        stranger = lab.host()
        office.call_only(proxy)
        with proxy.entered():
            listener = socket.create_server((proxy.ipv4, PORT))

        with listener, office.entered(), socket.socket() as caller:
            socket.create_connection((proxy.ipv4, PORT)).close()
            assert office.dropped("outbound") == 0
            caller.setblocking(False)
            caller.connect_ex((stranger.ipv4, PORT))
            assert office.dropped("outbound") == 1
