"""The same attacks at every path of a node as `init` configures it, and of the strictest one."""

import ssl
from dataclasses import dataclass, field

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.loader import load
from gateway.identity.keys import KeyPair
from tests.certificates import Authority, Files
from tests.inprocess import ME, PEER, STRANGER, Node, routes_of, serving
from tests.world import UNREACHABLE, write_routes

OTHER = "JG0100003300000030"
# Paths that tell everybody who this node is, and which paths it has.
OPEN = (
    "/v1/interconn/schedule/node/hello",
    "/docs",
    "/openapi.json",
    "/v1/interconn/node/query",
    "/v1/interconn/node/health",
)
# Serves unknown nodes: a person decides on the application (see test_contracts.py).
APPLY = "/v1/interconn/node/contract/apply"
# Paths that name a contract: an unknown one is no reason to tell strangers from partners.
CONTRACT = (
    "/v1/interconn/node/contract/confirm",
    "/v1/interconn/node/contract/terminate",
    "/v1/interconn/node/contract/query",
)
CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = "/v1/interconn/chan"
REFUSED = {
    "OWN_NODE_ID",
    "NOT_AUTHORISED",
    "SIGNATURE_REFUSED",
    "CERTIFICATE_MISMATCH",
    "PATH_UNKNOWN",
}


@dataclass
class Target:
    """The node under attack."""

    node: Node
    authority: Authority
    certificates: dict[str, Files]  # by node
    clients: dict[tuple[str, str], httpx.Client] = field(default_factory=dict)

    def send(
        self,
        listener,
        method,
        path,
        owner="",
        **kwargs,
    ):
        """Send a request, with the certificate of ``owner`` if the listener requires one."""
        if (listener, owner) not in self.clients:
            self.clients[listener, owner] = self._client(
                listener,
                owner,
            )
        return self.clients[listener, owner].request(method, path, **kwargs)

    def _client(self, listener, owner):
        url = self.node.addresses()[listener]
        context = ssl.create_default_context(cafile=self.authority.file)
        if listener in self.node.tls:
            url = url.replace("http://", "https://")
            files = self.certificates[owner]
            context.load_cert_chain(files.certificate, files.key)
        return httpx.Client(
            base_url=url,
            verify=context,
            trust_env=False,
            timeout=300,
        )


def run_init(*options):
    """Write a configuration by `init`; return the output."""
    done = CliRunner().invoke(app, ["init", "--engine", "process", *options])
    assert done.exit_code == 0, done.output
    return done.output


def settings_of(kind, authority, certificate):
    """Return how the settings of a kind of node differ from the ones `init` writes."""
    listen = {name: {"bind": "127.0.0.1:0"} for name in ("peer", "container", "operator")}
    if kind == "init":
        return {"listen": listen}
    listen["peer"]["tls"] = {
        "certificate": certificate.certificate,
        "key": certificate.key,
        "client_ca": authority.file,
        "revoked": authority.revoke(),
    }
    return {
        "listen": listen,
        "auth": {"mode": "on"},
        "approval": {"mode": "person"},
        "fate": {"enabled": False},
    }


def a_route():
    """Return the route to a partner that signs with a key of its own."""
    return {
        **UNREACHABLE,
        "keys": KeyPair(Ed25519PrivateKey.generate()).public,
        "components": ["vendor/*"],
    }


@pytest.fixture(
    scope="module",
    params=["init", "strictest"],
)
def target(request, tmp_path_factory):
    home = tmp_path_factory.mktemp(request.param)
    config = home / "node.yml"
    run_init("--node", ME, "-o", str(config))
    authority = Authority(home / "tls")
    certificates = {node: authority.sign(node, "127.0.0.1", node) for node in (ME, PEER, OTHER)}
    write_routes(
        home / "routes.yml",
        {
            PEER: a_route(),
            OTHER: a_route(),
        },
    )
    settings = load(
        config,
        settings_of(request.param, authority, certificates[ME]),
    )
    with serving(Node(settings)) as node:
        target = Target(node, authority, certificates)
        yield target
        for client in target.clients.values():
            client.close()


def reason_of(response):
    """Return the reason of a refusal; its message if it has no reason."""
    body = response.json()
    data = body.get("data")
    if isinstance(data, dict) and data.get("reason"):
        return data["reason"]
    return body.get("message", "") or body.get("msg", "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "every user of this machine may do everything"),
        (("--auth",), "tokens are required"),
    ],
    ids=["without tokens", "with tokens"],
)
def test_init_tells_who_may_use_the_operators_listener(tmp_path, options, text):
    assert text in run_init("-o", str(tmp_path / "node.yml"), *options)


# ---------------------------------------------------------------- the listener of peers

AS_PEER = {
    "x-source-node-id": PEER,
    "x-target-node-id": ME,
}
# Owner of the certificate, and headers, by the attacker's name.
ATTACKERS = {
    "nobody": (OTHER, {}),
    "a stranger": (
        OTHER,
        {"x-source-node-id": STRANGER},
    ),
    "the node itself": (
        OTHER,
        {"x-source-node-id": ME},
    ),
    "another partner's name": (OTHER, AS_PEER),
    "a stolen certificate, without the key": (PEER, AS_PEER),
    "an invented signature": (PEER, AS_PEER | {"x-auth-sign": "input=()"}),
}


def guarded_requests(node):
    """Return methods and paths that serve partners only, except the channel's."""
    requests = set()
    for route in routes_of(node.apps["peer"]):
        for method in route.methods - {"HEAD"}:
            requests.add((method, route.path))
    assert len(requests) > 20
    open_paths = (*OPEN, APPLY)
    guarded = []
    for method, path in sorted(requests):
        if path not in open_paths and "/chan/" not in path:
            guarded.append((method, path))
    return guarded


@pytest.mark.parametrize(
    ("owner", "headers"),
    ATTACKERS.values(),
    ids=ATTACKERS,
)
def test_no_path_of_peers_does_anything_for(target, owner, headers):
    query = {"contract_id": "c"}
    body = {
        "job_id": "job-1",
        "task_id": "t",
        "node_id": PEER,
        "contract_id": "c",
        "status": "REJECTED",
    }

    for method, path in guarded_requests(target.node):
        response = target.send(
            "peer", method, path, owner, headers=headers, json=body, params=query
        )
        refusals = REFUSED
        if path in CONTRACT:
            refusals = REFUSED | {"APPLICATION_UNKNOWN"}
        assert reason_of(response) in refusals, (method, path, response.text)

    assert target.node.store.local_jobs.find("job-1") is None


def test_an_attempt_is_in_the_audit(target):
    path = "/v1/interconn/schedule/job/stop"
    target.send(
        "peer",
        "POST",
        path,
        PEER,
        headers={"x-source-node-id": ME},
        json={},
    )

    refusals = []
    for entry in target.node.audit.list():
        if entry.detail.get("reason") == "OWN_NODE_ID":
            refusals.append(entry)
    assert any(entry.detail["from"] for entry in refusals)


@pytest.mark.parametrize(
    "claimed",
    [ME, STRANGER, PEER],
)
def test_another_node_brings_no_message_in_the_name_of(target, claimed):
    if claimed == PEER and not target.node.tls:
        return  # without TLS the channel is open to this attack: see docs/security.md
    headers = {
        "x-ptp-version": "1.0",
        "x-ptp-source-node-id": claimed,
        "x-ptp-session-id": "session_x",
    }

    response = target.send(
        "peer",
        "POST",
        f"{CHANNEL}/invoke",
        OTHER,
        headers=headers,
        json={},
    )

    assert response.json()["code"] != "E0000000000", response.text
    assert target.node.broker.sessions() == ()


# ---------------------------------------------------------------- the other listeners


@pytest.mark.parametrize(
    "path", ["/v1/platform/schedule/job/create_all", "/api/v1/audit", "/metrics"]
)
@pytest.mark.parametrize("listener", ["peer", "container"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_path_of_operators_is_on_another_listener(target, method, listener, path):
    response = target.send(
        listener,
        method,
        path,
        PEER,
        json={},
    )
    assert reason_of(response) in REFUSED


@pytest.mark.parametrize(
    "token", [{}, {"x-ptp-token": "invented"}], ids=["no token", "an invented token"]
)
@pytest.mark.parametrize(
    "verb",
    ["push", "pop", "peek", "release"],
)
def test_a_container_without_a_run_cannot_use_the_channel(target, verb, token):
    headers = {
        "x-ptp-session-id": "session_job-1",
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": PEER,
        **token,
    }
    path = f"{CHANNEL}/{verb}"

    response = target.send(
        "container",
        "POST",
        path,
        json={"topic": "t"},
        headers=headers,
    )

    assert "RUN_TOKEN_REQUIRED" in response.text, response.text
    assert target.node.broker.sessions() == ()


def test_a_container_without_a_run_cannot_report(target):
    report = {
        "task_id": "t",
        "role": "guest.0",
        "status": "SUCCESS",
    }
    response = target.send(
        "container",
        "POST",
        CALLBACK,
        json=report,
    )
    refusals = ("RUN_TOKEN_REQUIRED", "TASK_UNKNOWN", "NOT_AUTHORISED")
    assert reason_of(response) in refusals, response.text
