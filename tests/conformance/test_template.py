"""The files of `provider init`: they work as they are, and the vendors' page shows them."""

import json
import os
import shlex
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
    """Write the template to a folder and return the paths of its files."""
    result = call("provider", "init", "my-overlap", "-o", str(folder), "--json", *words)
    assert result.exit_code == 0, result.stderr
    return list(json.loads(result.stdout)["files"])


def run_template_test(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the template's own test, without the gateway's command in the path."""
    test = "test_my_overlap.py"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_template_passes_its_own_test(tmp_path):
    folder = tmp_path / "new"
    init(folder)

    passed = run_template_test(folder)
    assert passed.returncode == 0, passed.stdout
    assert "1 passed" in passed.stdout

    (folder / "guest.csv").write_text("id\n1,2\n")  # in place of the guest's table
    failed = run_template_test(folder)
    assert failed.returncode == 1
    assert "a table of --data cannot be used" in failed.stdout


def test_the_template_has_the_providers_names_and_readable_files(tmp_path):
    folder = tmp_path / "new"
    os.umask(0o077)  # as the command sets it
    paths = [Path(path) for path in init(folder)]

    # An image's own user has to read the files.
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o644}
    assert [path.name for path in paths] == [
        "Dockerfile",
        "main.py",
        "register.json",
        "test_my_overlap.py",
    ]
    registration = json.loads((folder / "register.json").read_text())
    (component,) = registration["components_description"].values()
    assert component["componentName"] == "MyOverlap"
    assert component["title"] == "MyOverlap"
    dockerfile = (folder / "Dockerfile").read_text()
    assert "my-overlap:1.0.0" in dockerfile
    assert "NAME" not in dockerfile


def test_the_command_to_check_the_template_is_printed(tmp_path):
    result = call(
        "provider",
        "init",
        "my-overlap",
        "-o",
        str(tmp_path),
        "--force",
    )
    assert f'python3) {tmp_path / "main.py"}"' in result.stdout


def test_the_printed_command_keeps_the_letters_of_any_folder(tmp_path):
    folder = tmp_path / 'a $HOME `b` "c" it\'s \\d'
    result = call(
        "provider",
        "init",
        "my-overlap",
        "-o",
        str(folder),
    )
    _, _, command = result.stdout.partition("next: bfia-gateway ")

    # A shell reads the command; its words are printed in place of a call of the gateway.
    printed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"],
        capture_output=True,
        text=True,
        check=True,
    )

    words = printed.stdout.splitlines()
    assert words[2] == str(folder / "register.json")
    program = shlex.split(words[4])
    assert program[1:] == [str(folder / "main.py")]


def test_existing_files_are_kept_without_force(tmp_path):
    (tmp_path / "main.py").write_text("mine")

    refusal = call("provider", "init", "mine", "-o", str(tmp_path))

    assert refusal.exit_code == 2
    assert "main.py" in refusal.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["main.py"]
    assert init(tmp_path, "--force")
    assert (tmp_path / "main.py").read_text() != "mine"


def check_words(
    folder: Path,
    program: str = "main.py",
) -> list[str]:
    """Return the words of the command that checks one clause of a program of the template."""
    words = ["provider", "check", str(folder / "register.json")]
    return [*words, "--command", f"{sys.executable} {folder / program}", "--clause", "works"]


@pytest.fixture
def check_with_table(tmp_path):
    """Return the words that check the template with a table of the guest."""
    init(tmp_path / "new")
    table = tmp_path / "guest.csv"
    table.write_text("id\nu0001\nu0002\nv1\n")
    return [*check_words(tmp_path / "new"), "--data", f"guest={table}"]


def test_the_parties_outputs_are_printed_on_request(check_with_table):
    completed = forks.run([*check_with_table, "--show-outputs"])
    assert completed.returncode == 0, completed.stderr
    assert "id\nu0001\nu0002\n" in completed.stdout


def test_the_parties_outputs_are_in_the_json(check_with_table):
    completed = forks.run([*check_with_table, "--json"])
    assert completed.returncode == 0, completed.stderr
    beginnings = {}
    for output in json.loads(completed.stdout)["components"][0]["outputs"]:
        beginnings[output["party"], output["output"]] = output["begins"]
    assert "id\nu0001\nu0002\n" in beginnings["guest.0", "common"]


def test_a_check_that_is_ended_leaves_nothing(tmp_path):
    init(tmp_path / "new")
    (tmp_path / "new" / "waits.py").write_text("import time\ntime.sleep(600)\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def has_started() -> bool:
        return any(temporary.glob("bfia-check-*/process/*"))

    command = [sys.executable, "-m", "gateway.cli.main"]
    command += check_words(tmp_path / "new", "waits.py")
    check = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)})
    wait_for(has_started)

    check.terminate()

    assert check.wait(60) == 143
    assert list(temporary.iterdir()) == []


def test_a_component_has_the_requested_name_everywhere(tmp_path):
    init(tmp_path / "new", "--component", "Sum")

    texts = [file.read_text() for file in (tmp_path / "new").iterdir()]
    assert texts
    assert not any("Overlap" in text for text in texts)
    assert any(text.startswith('"""Sum: two parties') for text in texts)
    registration = json.loads((tmp_path / "new" / "register.json").read_text())
    assert list(registration["components_description"]) == ["Sum"]


def test_a_name_that_no_component_can_have_is_refused(tmp_path):
    refusal = call(
        "provider",
        "init",
        "x",
        "-o",
        str(tmp_path / "x"),
        "--component",
        'a"b',
    )
    assert refusal.exit_code == 2
    assert "cannot name a component" in refusal.stderr


# Responses of a gateway that restarts: it closes a connection, is busy, accepts, then refuses.
RESPONSES = [
    b"",
    b"HTTP/1.1 503 busy\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n{}",
    b"HTTP/1.1 403 no\r\n\r\n",
]


def respond(gateway: socket.socket) -> None:
    """Send one of the responses to each of the next connections."""
    for response in RESPONSES:
        connection, _ = gateway.accept()
        with connection:
            while not connection.recv(9999).endswith(b"{}"):
                pass
            connection.sendall(response)


def test_the_sample_retries_while_its_gateway_restarts(monkeypatch):
    monkeypatch.setenv("config.self_role", "guest.0")
    monkeypatch.setattr("time.sleep", lambda _: None)
    source = (TEMPLATE / "main.py.txt").read_text("utf-8")
    sample: dict[str, Any] = {}
    exec(source.partition("\n\ndef report")[0], sample)
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        serving = threading.Thread(
            target=respond,
            args=(gateway,),
            daemon=True,
        )
        serving.start()
        host, port = gateway.getsockname()

        assert sample["post"](f"http://{host}:{port}/", {}) == {}
        with pytest.raises(HTTPError, match="403"):
            sample["post"](f"http://{host}:{port}/", {})
        serving.join()


@pytest.mark.parametrize(
    "name",
    ["Mine", "a b", "../x", "-x", "x.", ""],
)
def test_a_name_that_no_image_can_have_is_refused(tmp_path, name):
    refusal = call(
        "provider",
        "init",
        "-o",
        str(tmp_path),
        "--",
        name,
    )
    assert refusal.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("page", ["vendor.md", "vendor.zh-CN.md"])
@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("main.py", "python"),
        ("register.json", "json"),
    ],
)
def test_the_page_shows_the_sample_and_its_description(page, file, language):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    sample = (TEMPLATE / f"{file}.txt").read_text(encoding="utf-8")
    assert f"```{language}\n{sample}```" in text
