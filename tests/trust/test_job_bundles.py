"""What an initiator signs of a job: changed, of another job, key or time it is refused, at create and at start."""

import json
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body, job_spec
from gateway.bootstrap.node import Gateway
from gateway.domain.spec import JobSpec
from gateway.errors import Conflict, GatewayError, NotAllowed, Refused
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from gateway.identity.statements import open_envelope, sign_statement
from gateway.jobs.bundle_document import FILE, document, verify
from gateway.jobs.bundle_statement import KIND, parts
from gateway.jobs.bundles import VALID_DAYS, Bundles
from gateway.store import schema
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.cli import call
from tests.contracts.apis import IMAGE, THIRD, World, registration, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.trust.agreeing import route

STRANGERS = KeyPair(KEY_GENERATORS["ed25519"]())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("nodes")
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    with two_nodes(home) as world:
        for gateway in (world.me, world.peer):
            provider = provider_from_request(registration())
            gateway.registry.register(
                replace(provider, digests={IMAGE: gateway.engine.image_digest(IMAGE)})
            )
        trust(world.me, world.peer)
        trust(world.peer, world.me)
        yield world


def public(gateway: Gateway) -> str:
    return Keyring(gateway.settings.state_dir).pairs["signing"].public


def trust(
    gateway: Gateway,
    other: Gateway,
    **entry: Any,
) -> None:
    """Write the route to the other node."""
    entry = {
        "url": other.addresses()["peer"],
        "keys": public(other),
        "bundles": "required",
    } | entry
    entry = {key: value for key, value in entry.items() if value is not None}
    route(gateway, {other.settings.node.id: entry, THIRD: {"host": "127.0.0.1", "port": 9}})


def a_job(**changes: Any) -> JobSpec:
    params = {"common": {"a": {"depth": 3}}, "host": {"0": {"a": {"rate": 0.5}}}}
    roles = {"guest": (ME,), "host": (PEER,)}
    return a_spec(
        "a",
        roles,
        job_id=f"job-{uuid4().hex}",
        task_params=params,
        **changes,
    )


def with_bundle(
    world: World,
    spec: JobSpec,
    content: Mapping[str, Any] | None = None,
) -> JobSpec:
    """Return a job as `PEER` gets it; ``content``: with another statement than is true."""
    spec = spec.for_node(PEER)
    bundle = world.me.bundles.of(spec, [PEER])[PEER]
    if content is not None:
        found = open_envelope(bundle, KIND, [public(world.me)])[0]
        bundle = sign_statement(
            Keyring(world.me.settings.state_dir).pairs["signing"], KIND, found | content
        )
    return replace(spec, bundles={PEER: json.loads(json.dumps(bundle))})


def reason(work: Callable[[], Any]) -> str:
    with pytest.raises(GatewayError) as refused:
        work()
    return refused.value.reason


def findings(document: Mapping[str, Any]) -> dict[str, bool | None]:
    return {one.check: one.good for one in verify(document)}


# ---------------------------------------------------------------- what is signed


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_signed_parts_of_a_job_do_not_depend_on_its_spelling(profile: Any):
    for job_params in (
        {},
        {"common": {"sync_type": "callback"}, "host": {"0|1|7": {"a": 1}, "1": {"b": 2}}},
    ):
        task_params = {
            "host": {"0|1": {"a": {"x": 1.0}}, "1": {"a": {"y": "é"}}},
            "guest": {"0": {}},
        }
        roles = {"guest": (ME,), "host": (PEER, THIRD)}
        spec = a_spec("a b:a", roles, job_params=job_params, task_params=task_params)
        for node in spec.nodes:
            body = json.loads(json.dumps(create_body(spec.for_node(node), profile)))
            arrived = job_spec(wire.CreateJob.model_validate(body), spec.job_id, ME, "other trace")
            assert parts(arrived, node) == parts(spec, node)


def test_a_node_learns_no_entries_of_another_one(world: World):
    spec = a_job()
    bundles = world.me.bundles.of(spec, spec.nodes)
    stated = {
        node: open_envelope(bundles[node], KIND, [public(world.me)])[0]["parts"]
        for node in spec.nodes
    }
    assert set(stated[PEER]) == {"flow", "parties", "common", "host.0"}
    assert {name for name in stated[ME] if stated[ME][name] == stated[PEER].get(name)} == {
        "flow",
        "parties",
        "common",
    }


# ---------------------------------------------------------------- attacks


def test_no_changed_byte_of_a_bundle_is_accepted(world: World):
    sent = with_bundle(world, a_job())
    bundle = sent.bundles[PEER]
    accepted = world.peer.bundles.accept
    assert accepted(sent, ME) is not None
    payload, signature = (
        b64decode(bundle[k] if k else bundle["signatures"][0]["sig"]) for k in ("payload", "")
    )
    changed: list[Any] = [
        None,
        [],
        {},
        {**bundle, "more": 1},
        {**bundle, "payloadType": KIND + "x"},
    ]
    changed += [{**bundle, "signatures": []}, {**bundle, "signatures": [*bundle["signatures"]] * 2}]
    for key, content in (("payload", payload), ("sig", signature)):
        flipped = (
            content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            for at in range(len(content))
        )
        texts = [b64encode(one).decode() for one in flipped]
        texts.append(b64encode(content).decode() + "\n")  # which another decoder reads alike
        for text in texts:
            proof = {**bundle["signatures"][0], **({"sig": text} if key == "sig" else {})}
            changed.append(
                {
                    **bundle,
                    **({"payload": text} if key == "payload" else {}),
                    "signatures": [proof],
                }
            )
    for one in changed:
        refused = reason(lambda one=one: accepted(replace(sent, bundles={PEER: one}), ME))
        assert refused in ("BUNDLE_WRONG", "BUNDLE_MISSING" if one is None else ""), one


CHANGES: dict[str, Callable[[JobSpec], JobSpec]] = {
    "flow": lambda spec: replace(spec, flow_id="another"),
    "flow of tasks": lambda spec: replace(spec, dag=a_spec("b").dag),
    "parties": lambda spec: replace(
        spec, parties=(*spec.parties, replace(spec.parties[0], index=1))
    ),
    "parties of init": lambda spec: replace(spec, initiator_role="host"),
    "parties of old": lambda spec: replace(spec, old_job_id="job-0"),
    "common": lambda spec: replace(
        spec, task_params={**spec.task_params, "common": {"a": {"depth": 4}}}
    ),
    "common of job": lambda spec: replace(spec, job_params={"common": {"timeout": 9}}),
    "host.0": lambda spec: replace(
        spec, task_params={**spec.task_params, "host": {"0": {"a": {"rate": 0.6}}}}
    ),
    "host.0 of job": lambda spec: replace(
        spec, job_params={"host": {"0": {"resources": {"cpu": 9}}}}
    ),
    "job_id": lambda spec: replace(spec, job_id="job-another"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_that_differs_from_the_signed_one_is_refused_by_part(world: World, name: str):
    sent = CHANGES[name](with_bundle(world, a_job()))
    with pytest.raises(NotAllowed, match=f"not what {ME} signed: .*{name.split()[0]}") as refused:
        world.peer.bundles.accept(sent, ME)
    assert refused.value.reason == "BUNDLE_WRONG"


def test_a_flow_accepts_only_the_provider_signed_for_each_party(world: World):
    sent = with_bundle(world, a_job(job_params={"host": {"0": {"providers": {"a": "safe:2.0.0"}}}}))
    assert world.peer.bundles.accept(sent, ME) is not None
    (task,) = sent.dag.nodes
    other = replace(task, component=replace(task.component, provider="vendor"))
    swapped = replace(sent, dag=replace(sent.dag, nodes=(other,)))
    assert reason(lambda: world.peer.bundles.accept(swapped, ME)) == "BUNDLE_WRONG"


def test_a_bundle_for_another_node_time_or_signer_is_refused(world: World):
    spec, accepted, now = a_job(), world.peer.bundles.accept, int(world.me.clock().timestamp())
    for content, why in (
        ({"for": ME}, "BUNDLE_WRONG"),
        ({"created": now - (VALID_DAYS + 1) * 86_400}, "BUNDLE_EXPIRED"),
        ({"created": now + 3600}, "BUNDLE_EXPIRED"),
        ({"created": "now"}, "BUNDLE_WRONG"),
        ({"open": None}, "BUNDLE_WRONG"),
        ({"parts": None}, "BUNDLE_WRONG"),
        ({"parts": {}}, "BUNDLE_WRONG"),
        ({"signer": THIRD}, "BUNDLE_WRONG"),
        ({"signer": None}, "BUNDLE_WRONG"),
    ):
        assert (
            reason(lambda content=content: accepted(with_bundle(world, spec, content), ME)) == why
        ), content
    strangers = sign_statement(
        STRANGERS,
        KIND,
        open_envelope(world.me.bundles.of(spec, [PEER])[PEER], KIND, [public(world.me)])[0],
    )
    assert (
        reason(lambda: accepted(replace(spec, bundles={PEER: strangers}), ME))
        == "BUNDLE_KEY_UNKNOWN"
    )
    head = sign_statement(
        Keyring(world.me.settings.state_dir).pairs["signing"],
        "application/json",
        {"job_id": spec.job_id},
    )
    assert reason(lambda: accepted(replace(spec, bundles={PEER: head}), ME)) == "BUNDLE_WRONG"


@pytest.mark.parametrize("why", ["BUNDLE_MISSING", "BUNDLE_WRONG", "BUNDLE_KEY_UNKNOWN"])
def test_a_refused_job_is_not_stored_and_the_audit_says_why(
    world: World,
    why: str,
    monkeypatch: Any,
):
    spec, of = a_job(), world.me.bundles.of
    attacks = {
        "BUNDLE_MISSING": lambda *_: {},
        "BUNDLE_WRONG": lambda _, nodes: of(a_job(), nodes),
        "BUNDLE_KEY_UNKNOWN": lambda *_: {PEER: sign_statement(STRANGERS, KIND, {"signer": ME})},
    }
    monkeypatch.setattr(world.me.protocol, "bundles", attacks[why])
    with pytest.raises(Refused) as refused:
        world.me.coordinator.submit_job(spec, ME)
    assert refused.value.reason == why
    assert world.peer.store.local_jobs.find(spec.job_id) is None
    entries = ask(
        world.peer, "operator", "GET", "/api/v1/audit", params={"who": f"node {ME}"}
    ).json()["audit"]
    assert why in [entry["detail"].get("reason") for entry in entries]


@pytest.mark.parametrize("why", ["BUNDLE_KEY_UNKNOWN", "BUNDLE_WRONG", "BUNDLE_EXPIRED"])
def test_a_job_is_checked_again_before_it_starts(
    world: World,
    why: str,
    monkeypatch: Any,
):
    peer, spec = world.peer, with_bundle(world, a_job())
    peer.participant.create_job(spec, ME)
    match why:
        case "BUNDLE_KEY_UNKNOWN":
            trust(peer, world.me, keys=STRANGERS.public)
        case "BUNDLE_WRONG":  # somebody has access to the database
            t = schema.local_job
            text = sa.func.replace(t.c.spec, '"rate":0.5', '"rate":0.6')
            with peer.store.write() as connection:
                mine = t.update().where(t.c.job_id == spec.job_id)
                assert (
                    connection.execute(mine.values(spec=text, version=t.c.version + 1)).rowcount
                    == 1
                )
            peer.store.local_jobs._cache.drop(
                spec.job_id
            )  # as after a restart, when all is read again
        case _:
            later = datetime.now(UTC) + timedelta(days=VALID_DAYS + 1)
            monkeypatch.setattr(peer.bundles, "_clock", lambda: later)
    start = peer.participant.start_job
    assert reason(lambda: start(spec.job_id, ME)) == why
    assert (
        reason(lambda: peer.participant.start_task(spec.job_id, f"t-{spec.job_id}", "a", ME)) == why
    )
    trust(peer, world.me)
    assert "start not allowed" in [line.event for line in peer.store.timeline(spec.job_id)]
    entries = ask(peer, "operator", "GET", "/api/v1/audit", params={"action": spec.job_id}).json()[
        "audit"
    ]
    assert {entry["detail"]["reason"] for entry in entries} == {why}
    monkeypatch.undo()
    if why != "BUNDLE_WRONG":
        start(spec.job_id, ME)


# ---------------------------------------------------------------- who signs, and where nobody has to


def test_a_signed_job_that_was_deleted_does_not_run_again(world: World):
    sent = with_bundle(world, a_job())
    world.peer.participant.create_job(sent, ME)
    world.peer.participant.stop_job(sent.job_id, "", None, ME)
    wait_for(lambda: delete(world.peer, sent.job_id), 20, 0.05)
    assert world.peer.store.local_jobs.find(sent.job_id) is None
    assert reason(lambda: world.peer.participant.create_job(sent, ME)) == "JOB_ID_CONFLICT"
    assert world.peer.store.local_jobs.find(sent.job_id) is None


def delete(gateway: Gateway, job_id: str) -> bool:
    try:
        gateway.deleting.delete_for(job_id, ME, dry_run=False)
    except Conflict:  # it still tidies up
        return False
    return True


def test_the_initiators_signature_goes_through_another_node_that_schedules(world: World):
    spec = a_job(scheduler=PEER)
    spec = replace(
        spec, dag=replace(spec.dag, nodes=tuple(_any_version(node) for node in spec.dag.nodes))
    )
    world.me.coordinator.submit(spec)
    for gateway in (world.me, world.peer):
        agreement = gateway.store.local_jobs.get(spec.job_id).agreement
        assert agreement is not None and agreement.key == public(world.me)
    as_sent = world.scheduled(spec).spec
    assert as_sent.dag.nodes[0].component.version == "1.0.0"
    mine = replace(as_sent.for_node(ME), job_id="job-by-peer")
    changed = {"common": {"a": {"depth": 4}}}
    create = world.me.participant.create_job
    assert reason(lambda: create(mine, PEER)) == "BUNDLE_WRONG"
    assert (
        reason(lambda: create(replace(as_sent.for_node(ME), task_params=changed), PEER))
        == "BUNDLE_WRONG"
    )
    assert reason(lambda: create(replace(mine, bundles={}), PEER)) == "BUNDLE_MISSING"
    theirs = world.peer.bundles.of(replace(mine, bundles={}), [ME])
    trust(world.me, world.peer, bundles="accepted")
    create(replace(mine, bundles=theirs), PEER)
    trust(world.me, world.peer)
    trust(world.peer, world.me)
    again = replace(a_job(scheduler=PEER), bundles={})
    own = replace(again, bundles=world.peer.bundles.of(again, [PEER]))
    assert reason(lambda: world.peer.participant.create_job(own, PEER)) == "BUNDLE_MISSING"
    world.stop(spec)


def _any_version(node: Any) -> Any:
    return replace(node, component=replace(node.component, version="*"))


def test_a_partner_without_keys_gets_no_bundle_and_needs_none(
    world: World,
    tmp_path: Path,
    monkeypatch: Any,
):
    bundles = Bundles(
        ME, world.me.registry, Keyring(tmp_path), world.me.peer_table.entry, world.me.clock
    )
    assert bundles.of(a_job(), [PEER]) == {} and bundles.accept(a_job(), ME) is None
    asked: list[Any] = []
    of = world.me.bundles.of
    monkeypatch.setattr(
        world.me.protocol, "bundles", lambda *given: asked.append(given) or of(*given)
    )
    trust(
        world.me,
        world.peer,
        keys=None,
        signing="accepted",
        bundles="accepted",
    )
    trust(
        world.peer,
        world.me,
        keys=None,
        signing="accepted",
        bundles="accepted",
    )
    spec = a_job()
    world.me.coordinator.submit_job(spec, ME)
    assert asked == [] and world.peer.store.local_jobs.get(spec.job_id).agreement is None
    unknown = replace(with_bundle(world, spec), job_id="job-unknown")
    assert world.peer.bundles.accept(unknown, ME) is None  # no key to check it by
    trust(world.me, world.peer)
    trust(world.peer, world.me, signing="accepted", bundles="accepted")
    assert world.peer.bundles.accept(spec.for_node(PEER), ME) is None
    assert reason(lambda: world.peer.bundles.accept(unknown, ME)) == "BUNDLE_WRONG"
    trust(world.peer, world.me)
    world.stop(spec)


# ---------------------------------------------------------------- years later


def test_job_verify_shows_where_what_ran_differs_from_what_was_signed(world: World, tmp_path: Path):
    spec = a_job()
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    world.closed(spec.job_id, world.me, world.peer)
    for gateway, label in ((world.me, "guest.0"), (world.peer, "host.0")):
        found = ask(gateway, "operator", "GET", f"/api/v1/jobs/{spec.job_id}/bundle").json()
        assert found == json.loads(json.dumps(document(gateway.store.local_jobs.get(spec.job_id))))
        names = (
            "signature",
            "job_id",
            "node",
            "flow",
            "parties",
            "common",
            label,
            f"{label} of a, attempt 1",
        )
        assert findings(found) == dict.fromkeys(names, True)
    archive, config = tmp_path / "job.zip", tmp_path / "none.yml"
    archive.write_bytes(
        ask(world.peer, "operator", "GET", f"/api/v1/jobs/{spec.job_id}/archive").content
    )
    done = call("job", "verify", str(archive), "--config", str(config))
    assert done.exit_code == 0 and ME in done.stdout and "DIFFERS" not in done.stdout
    url = world.peer.addresses()["operator"]
    for given in (spec.job_id, spec.job_id[:9], "last"):
        assert call("job", "verify", given, "--url", url).stdout == done.stdout

    digest = found["runs"][0]["digest"]
    ran = {**found["runs"][0], "digest": "sha256:other"}
    approved_here = {
        **found,
        "runs": [ran],
        "images": {ran["component"]: "sha256:other"},
    }
    masked = {**found, "parts": {**found["parts"], "host.0": {"password": "***"}}}
    changed = {**found, "parts": {**found["parts"], "host.0": {}}}
    others = world.me.bundles.of(a_job(), [PEER])[PEER]
    assert findings({**found, "runs": [ran]})[ran["run"]] is False and digest != ran["digest"]
    assert findings(approved_here)[ran["run"]] is None
    assert (findings(masked)["host.0"], findings(changed)["host.0"]) == (None, False)
    assert findings({**found, "bundle": others})["job_id"] is False
    assert findings({**found, "public_key": STRANGERS.public}) == {"signature": False}
    assert findings({**found, "bundle": None}) == {"signature": False}
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(FILE, json.dumps({**found, "parts": None}))
    assert call("job", "verify", str(archive)).exit_code == 2
    archive.write_bytes(b"no zip")
    assert call("job", "verify", str(archive)).exit_code == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "is not the archive of a job"),
        (b" " * 2**24 + b"{}", "is not the archive of a job"),
        (b"{}", f"{FILE} of"),
    ],
)
def test_an_archive_that_expands_or_says_nothing_is_refused(
    tmp_path: Path,
    content: bytes,
    says: str,
):
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(FILE, content)
    done = call("job", "verify", str(archive))
    assert done.exit_code == 2 and says in done.stderr


def test_an_image_that_is_another_one_at_the_initiator_is_a_warning(world: World):
    spec = a_job()
    ref = str(spec.dag.nodes[0].component)
    world.peer.participant.create_job(
        with_bundle(world, spec, {"images": {ref: "sha256:other"}}), ME
    )
    warnings = world.peer.store.local_jobs.get(spec.job_id).warnings
    assert any(
        text.startswith(f"{ref}: its image here is ") and "is sha256:other" in text
        for text in warnings
    )
