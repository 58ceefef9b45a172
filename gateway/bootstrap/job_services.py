"""The stages of a node for jobs, as their scheduler and as a participant."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from adapter.bfia.environment import session_id
from gateway.bootstrap import parts
from gateway.bootstrap.engine_services import EngineServices, named_engine_at
from gateway.bootstrap.foundation import Foundation, Registries
from gateway.bootstrap.late import LateServices
from gateway.bootstrap.peer_services import PeerServices
from gateway.bootstrap.run_services import RunServices
from gateway.data.combined_storage import Storages
from gateway.data.workspace import check_storage, try_to_write
from gateway.domain.spec import NodeId
from gateway.http.peers import QuotaReached
from gateway.jobs import admission_rules
from gateway.jobs.admission import Admission
from gateway.jobs.approvals import Approvals
from gateway.jobs.attested_runs import AttestedRuns
from gateway.jobs.container_callbacks import ContainerCallbacks
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.deletion import Deleting
from gateway.jobs.drain import Drain
from gateway.jobs.dry_run import DryRun
from gateway.jobs.executor import Executor
from gateway.jobs.ids import id_of_key, random_job_id
from gateway.jobs.inheritance import Inheritance
from gateway.jobs.intake import Intake
from gateway.jobs.job_access import JobAccess
from gateway.jobs.job_creation import JobCreation
from gateway.jobs.job_defaults import JobDefaults
from gateway.jobs.job_requests import JobRequests
from gateway.jobs.job_statuses import JobStatuses
from gateway.jobs.new_jobs import NewJobs
from gateway.jobs.parameter_offers import ParameterOffers
from gateway.jobs.participant import Participant
from gateway.jobs.readiness import Readiness
from gateway.jobs.retention import Cleaner, Keeper, Leftovers
from gateway.jobs.scheduler import Scheduler
from gateway.jobs.task_starts import TaskStarts
from gateway.store.records import Records


@dataclass(frozen=True)
class SchedulingServices:
    """The jobs that this node schedules, and the requests of its users about jobs."""

    drain: Drain
    scheduler: Scheduler  # makes the due calls
    new_jobs: NewJobs
    coordinator: Coordinator  # takes requests about jobs that this node schedules
    job_requests: JobRequests  # passes requests of users here to a job's scheduling node
    job_statuses: JobStatuses
    dry_run: DryRun


@dataclass(frozen=True)
class ParticipationServices:
    """The jobs in which this node takes part, and what remains of them."""

    inheritance: Inheritance  # results that a job takes over from an earlier one
    readiness: Readiness
    admission: Admission
    leftovers: Leftovers
    deleting: Deleting
    approvals: Approvals
    participant: Participant  # takes requests of scheduling nodes
    container_callbacks: ContainerCallbacks
    attested_runs: AttestedRuns
    cleaner: Cleaner


def build_scheduling(
    foundation: Foundation,
    registries: Registries,
    peers: PeerServices,
    executor: Executor,
    late: LateServices,
) -> SchedulingServices:
    """Return the services for jobs that this node schedules, and for requests of its users."""
    drain = Drain(
        foundation.store,
        lambda job_id: late.job_requests().stop(job_id),  # called when the node is complete
        foundation.clock,
    )
    scheduler = Scheduler(
        foundation.context,
        peers.peers,
        foundation.lanes,
        foundation.call_timing,
        silent=peers.outages.note_silence,
        stuck=peers.metrics.stuck,
    )
    new_jobs = NewJobs(foundation.context, peers.peers, registries.registry, registries.routes)
    intake = replace(
        _intake(foundation, peers, drain, foundation.store.jobs, partner_as="initiator"),
        check_signer=peers.statement_keys.check,
    )
    coordinator = Coordinator(
        foundation.context,
        scheduler,
        peers.peers,
        registries.registry,
        new_jobs,
        intake,
    )
    defaults = JobDefaults(foundation.settings.jobs.defaults.model_dump(exclude_none=True))
    job_requests = JobRequests(
        foundation.context,
        coordinator,
        peers.peers,
        new_jobs,
        intake,
        new_id=partial(_new_job_id, peers),
        executor=executor,
        defaults=defaults,
    )
    late.scheduler.bind(scheduler)
    late.coordinator.bind(coordinator)
    late.job_requests.bind(job_requests)
    return SchedulingServices(
        drain=drain,
        scheduler=scheduler,
        new_jobs=new_jobs,
        coordinator=coordinator,
        job_requests=job_requests,
        job_statuses=JobStatuses(foundation.context, peers.peers, executor),
        dry_run=DryRun(
            peers.peers,
            registries.registry,
            new_jobs.check,
            peers.protocol.try_route,
            defaults,
        ),
    )


def _new_job_id(
    peers: PeerServices,
    nodes: Iterable[NodeId],
    repeat_key: str = "",
) -> str:
    """Return a job id in a form that fits all of these nodes; see `gateway.jobs.ids.NewId`."""
    profiles = map(peers.peer_table.profile_of, nodes)
    needs_digits = any(profile.timestamp_job_ids for profile in profiles)
    if repeat_key:
        return id_of_key(repeat_key, digits=needs_digits)
    if needs_digits:
        return peers.fate.timestamp_ids.new()
    return random_job_id()


def build_participation(
    foundation: Foundation,
    registries: Registries,
    engines: EngineServices,
    peers: PeerServices,
    runs: RunServices,
    drain: Drain,
    late: LateServices,
) -> ParticipationServices:
    """Return the services for jobs in which this node takes part."""
    node = foundation.settings.node.id
    inheritance = Inheritance(node, foundation.store, engines.planner, runs.launching.digest_now)
    readiness = _readiness(foundation, registries, engines, late)
    admission = Admission(
        foundation.context,
        engines.planner,
        inheritance,
        registries.sharing,
        engines.resources,
        readiness,
        _admission_rules(foundation, registries, engines, peers, drain),
    )
    keepers: list[Keeper] = [
        registries.models.reasons_to_keep,
        inheritance.reasons_to_keep,
        registries.datasets.reasons_to_keep,
    ]
    leftovers = Leftovers(
        foundation.store,
        registries.storage,
        foundation.runs_folder,
        foundation.settings.retention,
        keepers,
    )
    deleting = Deleting(
        foundation.context,
        leftovers,
        peers.peers,
        end_session=peers.sessions.end,
        audit=partial(_audit, foundation, registries, 200),  # the HTTP status in the audit log
    )
    access = JobAccess(foundation.store, runs.executor)
    task_starts = TaskStarts(
        foundation.context,
        admission,
        engines.planner,
        engines.resources,
        runs.executor,
        runs.heartbeat.home_of,
    )
    participant = Participant(
        foundation.context,
        access,
        admission,
        JobCreation(foundation.context, registries.registry, admission, runs.executor),
        ParameterOffers(foundation.context, admission),
        task_starts,
        runs.executor,
        engines.resources,
        deleting,
    )
    return ParticipationServices(
        inheritance=inheritance,
        readiness=readiness,
        admission=admission,
        leftovers=leftovers,
        deleting=deleting,
        approvals=Approvals(foundation.context, runs.executor),
        participant=late.participant.bind(participant),
        container_callbacks=ContainerCallbacks(foundation.context, access, runs.executor),
        attested_runs=AttestedRuns(
            foundation.context,
            runs.executor,
            registries.storage,
            registries.tee_policies,
            registries.verifiers,
            registries.audit,
        ),
        cleaner=Cleaner(
            leftovers,
            engines.engine,
            peers.broker,
            channel=_channel_folder(foundation),
            prefix=session_id(""),  # of the names of jobs' sessions
            end_session=peers.sessions.end,
            clock=foundation.clock,
        ),
    )


def _intake(
    foundation: Foundation,
    peers: PeerServices,
    drain: Drain,
    jobs: Records[Any],
    *,
    partner_as: Literal["initiator", "scheduler"],
) -> Intake:
    """Return the check of new jobs: draining, the partner's quota of ``jobs``, and its route.

    Only ``jobs`` in which the partner is ``partner_as`` count against the quota.
    """
    return Intake(
        draining=drain.draining,
        quota=partial(_check_quota, foundation.settings.limits.partner_jobs, jobs, partner_as),
        # ``asks``: the partner requests the job, so it needs an enabled route.
        may_begin=partial(peers.peer_table.may_begin, asks=True),
        me=foundation.settings.node.id,
    )


def _check_quota(
    limit: int,
    jobs: Records[Any],
    partner_as: Literal["initiator", "scheduler"],
    node: NodeId,
) -> None:
    """Raise `QuotaReached` for a node that has ``limit`` unfinished jobs here or more.

    Only jobs in which the node is ``partner_as`` count.
    """
    if jobs.has_active_jobs(partner_as, node, limit):
        raise QuotaReached(
            f"{node} has {limit} jobs here that have not ended (limits.partner_jobs)"
        )


def _admission_rules(
    foundation: Foundation,
    registries: Registries,
    engines: EngineServices,
    peers: PeerServices,
    drain: Drain,
) -> admission_rules.Rules:
    settings = foundation.settings
    return admission_rules.Rules(
        routes=peers.peer_table,
        intake=_intake(
            foundation, peers, drain, foundation.store.local_jobs, partner_as="scheduler"
        ),
        policy=parts.approval_policy(settings),
        signatures=engines.image_signatures,
        bundles=peers.bundles,
        trust=registries.trust,
        tee_policies=registries.tee_policies,
        model_permits=registries.model_permits,
        audit=partial(_audit, foundation, registries, 403),  # the HTTP status in the audit log
        require_images=settings.providers.image == "require",
    )


def _readiness(
    foundation: Foundation,
    registries: Registries,
    engines: EngineServices,
    late: LateServices,
) -> Readiness:
    settings = foundation.settings
    reserve = settings.limits.storage_reserve_bytes
    has_containers = settings.engine.main is not None
    return Readiness(
        settings.node.id,
        registries.registry,
        engine_of=partial(named_engine_at, settings, engines.engine),
        checks={
            "storage": partial(_check_storages, registries.storage, reserve),
            "transport": partial(_check_transport, foundation, late),
        },
        docker=settings.engine.docker if has_containers else None,
    )


def _check_storages(storages: Storages, reserve: int) -> None:
    """Raise an error unless the local storage has room and the remote ones can be used.

    ``reserve``: bytes that must be free in the local storage.
    """
    check_storage(storages.staging, storages.root, reserve)
    storages.check()


def _check_transport(foundation: Foundation, late: LateServices) -> None:
    """Raise an error unless messages can be stored and containers reach this gateway."""
    try_to_write(_channel_folder(foundation))
    late.sockets().for_containers.base_url()  # only for its error


def _channel_folder(foundation: Foundation) -> Path:
    """Return the folder of the channel's messages."""
    return foundation.settings.state_dir / "channel"


def _audit(
    foundation: Foundation,
    registries: Registries,
    status: int,
    who: str,
    action: str,
    detail: Mapping[str, Any],
) -> None:
    """Add an action to the audit log, with the HTTP ``status`` that a request for it would have."""
    registries.audit.add(foundation.clock(), who, action, status, None, detail)
