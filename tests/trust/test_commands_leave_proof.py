"""What a peer had this node do, or was refused, can be held against it: address, certificate and key are kept."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from anyio import CapacityLimiter
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.types import Message, Receive, Scope, Send

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from adapter.fate.signing import Signatures
from gateway.auth import origin
from gateway.config.schema import FateApp, FateSite
from gateway.domain.spec import JobSpec
from gateway.errors import NotAllowed
from gateway.http.guard import MOST, Partners, Refusals, noting_refusals
from gateway.http.peers import noting_origin
from tests.adapter.fate.flowing import SIGNS, Flow, dag, fate_world, party
from tests.builders import a_spec
from tests.certificates import Authority
from tests.contracts.apis import THIRD, World
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask

CONTROL = "/v1/interconn/schedule"
HERE = {"from": "127.0.0.1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with fate_world(tmp_path_factory.mktemp("nodes")) as world:
        yield world


def asks(
    world: World,
    path: str,
    body: Any,
    sender: str = THIRD,
) -> dict[str, Any]:
    headers = {"x-source-node-id": sender}
    said: dict[str, Any] = ask(
        world.me, "peer", "POST", CONTROL + path, json=body, headers=headers
    ).json()
    return said


def audit(world: World, who: str) -> list[Any]:
    found = ask(world.me, "operator", "GET", "/api/v1/audit", params={"who": who, "limit": "1000"})
    return list(found.json()["audit"])


def noted(
    world: World,
    who: str,
    asked: dict[str, str],
) -> Any:
    """Return the refusal of a request about these ids, which is written after the response."""

    def found() -> Any:
        entries = audit(world, who)
        return next(
            (e for e in entries if asked.items() <= e["detail"].get("asked", {}).items()), None
        )

    return wait_for(found, 10, 0.05)


def lines(world: World, job_id: str) -> dict[str, Any]:
    return {e.event: e for e in world.me.store.timeline(job_id)}


def a_job(job_id: str, **changes: Any) -> dict[str, Any]:
    spec: JobSpec = a_spec("a", {"guest": (THIRD,), "host": (ME,)}, job_id=job_id)
    return create_body(spec, PROFILES["spec"]) | changes


def test_a_command_names_node_and_address_in_the_timeline(world: World):
    for path, body in (
        ("/job/create", a_job("job-proof")),
        ("/job/start", {"job_id": "job-proof"}),
        (
            "/task/start",
            {
                "job_id": "job-proof",
                "task_id": "t-proof",
                "task_name": "a",
            },
        ),
        ("/job/stop", {"job_id": "job-proof", "task_name": "a"}),
        ("/job/stop", {"job_id": "job-proof"}),
    ):
        assert asks(world, path, body)["code"] == 0
    found = lines(world, "job-proof")
    for event in (
        "job READY here",
        "job RUNNING here",
        "task accepted",
        "task stop asked",
        "job FINISHED here",
    ):
        assert (found[event].by, found[event].detail["origin"]) == (THIRD, HERE), event
    assert all("origin" not in e.detail for e in found.values() if e.by != THIRD)


def test_a_signed_command_names_the_key(world: World):
    job, flow = "202411220101020000801", Flow(world)
    body = {**dag(SIGNS), **party(job)}
    right = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="secret"))})
    assert flow.code("/partner/job/create", body, **right.sign(ME, SIGNS)) == 0
    assert lines(world, job)["job READY here"].detail["origin"] == HERE | {"key": "1"}
    wrong = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="guessed"))})
    assert flow.code("/partner/job/stop", party(job), **wrong.sign(ME, SIGNS)) != 0
    refused = noted(world, "somebody", {"job_id": job})
    assert refused["detail"]["reason"] == "SIGNATURE_WRONG" and "key" not in refused["detail"]


@pytest.mark.parametrize(
    ("job_id", "changes", "reason"),
    [
        ("job-not-fitting", {"dag": {"components": []}}, "INVALID"),
        ("job-unreadable", {"config": 5}, "INVALID"),
        ("job-of-others", {"role": "guest"}, "NOT_A_PARTY"),
    ],
)
def test_a_refused_job_is_in_the_audit_with_its_reason(
    world: World,
    job_id: str,
    changes: dict[str, Any],
    reason: str,
):
    body = a_job(job_id, **changes)
    if reason == "NOT_A_PARTY":
        body["config"]["role"] = {"guest": [THIRD], "host": [PEER]}
    assert asks(world, "/job/create", body)["data"]["reason"] == reason
    entry = noted(world, f"node {THIRD}", {"job_id": job_id})
    assert (entry["action"], entry["detail"]["reason"]) == (f"POST {CONTROL}/job/create", reason)
    assert (
        entry["detail"]["from"] == "127.0.0.1"
        and entry["detail"]["message"]
        and entry["code"] >= 400
    )


def test_a_flood_of_unknown_nodes_hides_no_refusal_of_a_partner(world: World):
    for number in range(2 * MOST):
        asks(world, "/job/create", a_job("job-flood"), sender=f"JG{number:016}")
    assert asks(world, "/job/stop", {"job_id": "job-hidden"})["data"]["reason"] == "JOB_UNKNOWN"
    assert (
        noted(world, f"node {THIRD}", {"job_id": "job-hidden"})["detail"]["reason"] == "JOB_UNKNOWN"
    )


@pytest.mark.parametrize("proof", ["key", "fingerprint"])
def test_false_claims_and_other_partners_hide_no_refusal_of_a_partner(proof: str):
    written: list[tuple[str, str]] = []

    def add(
        _: Any,
        who: str,
        action: str,
        *more: Any,
    ) -> None:
        written.append((who, action))

    def counts(_: str = "") -> Refusals:
        return Refusals(add, lambda: datetime.now(UTC))

    async def app(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        origin().node = scope["sender"]
        setattr(origin(), proof, scope["proof"])
        scope["state"] = {"refused": NotAllowed("no")}

    partners = Partners(lambda node: True, lru_cache(counts), counts())
    noting = noting_origin(
        noting_refusals(app, counts(), lambda scope: "", CapacityLimiter(1), partners)
    )

    async def asks(
        sender: str,
        path: str,
        proven: str,
    ) -> None:
        about = {
            "sender": sender,
            "proof": proven,
            "path": path,
            "method": "POST",
            "headers": [],
        }
        await noting(
            {
                "type": "http",
                "client": ("192.0.2.7", 5),
                **about,
            },
            None,
            None,
        )  # type: ignore[arg-type]

    async def attack() -> None:
        for number in range(2 * MOST):
            await asks(PEER, f"/claimed-{number}", "")
            await asks(THIRD, f"/{number}", "its own")
        await asks(PEER, "/its-own", "its own")

    asyncio.run(attack())
    assert (f"node {PEER}", "POST /its-own") in written and len(written) == 2 * MOST + 1


def test_a_certificate_is_named_by_subject_and_fingerprint(tmp_path: Path):
    """The server puts it into the scope; a header of the same name adds nothing."""
    files = Authority(tmp_path).sign("partner")
    pem = Path(files.certificate).read_text()
    details: list[dict[str, str]] = []

    async def app(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        details.append(origin().detail())

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    async def silent(_: Message) -> None:
        return None

    def request(**scope: Any) -> dict[str, str]:
        at: Scope = {
            "type": "http",
            "client": ("192.0.2.7", 5),
            "headers": [(b"x-client-cert", b"me")],
            **scope,
        }
        asyncio.run(noting_origin(app)(at, nothing, silent))
        return details.pop()

    shown = {"tls": {"client_cert_chain": [pem]}}
    digest = x509.load_pem_x509_certificate(pem.encode()).fingerprint(SHA256()).hex()
    found = request(extensions=shown)
    assert found == {
        "from": "192.0.2.7",
        "certificate": "CN=partner",
        "sha256": digest,
    }
    assert (
        request(extensions={"tls": {"client_cert_chain": []}}) == request() == {"from": "192.0.2.7"}
    )
    assert origin().detail() == {}
