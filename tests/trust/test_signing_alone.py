"""Another product can sign for us by the page and the script alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway.identity.keys import Keyring
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, PEER, ask, running

SCRIPT = ROOT / "examples/sign_request.py"
POLL = "/v1/interconn/schedule/task/poll"


def script(
    folder: Path,
    *words: str,
    given: bytes = b"",
) -> str:
    """Run the script where nothing of ours can be imported."""
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), *words],
        input=given,
        capture_output=True,
        cwd=folder,
        check=True,
    )
    return done.stdout.decode()


def test_it_imports_nothing_of_ours():
    text = SCRIPT.read_text()
    named = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    found = {n.module or "" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in named}
    assert {name.partition(".")[0] for name in found} <= {*sys.stdlib_module_names, "cryptography"}


def test_it_checks_the_vectors(tmp_path: Path):
    assert (
        script(tmp_path, "check", str(ROOT / "docs/signing-vectors.json"))
        == "the requests and the answer hold\n"
    )


@pytest.mark.parametrize("path", [POLL, f"{POLL}?a=b"])
def test_a_node_accepts_what_it_signs(tmp_path: Path, path: str):
    ring, body = Keyring(tmp_path / "partner"), b'{"task_id": "t", "role": "guest"}'
    home = tmp_path / "me"
    home.mkdir()
    entry = {"url": "http://127.0.0.1:9", "keys": ring.make("ed25519").public}
    (home / "routes.yml").write_text(yaml.safe_dump({PEER: entry}))
    printed = script(
        tmp_path, "sign", str(ring.files["signing"]), "POST", path, PEER, ME, given=body
    )
    headers = dict(line.split(": ", 1) for line in printed.splitlines()) | {
        "content-type": "application/json"
    }
    with running(home) as node:
        answers = [
            ask(node, "peer", "POST", path, content=body, headers=headers).json() for _ in range(2)
        ]
    assert [said["data"]["reason"] for said in answers] == ["TASK_UNKNOWN", "SIGNATURE_REFUSED"]
