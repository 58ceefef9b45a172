"""The first stages of a node: settings, database and clock, then the records in the database."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TextIO

from anyio import CapacityLimiter

from adapter.bfia.management.flows import read_flow
from gateway.attestation.verifiers import Verifiers
from gateway.auth import RunTokens
from gateway.bootstrap import parts
from gateway.config.schema import Settings
from gateway.config.schema.tee import policies_of, software_keys_of
from gateway.config.secrets import database_url, webhook_receivers
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.hdfs_tokens import TokenFiles
from gateway.data.models import Models
from gateway.data.sharing import Sharing
from gateway.data.workspace import make_folder
from gateway.domain import rerun
from gateway.domain.datasets import Default
from gateway.domain.spec import JobSpec
from gateway.domain.timeouts import RunTiming, Timing
from gateway.events.feed import Feed
from gateway.events.webhooks import Webhooks
from gateway.jobs.model_permits import ModelPermits
from gateway.jobs.new_jobs import roles_of
from gateway.jobs.permit_holdings import PermitHoldings
from gateway.jobs.tee_policies import TeePolicies
from gateway.jobs.trust import Trust
from gateway.ports import Clock, Limiters
from gateway.runtime.context import NodeContext
from gateway.runtime.lanes import Lanes
from gateway.store.applications import SqlApplications
from gateway.store.audit import SqlAudit
from gateway.store.database import open_database
from gateway.store.models import SqlModels
from gateway.store.providers import SqlProviders
from gateway.store.repositories import (
    SqlDatasets,
    SqlGrants,
    SqlRouteVersions,
    SqlTokens,
)
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

PEER_THREADS = 64  # for requests that wait for other nodes
CALLBACK_THREADS = 8  # for callbacks and polls, see `Limiters.news`
OTHER_THREADS = 16  # for all other requests


@dataclass(frozen=True)
class Foundation:
    """The settings, database and timings that every service of a node uses."""

    settings: Settings
    pace: parts.Pace
    clock: Clock
    limiters: Limiters
    lanes: Lanes
    runs_folder: Path  # working folders and logs of runs
    lock: TextIO | None  # locked file that keeps other gateways off an SQLite database, else None
    store: Store
    call_timing: Timing
    run_timing: RunTiming
    # this gateway's name among those that share the database: "<instance>/<kind of main engine>"
    owner: str
    context: NodeContext
    installation: str  # id that the database has from its creation, a label of every container
    run_tokens: RunTokens
    token_files: TokenFiles  # of runs at HDFS with Kerberos

    @property
    def institution(self) -> str:
        """The institution of this node, by default the node's id."""
        node = self.settings.node
        return node.institution or node.id


@dataclass(frozen=True)
class Registries:
    """The records of a node: data, components, routes, models, trust, audit and events."""

    storage: Storages
    datasets: Datasets
    registry: Registry  # of providers, with the descriptions of their components
    tokens: SqlTokens  # of people and programs that use the operators' listener
    audit: SqlAudit
    routes: LiveRoutes
    models: Models
    sharing: Sharing  # which jobs and partners may use the datasets
    stored_applications: SqlApplications  # to and from partners
    trust: Trust  # contracts and permits of jobs
    verifiers: Verifiers  # of attestation reports
    tee_policies: TeePolicies  # of the attestation reports of runs
    model_permits: ModelPermits
    feed: Feed  # of events
    webhooks: Webhooks


def open_foundation(settings: Settings, pace: parts.Pace) -> Foundation:
    """Create the folders; lock the database and open it.

    Raises `Invalid` for an unusable folder or database.
    """
    state = settings.state_dir
    runs_folder = state / "runs"
    make_folder(state, "state_dir")
    # Only this user may enter these two: the containers' folders in them are open to every user.
    make_folder(settings.storage.path, "storage.url", mode=0o700)
    make_folder(runs_folder, "state_dir", mode=0o700)
    lock = parts.lock_database(settings)
    call_timing = parts.call_timing(settings, pace)
    run_timing = parts.run_timing(settings)
    clock = partial(datetime.now, UTC)
    store = Store(
        parts.connect_when_ready(partial(open_database, database_url(settings))),
        call_timing,
        run_timing,
        sole_writer=lock is not None,
    )
    owner = f"{parts.instance_of(state)}/{settings.engine.kind}"
    return Foundation(
        settings=settings,
        pace=pace,
        clock=clock,
        limiters=Limiters(
            peers=CapacityLimiter(PEER_THREADS),
            news=CapacityLimiter(CALLBACK_THREADS),
            rest=CapacityLimiter(OTHER_THREADS),
        ),
        lanes=Lanes(own_lane=settings.node.id),
        runs_folder=runs_folder,
        lock=lock,
        store=store,
        call_timing=call_timing,
        run_timing=run_timing,
        owner=owner,
        context=NodeContext(settings.node.id, store, clock, owner),
        installation=store.installation(),
        run_tokens=RunTokens(parts.run_token_key(state)),
        token_files=TokenFiles(state / "hdfs-tokens"),
    )


def build_registries(foundation: Foundation) -> Registries:
    """Return the records of the node. Raises `Invalid` for storages that cannot be used."""
    settings = foundation.settings
    store = foundation.store
    clock = foundation.clock
    node = settings.node.id
    storage = parts.storages(settings)
    datasets = Datasets(
        storage,
        SqlDatasets(store),
        settings.data.roots,
        # Called later, when `sharing` below has been built from `datasets`.
        jobs_using=lambda address: sharing.jobs_using(address),
    )
    registry = Registry(SqlProviders(store, sole_writer=foundation.lock is not None), clock)
    tokens = SqlTokens(store)
    audit = SqlAudit(store)
    versions = SqlRouteVersions(store, foundation.owner)
    proxy = settings.outbound.default
    routes = LiveRoutes(
        settings.route_table.file,
        versions,
        store.has_active_job_with,
        clock,
        proxy=proxy,
    )
    unfinished = partial(unfinished_specs, store)
    roles = partial(roles_of, registry)
    models = Models(node, SqlModels(store), storage, unfinished, clock)
    default_grant = Default(settings.data.grants)  # the rule for a dataset without any grant
    sharing = Sharing(node, datasets, SqlGrants(store), default_grant, roles, unfinished, clock)
    stored_applications = SqlApplications(store)
    holdings = PermitHoldings(node, stored_applications, roles, read_flow, clock)
    feed = Feed(store, node)
    verifiers = Verifiers(software_keys_of(settings.tee))
    return Registries(
        storage=storage,
        datasets=datasets,
        registry=registry,
        tokens=tokens,
        audit=audit,
        routes=routes,
        models=models,
        sharing=sharing,
        stored_applications=stored_applications,
        trust=Trust(
            node,
            stored_applications,
            holdings,
            sharing,
            settings.trust.level,
            roles,
            clock,
        ),
        verifiers=verifiers,
        tee_policies=TeePolicies(
            node,
            policies_of(settings.tee),
            stored_applications,
            roles,
            clock,
            verifiers,
        ),
        model_permits=ModelPermits(node, stored_applications, models, holdings, clock),
        feed=feed,
        webhooks=Webhooks(
            webhook_receivers(settings),
            store,
            feed,
            foundation.owner,
            clock,
            proxy=proxy,
        ),
    )


def unfinished_specs(store: Store) -> Iterator[JobSpec]:
    """Yield the specification of every unfinished job here, and each version that may replace it.

    There is one further version for each amendment that is offered but not in effect.
    """
    for job_id in store.local_jobs.unfinished():
        local = store.local_jobs.find(job_id)
        if local is None or local.closed:
            continue
        spec = rerun.in_force(local)
        yield spec
        for amendment in local.offered:
            if amendment.id not in local.amendments:
                yield rerun.with_amendments(spec, [amendment])
