"""The same attacks on a node as `init` writes it and on the strictest one, at every path."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.identity.keys import KeyPair
from tests.certificates import Authority, Files
from tests.inprocess import ME, PEER, STRANGER, Node, routes_of, serving

OTHER = "JG0100003300000030"
HELLO = "/v1/interconn/schedule/node/hello"
CONTRACT = [f"/v1/interconn/node/contract/{verb}" for verb in ("confirm", "terminate", "query")]
OPEN = (
    HELLO,
    "/docs",
    "/openapi.json",
    *(f"/v1/interconn/node/{name}" for name in ("query", "health")),
)
"""tell everybody who this node is, and which paths there are"""
APPLY = "/v1/interconn/node/contract/apply"
"""is for nodes that are not known yet: a person decides (`test_contracts`)"""
CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = [f"/v1/interconn/chan/{verb}" for verb in ("push", "pop", "peek", "release")]
REFUSED = {
    "OWN_NODE_ID",
    "NOT_AUTHORISED",
    "SIGNATURE_REFUSED",
    "CERTIFICATE_MISMATCH",
    "PATH_UNKNOWN",
}


@dataclass
class Target:
    """A node under attack."""

    node: Gateway
    authority: Authority
    certificates: dict[str, Files]
    clients: dict[tuple[str, str], httpx.Client] = field(default_factory=dict)

    def client(self, listener: str, who: str) -> httpx.Client:
        """Return a client of a listener, by TLS with the certificate of ``who`` where the listener wants one."""
        if (listener, who) not in self.clients:
            url, context = (
                self.node.addresses()[listener],
                ssl.create_default_context(cafile=self.authority.file),
            )
            if listener in self.node.tls:
                url = url.replace("http://", "https://")
                context.load_cert_chain(
                    self.certificates[who].certificate, self.certificates[who].key
                )
            client = httpx.Client(
                base_url=url,
                verify=context,
                trust_env=False,
                timeout=60,
            )
            self.clients[listener, who] = client
        return self.clients[listener, who]

    def send(
        self,
        listener: str,
        method: str,
        path: str,
        who: str = "",
        **more: Any,
    ) -> httpx.Response:
        """Make a request, with the certificate of a partner ``who`` where that is wanted."""
        return self.client(listener, who).request(method, path, **more)


@pytest.fixture(scope="module", params=["init", "strictest"])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    home = tmp_path_factory.mktemp(request.param)
    file = home / "node.yml"
    made = CliRunner().invoke(app, ["init", "--node", ME, "--engine", "process", "-o", str(file)])
    assert made.exit_code == 0, made.output
    authority = Authority(home / "tls")
    certificates = {node: authority.sign(node, "127.0.0.1", node) for node in (ME, PEER, OTHER)}
    over: dict[str, Any] = {n: {"bind": "127.0.0.1:0"} for n in ("peer", "container", "operator")}
    more: dict[str, Any] = {}
    if request.param == "strictest":
        own, revoked = certificates[ME], authority.revoke()
        tls = {
            "certificate": own.certificate,
            "key": own.key,
            "client_ca": authority.file,
            "revoked": revoked,
        }
        over["peer"]["tls"] = tls
        more = {
            "auth": {"mode": "on"},
            "approval": {"mode": "person"},
            "fate": {"enabled": False},
        }
    routes = {
        node: {
            "url": "http://127.0.0.1:9",
            "keys": KeyPair(Ed25519PrivateKey.generate()).public,
            "components": ["vendor/*"],
        }
        for node in (PEER, OTHER)
    }
    (home / "routes.yml").write_text(yaml.safe_dump(routes))
    gateway = Node(load(file, {"listen": over, **more}))
    with serving(gateway):
        yield (target := Target(gateway, authority, certificates))
        for client in target.clients.values():
            client.close()


def reason(answer: httpx.Response) -> str:
    said = answer.json()
    found = said.get("data", {}).get("reason", "") if isinstance(said.get("data"), dict) else ""
    return str(found or said.get("message", "") or said.get("msg", ""))


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "every user of this machine may do everything"), (("--auth",), "tokens are required")],
)
def test_init_says_who_may_use_the_operators_listener(
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
):
    made = CliRunner().invoke(
        app, ["init", "--engine", "process", "-o", str(tmp_path / "node.yml"), *words]
    )
    assert made.exit_code == 0 and said in made.output


ATTACKERS = {
    "nobody": (OTHER, {}),
    "a stranger": (OTHER, {"x-source-node-id": STRANGER}),
    "the node itself": (OTHER, {"x-source-node-id": ME}),
    "another partner's name": (OTHER, {"x-source-node-id": PEER, "x-target-node-id": ME}),
    "a stolen certificate, without the key": (
        PEER,
        {"x-source-node-id": PEER, "x-target-node-id": ME},
    ),
    "an invented signature": (
        PEER,
        {
            "x-source-node-id": PEER,
            "x-target-node-id": ME,
            "x-auth-sign": "input=()",
        },
    ),
}


@pytest.mark.parametrize(("who", "headers"), ATTACKERS.values(), ids=ATTACKERS)
def test_no_path_of_peers_does_anything_for(
    target: Target,
    who: str,
    headers: dict[str, str],
):
    paths = {
        (m, r.path) for r in routes_of(target.node.apps["peer"]) for m in r.methods if m != "HEAD"
    }
    assert len(paths) > 20
    for method, path in sorted(paths):
        if path in (*OPEN, APPLY) or "/chan/" in path:
            continue
        body = {
            "job_id": "job-1",
            "task_id": "t",
            "node_id": PEER,
            "contract_id": "c",
            "status": "REJECTED",
        }
        answer = target.send(
            "peer",
            method,
            path,
            who,
            headers=headers,
            json=body,
            params={"contract_id": "c"},
        )
        unknown = {"APPLICATION_UNKNOWN"} if path in CONTRACT else set()
        assert reason(answer) in REFUSED | unknown, (method, path, answer.text)
    assert target.node.store.local_jobs.find("job-1") is None


@pytest.mark.parametrize(
    "path", ["/v1/platform/schedule/job/create_all", "/api/v1/audit", "/metrics"]
)
@pytest.mark.parametrize("listener", ["peer", "container"])
def test_no_path_of_operators_is_on_another_listener(
    target: Target,
    listener: str,
    path: str,
):
    for method in ("GET", "POST"):
        assert reason(target.send(listener, method, path, PEER, json={})) in REFUSED


def test_a_container_without_a_run_gets_nothing(target: Target):
    headers = {
        "x-ptp-session-id": "session_job-1",
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": PEER,
    }
    for token in ("", "invented"):
        for path in CHANNEL:
            sent = {**headers, **({"x-ptp-token": token} if token else {})}
            answer = target.send("container", "POST", path, json={"topic": "t"}, headers=sent)
            assert "RUN_TOKEN_REQUIRED" in answer.text, answer.text
    sent_back = {
        "task_id": "t",
        "role": "guest.0",
        "status": "SUCCESS",
    }
    answer = target.send("container", "POST", CALLBACK, json=sent_back)
    assert reason(answer) in ("RUN_TOKEN_REQUIRED", "TASK_UNKNOWN", "NOT_AUTHORISED"), answer.text
    assert target.node.broker.sessions() == ()


@pytest.mark.parametrize("claimed", [ME, STRANGER, PEER])
def test_another_node_brings_no_message_in_the_name_of(target: Target, claimed: str):
    named = {
        "x-ptp-version": "1.0",
        "x-ptp-source-node-id": claimed,
        "x-ptp-session-id": "session_x",
    }
    answer = target.send("peer", "POST", "/v1/interconn/chan/invoke", OTHER, headers=named, json={})
    if (
        claimed == PEER and not target.node.tls
    ):  # docs/security.md says so: the channel is not signed
        return
    assert answer.json()["code"] != "E0000000000", answer.text
    assert target.node.broker.sessions() == ()


def test_what_was_tried_is_in_the_audit(target: Target):
    target.send(
        "peer",
        "POST",
        "/v1/interconn/schedule/job/stop",
        PEER,
        headers={"x-source-node-id": ME},
        json={},
    )
    found = target.node.audit.list()
    assert any(
        entry.detail.get("reason") == "OWN_NODE_ID" and entry.detail["from"] for entry in found
    )
