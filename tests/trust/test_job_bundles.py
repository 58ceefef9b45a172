"""An initiator signs its jobs: changed and foreign ones are refused, at creation and start."""

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body, job_spec
from gateway.errors import Conflict, GatewayError, NotAllowed, Refused
from gateway.identity.keys import Keyring
from gateway.identity.statements import open_envelope, sign_statement
from gateway.jobs import bundles
from gateway.jobs.bundle_statement import KIND, parts
from gateway.jobs.bundles import VALID_DAYS, Bundles
from gateway.store import schema
from tests.builders import a_spec
from tests.contracts.apis import THIRD
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask
from tests.trust.bundles import (
    STRANGERS_PAIR,
    a_job,
    restore_routes,
    set_route,
    signing_nodes,
    signing_pair,
)

DAY = 86_400  # seconds


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with signing_nodes(tmp_path_factory.mktemp("nodes")) as world:
        yield world


def sign_job(world, spec, statement=None):
    """Return a job as `PEER` receives it; ``statement`` replaces fields of the signed statement."""
    spec = spec.for_node(PEER)
    bundle = world.me.bundles.bundles_for(spec, [PEER])[PEER]
    if statement is not None:
        content = read_statement(world, bundle) | statement
        bundle = sign_statement(signing_pair(world.me), KIND, content)
    return with_bundle(
        spec,
        json.loads(json.dumps(bundle)),
    )


def with_bundle(spec, bundle):
    """Return a job with a bundle for `PEER`."""
    return replace(
        spec,
        bundles={PEER: bundle},
    )


def read_statement(world, bundle):
    """Return the statement that `ME` has signed."""
    return open_envelope(bundle, KIND, [signing_pair(world.me).public])[0]


def refusal_of(action, *arguments):
    """Call an action that must be refused; return the reason."""
    with pytest.raises(GatewayError) as refusal:
        action(*arguments)
    return refusal.value.reason


# ---------------------------------------------------------------- the signed statement


@pytest.mark.parametrize(
    "profile",
    PROFILES.values(),
    ids=PROFILES,
)
@pytest.mark.parametrize(
    "job_params",
    [
        {},
        {
            "common": {"sync_type": "callback"},
            "host": {
                "0|1|7": {"a": 1},
                "1": {"b": 2},
            },
        },
    ],
    ids=["no parameters", "parameters of several parties"],
)
def test_the_signed_parts_of_a_job_do_not_depend_on_its_spelling(profile, job_params):
    task_params = {
        "host": {
            "0|1": {"a": {"x": 1.0}},
            "1": {"a": {"y": "é"}},
        },
        "guest": {"0": {}},
    }
    roles = {
        "guest": (ME,),
        "host": (PEER, THIRD),
    }
    spec = a_spec(
        "a b:a",
        roles,
        job_params=job_params,
        task_params=task_params,
    )

    for node in spec.nodes:
        body = json.loads(json.dumps(create_body(spec.for_node(node), profile)))
        request = wire.CreateJob.model_validate(body)
        received = job_spec(request, spec.job_id, ME, "other trace")
        assert parts(received, node) == parts(spec, node)


def test_a_bundle_shows_a_node_no_parameters_of_others(world):
    spec = a_job()

    envelopes = world.me.bundles.bundles_for(
        spec,
        spec.nodes,
    )

    my_parts = read_statement(world, envelopes[ME])["parts"]
    peer_parts = read_statement(world, envelopes[PEER])["parts"]
    assert set(peer_parts) == {"flow", "parties", "common", "host.0"}
    common = {name for name in my_parts if my_parts[name] == peer_parts.get(name)}
    assert common == {"flow", "parties", "common"}


# ---------------------------------------------------------------- forged bundles


def change_each_byte(content):
    """Yield copies of bytes, each with one different byte."""
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        yield bytes(changed)


def changed_texts(text):
    """Yield changed copies of a base64 text."""
    for content in change_each_byte(b64decode(text)):
        yield b64encode(content).decode()
    yield text + "\n"  # a lenient decoder reads it alike


def malformed_bundles(bundle):
    """Return bundles of another shape than a signed one."""
    signatures = bundle["signatures"]
    return [
        [],
        {},
        {**bundle, "more": 1},
        {**bundle, "payloadType": KIND + "x"},
        {**bundle, "signatures": []},
        {**bundle, "signatures": [*signatures, *signatures]},
    ]


def changed_bundles(bundle):
    """Yield bundles with one changed byte in the payload or the signature."""
    signature = bundle["signatures"][0]
    for text in changed_texts(bundle["payload"]):
        yield {**bundle, "payload": text}
    for text in changed_texts(signature["sig"]):
        yield {**bundle, "signatures": [{**signature, "sig": text}]}


def test_no_changed_byte_of_a_bundle_is_accepted(world):
    spec = sign_job(world, a_job())
    accept = world.peer.bundles.accept
    assert accept(spec, ME) is not None
    bundle = spec.bundles[PEER]

    for changed in [*malformed_bundles(bundle), *changed_bundles(bundle)]:
        assert refusal_of(accept, with_bundle(spec, changed), ME) == "BUNDLE_WRONG", changed
    without = refusal_of(accept, with_bundle(spec, None), ME)
    assert without in ("BUNDLE_WRONG", "BUNDLE_MISSING")


def with_params(spec, **params):
    """Return a job with other task parameters of parties."""
    return replace(spec, task_params={**spec.task_params, **params})


def change_flow_id(spec):
    return replace(spec, flow_id="another")


def change_tasks(spec):
    return replace(
        spec,
        dag=a_spec("b").dag,
    )


def add_party(spec):
    second_guest = replace(
        spec.parties[0],
        index=1,
    )
    return replace(spec, parties=(*spec.parties, second_guest))


def change_initiators_role(spec):
    return replace(spec, initiator_role="host")


def make_it_a_rerun(spec):
    return replace(spec, old_job_id="job-0")


def change_common_parameter(spec):
    return with_params(
        spec,
        common={"a": {"depth": 4}},
    )


def add_common_job_parameter(spec):
    return replace(
        spec,
        job_params={"common": {"timeout": 9}},
    )


def change_hosts_parameter(spec):
    return with_params(
        spec,
        host={"0": {"a": {"rate": 0.6}}},
    )


def add_hosts_job_parameter(spec):
    return replace(
        spec,
        job_params={"host": {"0": {"resources": {"cpu": 9}}}},
    )


def change_job_id(spec):
    return replace(spec, job_id="job-another")


# Changes of a job, with the part of the bundle that they contradict.
CHANGES = [
    (change_flow_id, "flow"),
    (change_tasks, "flow"),
    (add_party, "parties"),
    (change_initiators_role, "parties"),
    (make_it_a_rerun, "parties"),
    (change_common_parameter, "common"),
    (add_common_job_parameter, "common"),
    (change_hosts_parameter, "host.0"),
    (add_hosts_job_parameter, "host.0"),
    (change_job_id, "job_id"),
]


@pytest.mark.parametrize(("change", "part"), CHANGES)
def test_a_job_that_differs_from_the_signed_one_is_refused_by_part(world, change, part):
    changed = change(sign_job(world, a_job()))

    with pytest.raises(NotAllowed, match=f"not what {ME} signed: .*{part}") as refusal:
        world.peer.bundles.accept(changed, ME)

    assert refusal.value.reason == "BUNDLE_WRONG"


def test_a_flow_accepts_only_the_provider_signed_for_each_party(world):
    providers = {"host": {"0": {"providers": {"a": "safe:2.0.0"}}}}
    spec = sign_job(world, a_job(job_params=providers))
    assert world.peer.bundles.accept(spec, ME) is not None

    [task] = spec.dag.nodes
    of_vendor = replace(
        task,
        component=replace(
            task.component,
            provider="vendor",
        ),
    )
    changed = replace(
        spec,
        dag=replace(
            spec.dag,
            nodes=(of_vendor,),
        ),
    )

    assert refusal_of(world.peer.bundles.accept, changed, ME) == "BUNDLE_WRONG"


@pytest.mark.parametrize(
    "statement",
    [
        {"for": ME},
        {"created": "now"},
        {"created": 10**400},
        {"open": None},
        {"parts": None},
        {"parts": {}},
        {"signer": THIRD},
        {"signer": None},
    ],
    ids=str,
)
def test_a_bundle_with_another_statement_is_refused(world, statement):
    spec = sign_job(world, a_job(), statement)
    assert refusal_of(world.peer.bundles.accept, spec, ME) == "BUNDLE_WRONG"


@pytest.mark.parametrize(
    "age",
    [(VALID_DAYS + 1) * DAY, -3600],
    ids=["too old", "of the future"],
)
def test_a_bundle_of_another_time_is_refused(world, age):
    created = int(world.me.clock().timestamp()) - age
    spec = sign_job(
        world,
        a_job(),
        {"created": created},
    )
    assert refusal_of(world.peer.bundles.accept, spec, ME) == "BUNDLE_EXPIRED"


def test_a_bundle_signed_with_a_strangers_key_is_refused(world):
    spec = a_job()
    statement = read_statement(
        world,
        world.me.bundles.bundles_for(spec, [PEER])[PEER],
    )
    bundle = sign_statement(STRANGERS_PAIR, KIND, statement)

    reason = refusal_of(
        world.peer.bundles.accept,
        with_bundle(spec, bundle),
        ME,
    )

    assert reason == "BUNDLE_KEY_UNKNOWN"


def test_a_statement_of_another_kind_is_no_bundle(world):
    spec = a_job()
    signed = sign_statement(
        signing_pair(world.me),
        "application/json",
        {"job_id": spec.job_id},
    )
    reason = refusal_of(
        world.peer.bundles.accept,
        with_bundle(spec, signed),
        ME,
    )
    assert reason == "BUNDLE_WRONG"


# ---------------------------------------------------------------- refusals at creation and start


def bundles_for_refusal(world, reason):
    """Return the bundles of a job that is refused for a reason."""
    match reason:
        case "BUNDLE_MISSING":
            return {}
        case "BUNDLE_WRONG":
            return world.me.bundles.bundles_for(
                a_job(),
                [PEER],
            )
    return {PEER: sign_statement(STRANGERS_PAIR, KIND, {"signer": ME})}


@pytest.mark.parametrize(
    "reason",
    ["BUNDLE_MISSING", "BUNDLE_WRONG", "BUNDLE_KEY_UNKNOWN"],
)
def test_a_refused_job_is_not_stored_and_the_audit_says_why(world, reason, monkeypatch):
    spec = a_job()
    sign = Mock(return_value=bundles_for_refusal(world, reason))
    monkeypatch.setattr(world.me.protocol, "bundles", sign)

    with pytest.raises(Refused) as refusal:
        world.me.coordinator.submit_job(spec, ME)

    assert refusal.value.reason == reason
    assert world.peer.store.local_jobs.find(spec.job_id) is None
    assert reason in reasons_in_audit(world.peer, who=f"node {ME}")


def reasons_in_audit(gateway, **query):
    """Return the reasons of the audit's entries that match a query."""
    response = ask(
        gateway,
        "operator",
        "GET",
        "/api/v1/audit",
        params=query,
    )
    return {entry["detail"].get("reason") for entry in response.json()["audit"]}


def forget_the_initiators_key(world, job_id, monkeypatch):
    set_route(
        world.peer,
        world.me,
        keys=STRANGERS_PAIR.public,
    )


def change_stored_job(world, job_id, monkeypatch):
    """Change a parameter as a person with access to the database can."""
    store = world.peer.store
    table = schema.local_job
    changed = sa.func.replace(
        table.c.spec,
        '"rate":0.5',
        '"rate":0.6',
    )
    update = table.update().where(table.c.job_id == job_id)
    update = update.values(
        spec=changed,
        version=table.c.version + 1,
    )
    with store.write() as connection:
        assert connection.execute(update).rowcount == 1
    store.local_jobs.forget([job_id])


def let_bundles_expire(world, job_id, monkeypatch):
    monkeypatch.setattr(bundles, "VALID_DAYS", -1)  # a bundle of today is too old


@pytest.mark.parametrize(
    ("change", "reason", "can_start_afterwards"),
    [
        (forget_the_initiators_key, "BUNDLE_KEY_UNKNOWN", True),
        (change_stored_job, "BUNDLE_WRONG", False),
        (let_bundles_expire, "BUNDLE_EXPIRED", True),
    ],
    ids=["key", "database", "time"],
)
def test_a_job_is_checked_again_before_it_starts(
    world, monkeypatch, change, reason, can_start_afterwards
):
    peer = world.peer
    spec = sign_job(world, a_job())
    peer.participant.create_job(spec, ME)
    change(world, spec.job_id, monkeypatch)

    start_job = peer.participant.start_job
    start_task = peer.participant.start_task
    assert refusal_of(start_job, spec.job_id, ME) == reason
    assert refusal_of(start_task, spec.job_id, f"t-{spec.job_id}", "a", ME) == reason

    events = [entry.event for entry in peer.store.timeline(spec.job_id)]
    assert "start not allowed" in events
    assert reasons_in_audit(peer, action=spec.job_id) == {reason}
    set_route(peer, world.me)
    monkeypatch.undo()
    if can_start_afterwards:
        start_job(spec.job_id, ME)


def test_a_signed_job_that_was_deleted_does_not_run_again(world):
    spec = sign_job(world, a_job())
    participant = world.peer.participant
    participant.create_job(spec, ME)
    participant.stop_job(spec.job_id, "", None, ME)
    wait_for(lambda: delete(world.peer, spec.job_id), 20, 0.05)
    assert world.peer.store.local_jobs.find(spec.job_id) is None

    assert refusal_of(participant.create_job, spec, ME) == "JOB_ID_CONFLICT"

    assert world.peer.store.local_jobs.find(spec.job_id) is None


def delete(gateway, job_id):
    """Delete a job for `ME`; return False while its cleaning is under way."""
    try:
        gateway.deleting.delete_for(
            job_id,
            ME,
            dry_run=False,
        )
    except Conflict:
        return False
    return True


# ---------------------------------------------------------------- who signs


def test_the_initiators_signature_goes_through_another_node_that_schedules(world):
    spec = with_any_version(a_job(scheduler=PEER))

    world.me.job_requests.submit(spec)

    for gateway in (world.me, world.peer):
        agreement = gateway.store.local_jobs.get(spec.job_id).agreement
        assert agreement is not None
        assert agreement.key == signing_pair(world.me).public
    scheduled = world.scheduled(spec).spec
    assert scheduled.dag.nodes[0].component.version == "1.0.0"
    world.stop(spec)


def with_any_version(spec):
    """Return a job that leaves the version of its components to the scheduling node."""
    tasks = []
    for task in spec.dag.nodes:
        tasks.append(replace(task, component=replace(task.component, version="*")))
    return replace(
        spec,
        dag=replace(
            spec.dag,
            nodes=tuple(tasks),
        ),
    )


def test_a_scheduling_node_cannot_change_a_job_of_ours(world):
    spec = with_any_version(a_job(scheduler=PEER))
    world.me.job_requests.submit(spec)
    scheduled = world.scheduled(spec).spec.for_node(ME)
    create_job = world.me.participant.create_job

    under_another_id = replace(scheduled, job_id="job-by-peer")
    assert refusal_of(create_job, under_another_id, PEER) == "BUNDLE_WRONG"
    changed = replace(
        scheduled,
        task_params={"common": {"a": {"depth": 4}}},
    )
    assert refusal_of(create_job, changed, PEER) == "BUNDLE_WRONG"
    unsigned = replace(
        under_another_id,
        bundles={},
    )
    assert refusal_of(create_job, unsigned, PEER) == "BUNDLE_MISSING"
    world.stop(spec)


def test_a_node_may_accept_the_scheduling_nodes_signature(world):
    spec = a_job(scheduler=PEER).for_node(ME)
    set_route(
        world.me,
        world.peer,
        bundles="accepted",
    )

    bundles_of_peer = world.peer.bundles.bundles_for(
        spec,
        [ME],
    )
    world.me.participant.create_job(
        replace(spec, bundles=bundles_of_peer),
        PEER,
    )

    restore_routes(world)


def test_a_scheduling_node_cannot_sign_for_the_initiator(world):
    spec = replace(
        a_job(scheduler=PEER),
        bundles={},
    )
    signed_by_peer = replace(
        spec,
        bundles=world.peer.bundles.bundles_for(
            spec,
            [PEER],
        ),
    )
    reason = refusal_of(
        world.peer.participant.create_job,
        signed_by_peer,
        PEER,
    )
    assert reason == "BUNDLE_MISSING"


def test_a_node_without_keys_signs_nothing_and_accepts_unsigned_jobs(world, tmp_path):
    without_keys = Bundles(
        ME,
        world.me.registry,
        Keyring(tmp_path),
        world.me.peer_table.entry,
        world.me.clock,
    )
    assert without_keys.bundles_for(a_job(), [PEER]) == {}
    assert without_keys.accept(a_job(), ME) is None


def test_a_partner_without_keys_gets_no_bundle_and_needs_none(world, monkeypatch):
    sign = Mock(side_effect=world.me.bundles.bundles_for)
    monkeypatch.setattr(world.me.protocol, "bundles", sign)
    without_keys = {
        "keys": None,
        "signing": "accepted",
        "bundles": "accepted",
    }
    set_route(world.me, world.peer, **without_keys)
    set_route(world.peer, world.me, **without_keys)
    spec = a_job()

    world.me.coordinator.submit_job(spec, ME)

    sign.assert_not_called()
    assert world.peer.store.local_jobs.get(spec.job_id).agreement is None
    wrong = replace(
        sign_job(world, spec),
        job_id="job-unknown",
    )
    assert world.peer.bundles.accept(wrong, ME) is None  # there is no key to check it with
    restore_routes(world)
    world.stop(spec)


def test_where_bundles_are_accepted_only_a_wrong_one_is_refused(world):
    set_route(
        world.peer,
        world.me,
        signing="accepted",
        bundles="accepted",
    )
    spec = a_job()
    accept = world.peer.bundles.accept

    assert accept(spec.for_node(PEER), ME) is None
    wrong = replace(
        sign_job(world, spec),
        job_id="job-unknown",
    )
    assert refusal_of(accept, wrong, ME) == "BUNDLE_WRONG"

    restore_routes(world)


def test_another_image_than_the_initiators_is_a_warning(world):
    spec = a_job()
    component = str(spec.dag.nodes[0].component)
    signed = sign_job(
        world,
        spec,
        {"images": {component: "sha256:other"}},
    )

    world.peer.participant.create_job(signed, ME)

    warnings = world.peer.store.local_jobs.get(spec.job_id).warnings
    about_image = [text for text in warnings if "is sha256:other" in text]
    assert about_image
    assert about_image[0].startswith(f"{component}: its image here is ")
