"""What `provider init` writes works as it is, and is what the vendors' page shows."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests import forks
from tests.cli import call
from tests.e2e.nodes import wait_for

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "gateway" / "conformance" / "template"


def init(folder: Path, *words: str) -> list[str]:
    done = call("provider", "init", "my-overlap", "-o", str(folder), "--json", *words)
    assert done.exit_code == 0, done.stderr
    return list(json.loads(done.stdout)["files"])


def test_what_is_written_passes_its_own_test(tmp_path):
    os.umask(0o077)  # as the command does
    written = init(tmp_path / "new")
    assert {Path(f).stat().st_mode & 0o777 for f in written} == {0o644}, (
        "an image's own user reads them"
    )
    assert [Path(f).name for f in written] == [
        "Dockerfile",
        "main.py",
        "register.json",
        "test_my_overlap.py",
    ]
    again = call("provider", "init", "my-overlap", "-o", str(tmp_path / "new"), "--force")
    assert f'python3) {tmp_path / "new" / "main.py"}"' in again.stdout
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_overlap.py"]
    path = {"PATH": "/usr/bin:/bin"}  # without the command
    done = subprocess.run(
        line,
        cwd=tmp_path / "new",
        env=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    (tmp_path / "new" / "guest.csv").write_text("id\n1,2\n")  # the table of that role
    other = subprocess.run(
        line,
        cwd=tmp_path / "new",
        env=path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert "a table of --data cannot be used" in other.stdout
    (described,) = json.loads((tmp_path / "new" / "register.json").read_text())[
        "components_description"
    ].values()
    assert described["componentName"] == "MyOverlap"
    assert described["title"] == "MyOverlap"
    dockerfile = (tmp_path / "new" / "Dockerfile").read_text()
    assert "my-overlap:1.0.0" in dockerfile
    assert "NAME" not in dockerfile


def test_what_is_there_is_kept(tmp_path):
    (tmp_path / "main.py").write_text("mine")
    refused = call("provider", "init", "mine", "-o", str(tmp_path))
    assert refused.exit_code == 2
    assert ("main.py" in refused.stderr) is True
    assert [f.name for f in tmp_path.iterdir()] == ["main.py"]
    assert init(tmp_path, "--force")
    assert (tmp_path / "main.py").read_text() != "mine"


def checking(folder: Path, program: str = "main.py") -> list[str]:
    words = ["provider", "check", str(folder / "register.json")]
    return [*words, "--command", f"{sys.executable} {folder / program}", "--clause", "works"]


def test_what_the_parties_wrote_is_shown_where_it_is_asked_for(tmp_path):
    init(tmp_path / "new")
    (tmp_path / "guest.csv").write_text("id\nu0001\nu0002\nv1\n")
    given = ["--data", f"guest={tmp_path / 'guest.csv'}"]
    for more in (["--show-outputs"], ["--json"]):
        done = forks.run([*checking(tmp_path / "new"), *given, *more])
        assert done.returncode == 0, done.stderr
        shown = done.stdout
        if "--json" in more:
            outputs = json.loads(shown)["components"][0]["outputs"]
            shown = next(
                o["begins"] for o in outputs if (o["party"], o["output"]) == ("guest.0", "common")
            )
        assert "id\nu0001\nu0002\n" in shown


def test_a_check_that_is_ended_leaves_nothing(tmp_path):
    init(tmp_path / "new")
    (tmp_path / "new" / "waits.py").write_text("import time\ntime.sleep(600)\n")
    own = tmp_path / "tmp"
    own.mkdir()
    line = [sys.executable, "-m", "gateway.cli.main", *checking(tmp_path / "new", "waits.py")]
    running = subprocess.Popen(line, cwd=ROOT, env={**os.environ, "TMPDIR": str(own)})
    wait_for(lambda: list(own.glob("bfia-check-*/process/*")))
    running.terminate()
    assert running.wait(60) == 143
    assert list(own.iterdir()) == []


def test_a_component_is_called_as_is_asked_for_everywhere(tmp_path):
    init(tmp_path / "new", "--component", "Sum")
    texts = [file.read_text() for file in (tmp_path / "new").iterdir()]
    assert not any("Overlap" in text for text in texts)
    assert list(
        json.loads((tmp_path / "new" / "register.json").read_text())["components_description"]
    ) == ["Sum"]
    assert texts
    assert any(text.startswith('"""Sum: two parties') for text in texts)
    refused = call("provider", "init", "x", "-o", str(tmp_path / "x"), "--component", 'a"b')
    assert refused.exit_code == 2
    assert "cannot name a component" in refused.stderr


def test_the_sample_retries_while_its_gateway_restarts(monkeypatch):
    answers = [
        b"",
        b"HTTP/1.1 503 busy\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 403 no\r\n\r\n",
    ]
    monkeypatch.setenv("config.self_role", "guest.0")
    monkeypatch.setattr("time.sleep", lambda _: None)
    sample: dict[str, Any] = {}
    exec((TEMPLATE / "main.py.txt").read_text("utf-8").partition("\n\ndef report")[0], sample)
    with socket.create_server(("127.0.0.1", 0)) as gateway:

        def answer() -> None:
            for one in answers:
                with gateway.accept()[0] as asked:
                    while not asked.recv(9999).endswith(b"{}"):
                        pass
                    asked.sendall(one)

        serving = threading.Thread(target=answer, daemon=True)
        serving.start()
        address = "http://{}:{}/".format(*gateway.getsockname())
        assert sample["post"](address, {}) == {}
        with pytest.raises(HTTPError, match="403"):
            sample["post"](address, {})
        serving.join()


@pytest.mark.parametrize("name", ["Mine", "a b", "../x", "-x", "x.", ""])
def test_a_name_that_no_image_can_have_is_refused(tmp_path, name):
    refused = call("provider", "init", "-o", str(tmp_path), "--", name)
    assert refused.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("page", ["vendor.md", "vendor.zh-CN.md"])
def test_the_page_shows_the_sample_and_its_description(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, kind in (("main.py", "python"), ("register.json", "json")):
        assert f"```{kind}\n{(TEMPLATE / f'{name}.txt').read_text(encoding='utf-8')}```" in text, (
            name
        )
