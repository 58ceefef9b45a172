"""The stage of a node that builds the engines, their images and resources, and the planner."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from engines.base import Engine
from engines.multi import SeveralEngines
from gateway.bootstrap import engine_parts, parts
from gateway.bootstrap.foundation import Foundation, Registries, unfinished_specs
from gateway.bootstrap.late import LateServices
from gateway.config.schema import Settings
from gateway.data import credentials, hdfs_tokens
from gateway.data.combined_storage import Storages
from gateway.data.remote import Remote
from gateway.data.workspace import Workspace
from gateway.domain.job_settings import JobLimits
from gateway.domain.run import Run
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError
from gateway.jobs.engine_capacities import EngineCapacities
from gateway.jobs.planner import Places, TaskPlanner
from gateway.jobs.resources import Resources
from gateway.providers.images import Images, SignaturePolicy, load_signers
from gateway.providers.registration import Providers
from gateway.runtime.context import traced

# Makes the engine from the settings and the id of the installation.
EngineFactory = Callable[[Settings, str], Engine]


@dataclass(frozen=True)
class EngineServices:
    """The engines, their images and resources, and the planner of tasks on them."""

    engine: Engine
    image_signatures: SignaturePolicy
    providers: Providers
    workspace: Workspace
    capacities: EngineCapacities
    planner: TaskPlanner
    resources: Resources


def build_engine_services(
    foundation: Foundation,
    registries: Registries,
    late: LateServices,
    make_engine: EngineFactory,
) -> EngineServices:
    """Return the engines with their images, capacities and plans."""
    settings = foundation.settings
    # ``engine.main``: the settings of the daemon or cluster that runs containers. It is None for
    # the kind ``process``, with which runs are processes of this machine.
    has_containers = settings.engine.main is not None
    engine = make_engine(settings, foundation.installation)
    # In spite of their name, ``docker.signatures`` apply to every kind that runs images.
    signers = settings.engine.docker.signatures if has_containers else ()
    image_signatures = SignaturePolicy(load_signers(signers))
    images = Images(
        engine_at=partial(_engine_for, settings, engine),
        seconds=foundation.pace.registration_pull,
        check_signature=image_signatures.check,
    )
    # The lambda is called later, when `resources` below exist.
    capacities = EngineCapacities(
        foundation.context,
        _engines_by_name(engine),
        settings,
        on_change=lambda: resources.look_again(),
    )
    without_folders = engine_parts.engines_without_folders(settings)
    planner = TaskPlanner(
        foundation.context,
        registries.registry,
        registries.datasets,
        registries.storage,
        registries.models,
        capacities.defaults,
        Places(
            engines=engine_parts.engines_by_place(settings),
            kinds={name: each.kind for name, each in _engines_by_name(engine).items()},
            without_node_folder=without_folders.storage,
        ),
    )
    resources = Resources(
        capacities,
        foundation.store,
        foundation.clock,
        freed=partial(_report_free_resources, foundation, late),
        rules=parts.queue_rules(settings),
        placements=planner.placements,
    )
    return EngineServices(
        engine=engine,
        image_signatures=image_signatures,
        providers=Providers(
            registries.registry,
            images,
            partial(unfinished_specs, foundation.store),
            require_image=settings.providers.image == "require",
            allow=settings.engine.docker.allow,
            attested={name: policy.platform for name, policy in settings.tee.providers.items()},
            storage_rule=registries.storage.mismatch_consequence,
            report_problems=registries.tee_policies.setting_problems,
        ),
        workspace=Workspace(
            settings.storage.path,
            foundation.runs_folder,
            contained=has_containers,
            without_runs_folder=without_folders.runs,
            log_bytes=settings.limits.run_log_bytes,
            remote_of=partial(_remote_of, foundation, registries.storage),
            copy=registries.storage.copy,
        ),
        capacities=capacities,
        planner=planner,
        resources=resources,
    )


def named_engine_at(
    settings: Settings,
    engine: Engine,
    place: str,
) -> tuple[str, Engine] | None:
    """Return the name and the engine of a provider's place; None if the settings lack the place."""
    name = engine_parts.engines_by_place(settings).get(place)
    if name is None:
        return None
    if isinstance(engine, SeveralEngines):
        return name, engine.at(name)
    return name, engine


def _engine_for(settings: Settings, engine: Engine, place: str) -> Engine | None:
    """Return the engine of `named_engine_at` without its name."""
    named_engine = named_engine_at(settings, engine, place)
    if named_engine is None:
        return None
    return named_engine[1]


def _engines_by_name(engine: Engine) -> dict[str, Engine]:
    """Return the engines by their names; the main one's is empty."""
    if isinstance(engine, SeveralEngines):
        return {"": engine.main, **engine.further}
    return {"": engine}


def _remote_of(
    foundation: Foundation,
    storages: Storages,
    run: Run,
    begins: bool,
) -> Remote | None:
    """Return a run's remote storage; None if the run uses local storage.

    ``begins``: the run begins now. If the storage's settings also name an STS role, the result has
    temporary credentials of that role for this run; otherwise, it has the node's credentials.
    """
    storage = storages.remote_of(run)
    if storage is None:
        return None
    if not begins:
        return storage.remote
    storage.check_answers()  # raises `StorageFailed` unless the storage answers
    if storage.remote.principal:
        return hdfs_tokens.for_run(storage.remote, run.run_id, foundation.token_files)
    store = foundation.store
    job_id = store.local_job_of_task(run.task_id)
    limits = JobLimits()
    if job_id:
        limits = store.local_jobs.get(job_id).spec.settings.time_limits
    timeouts = (limits.of(run.task_name).timeout, limits.job_timeout)
    # The shorter of the timeouts that are set; None without any
    longest_run = min(filter(None, timeouts), default=None)
    return credentials.for_run(storage.remote, run, longest_run)


def _report_free_resources(
    foundation: Foundation,
    late: LateServices,
    job_ids: list[str],
) -> None:
    """Tell the scheduling nodes of waiting jobs that this node has resources for these jobs.

    Each call is made in the lane of its scheduling node.
    """
    for job_id in job_ids:
        local = foundation.store.local_jobs.find(job_id)
        if local is not None:
            report = partial(_report_free, foundation.settings.node.id, late, local.spec)
            foundation.lanes.submit(local.spec.scheduler, report, job_id)


def _report_free(node: str, late: LateServices, spec: JobSpec) -> None:
    # A scheduling node that is not reached repeats its request anyway, only later.
    with traced(spec.trace_id), suppress(GatewayError):
        scheduler = late.peers().scheduler(spec.scheduler, spec.protocol)
        scheduler.resources_free(spec.job_id, node)
