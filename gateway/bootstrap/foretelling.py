"""Ties the parts together that tell what would happen to a job."""

from uuid import uuid4

from adapter.bfia.examples import A_JOB
from gateway.admin.foretelling import ForetellingParts
from gateway.bootstrap.engine import engines_by_address
from gateway.bootstrap.parts import Node
from gateway.data.room import storage_look
from gateway.domain.spec import JobSpec
from gateway.jobs import any_version
from gateway.jobs.dry_run import Foresight, Foretelling, OwnSide
from gateway.jobs.readiness import Fetching, Readiness
from gateway.ports import Limiters
from gateway.runtime.context import current_trace, new_trace_id
from provider_registry.registry import Unknown


def settle(node: Node) -> Foretelling:
    """Have the node tell its own side to whoever may ask; return what asks all nodes of a job."""
    settings = node.settings
    docker = settings.engine.docker
    rules = Foresight(
        node.drain.admit,
        node.participant.judged,
        node.sharing.refusal,
        node.neighbours.takes_confirm,
        lambda other: other == node.settings.node.id or node.neighbours.knows(other),
        settings.engine.kind == "docker" and docker.pull == "missing",
        node.engine_for,
        lambda provider, image, engine: node.launching.signed(provider, image, engine),
    )
    own = OwnSide(
        settings.node.id,
        node.planner,
        node.registry,
        node.engine,
        node.storage,
        node.resources,
        node.models,
        rules,
    )
    fetching = Fetching(rules.fetches, docker.pull_seconds)
    ready = Readiness(
        settings.node.id,
        node.registry,
        node.engine_for,
        lambda base_url: engines_by_address(settings).get(base_url, ""),
        storage_look(node.storage.staging, settings.storage.path, settings.limits.storage_reserve_bytes),
        settings.state_dir / "channel",
        node.door.address,
        fetching,
    )
    node.participant.looked, node.participant.patience = ready.look, ready.patience
    node.participant.refuse_missing = settings.providers.image == "require"
    own.places = ready.places
    node.participant.lacks = lambda: ready.places()[1]
    node.participant.foretelling = own.tell
    node.participant.oddities = own.oddities

    def settled(spec: JobSpec) -> JobSpec:
        try:
            return any_version.settled(spec, node.registry)[0]
        except Unknown:  # told as a problem of the job
            return spec

    return Foretelling(settings.node.id, node.peers, node.coordinator.check, node.protocol.try_route, settled)


def parts(node: Node, foretelling: Foretelling, limiters: Limiters) -> ForetellingParts:
    """Return what the operators' path works with."""
    scheduler = node.settings.node.coordinator or node.settings.node.id
    return ForetellingParts(
        lambda body: node.protocol.specified(
            {**body, "job_id": f"job-{uuid4().hex}"}, scheduler, current_trace() or new_trace_id()
        ),
        foretelling.plan,
        A_JOB,
        limiters,
    )
