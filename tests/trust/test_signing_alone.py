"""Another product can sign requests by the documentation page and its example script alone."""

import ast
import subprocess
import sys

import pytest

from gateway.identity.keys import Keyring
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, PEER
from tests.trust.peer_requests import POLL, PeerRequest
from tests.world import UNREACHABLE

SCRIPT = ROOT / "examples/sign_request.py"


def run_script(folder, *words, body=b""):
    """Run the script, isolated from the modules of the gateway; return its output."""
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), *words],
        input=body,
        capture_output=True,
        cwd=folder,
        check=True,
    )
    return done.stdout.decode()


def imported_modules(source):
    """Return the top-level names of all modules that a source imports."""
    modules = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.ImportFrom):
            modules.add(statement.module or "")
        elif isinstance(statement, ast.Import):
            modules.update(alias.name for alias in statement.names)
    return {module.partition(".")[0] for module in modules}


def test_the_script_imports_no_module_of_the_gateway():
    allowed = {*sys.stdlib_module_names, "cryptography"}
    assert imported_modules(SCRIPT.read_text()) <= allowed


def test_the_script_checks_the_vectors(tmp_path):
    output = run_script(tmp_path, "check", str(ROOT / "docs/signing-vectors.json"))
    assert output == "the requests and the answer hold\n"


@pytest.mark.parametrize("query", ["", "a=b"])
def test_a_node_accepts_what_the_script_signs(tmp_path, world, query):
    ring = Keyring(tmp_path / "partner")
    public_key = ring.make("ed25519").public
    node = world.node(routes={PEER: {**UNREACHABLE, "keys": public_key}})
    path = f"{POLL}?{query}".removesuffix("?")
    body = PeerRequest.body
    key_file = str(ring.files["signing"])

    output = run_script(
        tmp_path,
        "sign",
        key_file,
        "POST",
        path,
        PEER,
        ME,
        body=body,
    )

    headers = tuple(tuple(line.split(": ", 1)) for line in output.splitlines())
    request = PeerRequest(
        query=query,
        headers=headers,
    )
    assert request.refusal_of(node) == "TASK_UNKNOWN"
    assert request.refusal_of(node) == "SIGNATURE_REFUSED"  # repeated
