"""The stage of a node that launches runs, watches them and reads their logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from adapter.bfia.environment import session_id
from gateway.bootstrap.engine_services import EngineServices
from gateway.bootstrap.foundation import Foundation, Registries
from gateway.bootstrap.late import LateServices
from gateway.bootstrap.peer_services import PeerServices
from gateway.broker.broker import Broker
from gateway.data import credentials, hdfs_tokens
from gateway.data.combined_storage import Storages
from gateway.data.logs import RunLogs
from gateway.data.workspace import DiskWatch
from gateway.domain.run import Run
from gateway.jobs.executor import Executor, Hooks
from gateway.jobs.launcher import Launching, LaunchRules, SharedSite
from gateway.runtime.liveness import Heartbeat
from gateway.store.repositories import Gateways
from gateway.store.store import Store


@dataclass(frozen=True)
class RunServices:
    """Launching runs, watching them, and their logs."""

    launching: Launching
    executor: Executor
    heartbeat: Heartbeat
    run_logs: RunLogs


def build_run_services(
    foundation: Foundation,
    registries: Registries,
    engines: EngineServices,
    peers: PeerServices,
    late: LateServices,
) -> RunServices:
    """Return the services that launch and watch runs."""
    settings = foundation.settings
    pace = foundation.pace
    disk = DiskWatch(
        engines.workspace,
        reserve=settings.limits.storage_reserve_bytes,
        every=pace.disk_check,
        files=pace.files,
        bounds=engines.capacities.ceilings,
        written=engines.engine.disk_use,
    )
    rules = LaunchRules(
        allow=settings.engine.docker.allow,
        signatures=engines.image_signatures,
        pinned=registries.registry.pin,
        limits=engines.capacities.ceilings,
        demanded_report=registries.tee_policies.demanded_report,
        limits_access=registries.storage.limits_runs,
    )
    launching = Launching(
        foundation.context,
        engines.engine,
        peers.peers,
        engines.workspace,
        disk,
        shared_site=partial(_shared_site, foundation, peers, late),
        rules=rules,
    )
    hooks = Hooks(
        close_session=peers.sessions.end,
        release=engines.resources.release,
        observe=peers.metrics.record_action,
        silent=peers.outages.note_silence,
        stuck=peers.metrics.stuck,
        end_credentials=partial(_end_credentials, foundation, registries.storage),
        on_channel=partial(_channel_report, foundation.store, peers.broker),
    )
    executor = Executor(
        foundation.context,
        launching,
        peers.peers,
        foundation.lanes,
        registries.storage,
        hooks,
        foundation.run_timing,
    )
    late.launching.bind(launching)
    late.executor.bind(executor)
    heartbeat = Heartbeat(
        Gateways(foundation.store),
        foundation.owner,
        executor.record,
        foundation.clock,
        lost_after=pace.lost_gateway,
    )
    run_logs = RunLogs(
        settings.node.id,
        foundation.store,
        engines.engine,
        engines.workspace,
        elsewhere=heartbeat.other_with_files,
    )
    return RunServices(launching, executor, heartbeat, run_logs)


def _shared_site(
    foundation: Foundation,
    peers: PeerServices,
    late: LateServices,
) -> SharedSite:
    """Return what all containers share, such as the URL at which they reach this gateway.

    Raises `EngineFailed` if containers cannot reach this gateway.
    """
    url = late.sockets().for_containers.base_url()
    _, _, host_and_port = url.partition("://")
    return SharedSite(
        callback_base=url,
        transport=host_and_port,
        institution_of=peers.peer_table.institution,
        installation=foundation.installation,
        secret_of=foundation.run_tokens.issue,
    )


def _end_credentials(
    foundation: Foundation,
    storages: Storages,
    run: Run,
) -> None:
    """Revoke the credentials of a run for its remote storage; do nothing for a local storage."""
    storage = storages.remote_of(run)
    if storage is not None:
        hdfs_tokens.end(storage.remote, run.run_id, foundation.token_files)
        credentials.end(storage.remote, run, foundation.clock())


def _channel_report(
    store: Store,
    broker: Broker,
    run: Run,
) -> str:
    """Report the topics that a run waits for, and its sessions' unread topics and last refusal.

    Returns "" if there is nothing to report.
    """
    job_id = store.local_job_of_task(run.task_id) or ""
    # A job has one session, or one for each task; a session that does not exist has no topics.
    sessions = (session_id(job_id), session_id(run.task_id))
    awaited = []
    backlog = []
    for session in sessions:
        for topic in broker.backlog(session):
            if run.name in topic.readers:
                awaited.append(topic.topic)
            if topic.messages:
                backlog.append(f"{topic.topic} ({topic.messages})")  # the number of messages
    refused = next(filter(None, map(broker.last_refusal, sessions)), "")
    has_news = awaited or backlog or refused
    if not has_news:
        return ""
    report = "it waited for no message"
    if awaited:
        report = f"it waited for topic {_first_five(awaited)}"
    if backlog:
        report += f"; unread: {_first_five(backlog)}"
    if refused:
        report += f"; last refused {refused}"
    return report


def _first_five(names: Sequence[str]) -> str:
    """Return the first five names, or all if there are fewer, as one text."""
    return ", ".join(names[:5])
