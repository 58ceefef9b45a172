"""The processes that tests start by forking are as good as new ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forks
from tests.e2e.nodes import wait_for

READING = ["job", "submit", "-", "--url", "http://127.0.0.1:9"]
"""waits for the end of its standard input"""


def look(pid: int) -> dict[str, object]:
    """Return what a process has of its own and what it could have inherited."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    found: dict[str, object] = {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Threads", "Umask")}
    files = sorted(map(int, os.listdir(place / "fd")))
    return found | {"files": files, "cwd": os.readlink(place / "cwd"), "leads": os.getsid(pid) == pid}


@contextmanager
def anew(stdin: int) -> Iterator[int]:
    line = [sys.executable, "-m", "gateway.cli.main", *READING]
    with subprocess.Popen(line, stdin=stdin, cwd=forks.ROOT, start_new_session=True) as process:
        yield process.pid
        process.kill()


def reads(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").read_text().endswith("pipe_read")


def test_a_fork_is_as_a_new_process():
    into, out_of = os.pipe()
    with os.fdopen(into, "rb") as stdin, os.fdopen(out_of, "wb"), anew(into) as new:
        fork = forks.start(READING, stdin=stdin)
        for pid in (fork.pid, new):
            wait_for(lambda pid=pid: reads(pid), 30, about="it waits for its input")
        assert look(fork.pid) == look(new)
        assert fork.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            fork.wait(0)
        fork.kill()
        assert fork.wait(60) == -signal.SIGKILL
    assert not Path(f"/proc/{fork.pid}").exists()


def test_a_fork_has_the_words_input_environment_and_end_of_its_start(tmp_path: Path):
    told = forks.run(READING, input="no: [job")
    assert told.returncode == 2 and told.stdout == "" and "Traceback" not in told.stderr and told.stderr
    made = forks.run(["init", "--engine", "process", "-o", "here.yml"], cwd=tmp_path)
    assert made.returncode == 0 and (tmp_path / "here.yml").exists(), made.stderr
    said = {"BFIA_GATEWAY__NODE__ID": "said-by-the-environment"}
    named = forks.run(["settings", "--file", "--config", "here.yml", "node.id"], cwd=tmp_path, env=said)
    assert said["BFIA_GATEWAY__NODE__ID"] in named.stdout, named.stderr
