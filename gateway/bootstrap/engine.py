"""The engine that the settings name, and what the admin lets which provider have of it."""

from engines.base import Engine, Mount
from engines.docker import ContainerdEngine, PullRules
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine
from gateway.bootstrap.identity import instance_of
from gateway.config.engine_settings import DaemonSettings, DockerEngineSettings, StorageSource
from gateway.config.schema import Settings
from gateway.jobs.capacity import Cap, EngineRooms
from gateway.jobs.grants import Grant
from gateway.ports import Clock
from gateway.store.engine_totals import EngineTotals
from gateway.store.store import Store


def engine_of(settings: Settings, installation: str, instance: str = "") -> Engine:
    """Return the engine that the settings name; ``instance`` is this gateway's own id, by default the kept one."""
    node = settings.node.id
    if settings.engine.kind == "process":
        images = {name: tuple(image.command) for name, image in settings.engine.process.images.items()}
        return ProcessEngine(
            node=node,
            installation=installation,
            images=images,
            run_root=settings.state_dir / "process",
            saved_log_size=settings.limits.run_log_bytes,
        )
    docker = settings.engine.docker
    instance = instance or instance_of(settings.state_dir)
    main = _daemon(settings, docker, docker.base_url, installation, instance)
    others = {d.base_url: _daemon(settings, d, d.base_url, installation, instance) for d in docker.daemons}
    return SeveralEngines(main, others) if others else main


def main_of(engine: Engine) -> Engine:
    """Return the engine whose network is on this machine, where that is so of any."""
    return engine.main if isinstance(engine, SeveralEngines) else engine


def engines_by_address(settings: Settings) -> dict[str, str]:
    """Return which daemons a provider may name, each with the name of the engine for it."""
    docker = settings.engine.docker
    if settings.engine.kind != "docker":
        return {"": ""}
    return {"": "", docker.base_url: "", **{d.base_url: d.base_url for d in docker.daemons}}


def rooms_of(settings: Settings, engine: Engine, store: Store, clock: Clock, owner: str) -> EngineRooms:
    """Return what tells what each engine has; ``owner`` is what this gateway's own main one is kept as."""
    others = engine.others if isinstance(engine, SeveralEngines) else {}
    own = settings.resources
    caps = {d.base_url: Cap(d.cpu, d.memory_gib) for d in settings.engine.docker.daemons}
    caps[""] = Cap(own.cpu, own.memory_gib)
    engines = {"": main_of(engine), **others}
    return EngineRooms(settings.node.id, engines, caps, own, EngineTotals(store), clock, main=owner)


def _daemon(
    settings: Settings,
    place: DockerEngineSettings | DaemonSettings,
    base_url: str,
    installation: str,
    instance: str,
) -> ContainerdEngine:
    """Return the engine of one daemon; what ``place`` does not say is the same for all."""
    docker = settings.engine.docker
    return ContainerdEngine(
        node=settings.node.id,
        installation=installation,
        base_url=base_url,
        network=docker.network or None,
        user=docker.user,
        storage_source=_source(place.storage_source),
        storage_root=settings.storage.path,
        runs_source=_source(place.runs_source),
        runs_root=settings.state_dir / "runs",
        network_mode=docker.network_mode,
        read_only_root=docker.read_only_root,
        pull=PullRules(
            frozenset(docker.registries if docker.pull == "missing" else ()),
            docker.pull_seconds,
            docker.pull_stale_seconds,
        ),
        outside=place.outside,
        tls={name: str(path) for name, path in place.tls if path is not None} if place.tls else None,
        saved_log_size=settings.limits.run_log_bytes,
        log_size=settings.limits.run_log_bytes // 2,
        instance=instance,
    )


def grants_of(settings: Settings) -> dict[str, Grant]:
    """Return what the settings let each provider have, by its name."""
    return {
        provider: Grant(
            tuple(Mount(mount.source, mount.target, mount.read_only) for mount in allowed.mounts),
            tuple(allowed.capabilities),
        )
        for provider, allowed in settings.engine.docker.allow.items()
    }


def _source(source: StorageSource | None) -> dict[str, str] | None:
    return source.model_dump(exclude_none=True) if source else None
