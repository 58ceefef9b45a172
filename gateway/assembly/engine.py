"""The engine that the settings name, and what the admin lets which provider have of it."""

from engines.base import Engine, Mount
from engines.containerd import ContainerdEngine, PullRules
from engines.process import ProcessEngine
from gateway.assembly.identity import instance_of
from gateway.engine_settings import StorageSource
from gateway.grants import Grant
from gateway.settings import Settings


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
    return ContainerdEngine(
        node=node,
        installation=installation,
        base_url=docker.base_url,
        network=docker.network or None,
        user=docker.user,
        storage_source=_source(docker.storage_source),
        storage_root=settings.storage.path,
        runs_source=_source(docker.runs_source),
        runs_root=settings.state_dir / "runs",
        network_mode=docker.network_mode,
        read_only_root=docker.read_only_root,
        pull=PullRules(frozenset(docker.registries if docker.pull == "missing" else ()), docker.pull_seconds),
        outside=docker.outside,
        tls={name: str(path) for name, path in docker.tls if path is not None} if docker.tls else None,
        saved_log_size=settings.limits.run_log_bytes,
        log_size=settings.limits.run_log_bytes // 2,
        instance=instance or instance_of(settings.state_dir),
    )


def grants_of(settings: Settings) -> dict[str, Grant]:
    return {
        provider: Grant(
            tuple(Mount(mount.source, mount.target, mount.read_only) for mount in allowed.mounts),
            tuple(allowed.capabilities),
        )
        for provider, allowed in settings.engine.docker.allow.items()
    }


def _source(source: StorageSource | None) -> dict[str, str] | None:
    return source.model_dump(exclude_none=True) if source else None
