"""How long a registration takes, and what hostile ones do to everybody else."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.plain import NO_TLS
from tests.registry.builders import a_description, a_parameter, a_request


def a_hundred() -> dict[str, Any]:
    """Return a registration of 100 components with 15 parameters each."""
    values = [{"label": str(k), "value": str(k)} for k in range(4)]
    parameters = [
        a_parameter(
            f"p{i}", bindingData=values, defaultValue="1", validator="(0,10)", description="what it does " * 5
        )
        for i in range(15)
    ]
    return a_request(*(a_description(f"C{i}", inputParam=parameters) for i in range(100)))


def hostile() -> dict[str, bytes]:
    """Return bodies that want to take long, or much."""
    catastrophic = [a_parameter(f"p{i}", validator="regular:'(a|a)*b'", defaultValue="a" * 60) for i in range(400)]
    described = a_request(*(a_description(f"C{i}", inputParam=catastrophic) for i in range(5)))
    return {
        "50 MB": b'{"name": "' + b"x" * 50 * 1024**2 + b'"}',
        "10,000 levels": b"[" * 10_000 + b"]" * 10_000,
        "5,000,000 levels": b"[" * 5_000_000,
        "2,000 catastrophic expressions": json.dumps(described).encode(),
        "1,000,000 values": b"[" + b"0," * 999_999 + b"0]",
    }


def registering(url: str, rounds: int) -> list[list[Any]]:
    """Return rows: what was asked of the node there, and how long it took or what became of it."""
    body, times = a_hundred(), []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = httpx.post(f"{url}/v2/provider/register", json=body, timeout=120, trust_env=False, verify=NO_TLS)
        assert answer.json()["code"] == 0
        times.append(time.perf_counter() - began)
    rows = [
        ["registration of 100 components (aim < 1 s)", f"{statistics.median(times):.2f} s"],
        ["/health/live, nothing else going on", f"p99 {health(url, None) * 1000:.0f} ms"],
    ]
    for name, text in hostile().items():
        began = time.perf_counter()
        with TemporaryDirectory() as folder:
            file = Path(folder) / "body"
            file.write_bytes(text)
            sender = subprocess.Popen(
                [sys.executable, "-c", _SENDER, url, str(file)], stdout=subprocess.PIPE, text=True
            )
            p99 = health(url, sender)
            output, _ = sender.communicate(timeout=120)
        seconds = time.perf_counter() - began
        answers = output.split()
        result = (
            f"p99 {p99 * 1000:.0f} ms; {len(answers)} answered {' '.join(sorted(set(answers)))} in {seconds:.1f} s"
        )
        rows.append([f"/health/live beside {name} (aim < 100 ms)", result])
    return rows


_SENDER = """
import httpx, sys
url, file = sys.argv[1:]
text = open(file, "rb").read()
with httpx.Client(base_url=url, timeout=100, trust_env=False, verify=False) as client:
    for path in ("/v2/provider/register", "/api/v1/providers") * 3:
        try:
            print(client.post(path, content=text).json().get("code", 0))
        except httpx.TransportError as error:
            print(type(error).__name__)
"""
"""sends a file some times, from a process of its own, so that it does not slow the one that measures"""


def health(url: str, beside: "subprocess.Popen[str] | None") -> float:
    """Ask as long as a process runs, and 300 times at least; return the 99th percentile in seconds.

    Of fewer it would be the longest, and tell when this machine was busy rather than what the node does.
    """
    times: list[float] = []
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=30) as client:
        while len(times) < 300 or (beside is not None and beside.poll() is None and len(times) < 5000):
            began = time.perf_counter()
            client.get(f"{url}/health/live").raise_for_status()
            times.append(time.perf_counter() - began)
            time.sleep(0.005)
    return statistics.quantiles(times, n=100)[-1]
