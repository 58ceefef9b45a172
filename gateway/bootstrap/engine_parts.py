"""Engines made of the settings alone, and the names by which providers refer to them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.base import Engine
from engines.docker import ContainerdEngine, DockerOptions, Source, sandboxes
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine, this_machine
from engines.registry.names import PullRules
from engines.swarm import SwarmEngine, SwarmOptions
from gateway.bootstrap.parts import instance_of, run_timing
from gateway.config.engine import (
    DockerEngineSettings,
    KubernetesEngineSettings,
    MainEngine,
    NamedEngine,
    SwarmEngineSettings,
)
from gateway.config.schema import Settings
from gateway.domain.problems import Problem
from gateway.errors import Invalid

# The fewest and the most network namespaces that a daemon prepares for containers.
FEWEST_SANDBOXES = 10
MOST_SANDBOXES = 64
SANDBOX_MEMORY_SHARE = 0.02  # of the machine's memory; decides the number between the two limits

# The device by which providers name each kind of engine; "" for Docker's.
_DEVICES = {
    "kubernetes": "k8s",
    "swarm": "swarm",
    "docker": "",
}


def engine_of(
    settings: Settings,
    installation: str,
    instance: str = "",
) -> Engine:
    """Return the engine of the settings; several engines are combined in one.

    ``instance`` is this gateway's id; "" means the id in the state folder.
    """
    main_settings = settings.engine.main
    if main_settings is None:
        return _process_engine(settings, installation)
    instance = instance or instance_of(settings.state_dir)
    main = _container_engine(settings, main_settings, installation, instance)
    further = {
        name: _container_engine(settings, engine, installation, instance)
        for name, engine in settings.engines.items()
    }
    return SeveralEngines(main, further) if further else main


def main_of(engine: Engine) -> Engine:
    """Return the main one of several engines, or the engine itself if it is the only one.

    Only the main engine's network may be on this machine.
    """
    if isinstance(engine, SeveralEngines):
        return engine.main
    return engine


def engines_by_place(settings: Settings) -> dict[str, str]:
    """Return the engine's name by each name that a provider may use for it (`Provider.place`).

    A provider may use the engine's name, the URL of its daemon, or the device of its kind, which
    means the first engine of that kind. The main engine's name is "".
    """
    main = settings.engine.main
    if main is None:
        return {"": ""}
    places = {name: name for name in settings.engines}
    for name, engine in settings.engines.items():
        places.setdefault(engine.base_url, name)
        places.setdefault(_DEVICES[engine.kind], name)
    # A name that the main engine shares with a further engine means the main engine.
    main_places = (
        "",
        getattr(main, "base_url", ""),
        _DEVICES[main.kind],
    )
    return {**places, **dict.fromkeys(main_places, "")}


@dataclass(frozen=True)
class EnginesWithoutFolders:
    """Names of the engines whose machines do not see two folders of this machine, by folder."""

    # the folder of the storage: runs of these engines have their data in a storage elsewhere
    storage: frozenset[str] = frozenset()
    # the folder of the runs: log files of runs of these engines are deleted with the run
    runs: frozenset[str] = frozenset()


def engines_without_folders(settings: Settings) -> EnginesWithoutFolders:
    """Return the engines whose machines do not see the node's folders."""
    engines: dict[str, MainEngine | NamedEngine] = {**settings.engines}
    if settings.engine.main is not None:
        engines[""] = settings.engine.main
    return EnginesWithoutFolders(
        storage=_engines_without(engines, "storage_source"),
        runs=_engines_without(engines, "runs_source"),
    )


def _engines_without(
    engines: Mapping[str, MainEngine | NamedEngine],
    source: str,
) -> frozenset[str]:
    """Return the names of the clusters (Swarm, Kubernetes) that do not share one of the folders.

    ``source`` is the name of the setting with the source of that folder in a cluster.
    """
    return frozenset(
        name
        for name, engine in engines.items()
        if engine.kind != "docker" and getattr(engine, source, None) is None
    )


def _process_engine(settings: Settings, installation: str) -> ProcessEngine:
    images = settings.engine.process.images
    return ProcessEngine(
        node=settings.node.id,
        installation=installation,
        images={name: tuple(image.command) for name, image in images.items()},
        run_root=settings.state_dir / "process",
        saved_log_size=settings.limits.run_log_bytes,
    )


def _container_engine(
    settings: Settings,
    engine: MainEngine | NamedEngine,
    installation: str,
    instance: str,
) -> Engine:
    """Return the engine that ``engine``, a section of the settings, describes.

    Raises `Invalid` if its library is not installed.
    """
    match engine:
        case KubernetesEngineSettings():
            return _kubernetes(settings, engine, installation)
        case SwarmEngineSettings():
            return _swarm(settings, engine, installation)
        case DockerEngineSettings():
            return _daemon(settings, engine, installation, instance)
    # The settings of a further engine, `NamedEngine`, are the same class for every kind.
    if engine.kubernetes is not None:
        return _kubernetes(settings, engine.kubernetes, installation)
    if engine.kind == "swarm":
        return _swarm(settings, engine, installation)
    return _daemon(settings, engine, installation, instance)


def _kubernetes(
    settings: Settings,
    engine: KubernetesEngineSettings,
    installation: str,
) -> Engine:
    try:
        # The Kubernetes client is an extra, which other engines do without.
        from engines.kubernetes import KubernetesEngine, KubernetesOptions  # noqa: PLC0415
    except ImportError as error:
        rule = (
            f"needs a library that is not installed, {error.name}: pip install 'bfia-gateway[k8s]'"
        )
        raise Invalid([Problem("engine.kubernetes", rule)]) from error
    docker = settings.engine.docker
    options = KubernetesOptions(
        kubeconfig=str(engine.kubeconfig or ""),
        namespace=engine.namespace,
        pull=PullRules(frozenset(docker.registries), docker.pull_seconds),
        saved_log_size=settings.limits.run_log_bytes,
        node_selector=engine.node_selector,
        tolerations=tuple(
            toleration.model_dump(exclude_defaults=True) for toleration in engine.tolerations
        ),
        gpu=engine.gpu,
        runtime_class=engine.runtime_class,
        priority_class=engine.priority_class,
        seccomp_profile=engine.seccomp_profile,
        **_cluster_options(settings),
    )
    return KubernetesEngine(settings.node.id, installation, options)


def _swarm(
    settings: Settings,
    engine: SwarmEngineSettings | NamedEngine,
    installation: str,
) -> SwarmEngine:
    options = SwarmOptions(
        constraints=tuple(engine.constraints),
        gpu=engine.gpu,
        # A container has at most three log files. When the oldest is discarded, two full ones stay,
        # which together have the bytes of the setting.
        log_size=settings.limits.run_log_bytes // 2,
        **_cluster_options(settings),
        **_daemon_options(settings, engine),
    )
    return SwarmEngine(settings.node.id, installation, options)


def _daemon(
    settings: Settings,
    engine: DockerEngineSettings | NamedEngine,
    installation: str,
    instance: str,
) -> ContainerdEngine:
    """Return the engine of one daemon.

    Settings that only the section ``engine.docker`` has apply to every daemon.
    """
    docker = settings.engine.docker
    rules_image = ""  # at a further daemon, the gateway is not a container
    if engine is docker:
        rules_image = docker.rules_image
    options = DockerOptions(
        network=docker.network or None,
        rules_image=rules_image,
        network_mode=docker.network_mode,
        outside=engine.outside,
        instance=instance,
        user=docker.user,
        read_only_root=docker.read_only_root,
        sandboxes=_sandboxes_at(engine.base_url),
        # As for a Swarm, see `_swarm`.
        log_size=settings.limits.run_log_bytes // 2,
        **_daemon_options(settings, engine),
    )
    return ContainerdEngine(settings.node.id, installation, options)


def _cluster_options(settings: Settings) -> dict[str, Any]:
    """Return the options that the runs of Swarm and Kubernetes have in common."""
    return {
        "user": settings.engine.docker.user,
        "read_only_root": settings.engine.docker.read_only_root,
        "grace": run_timing(settings).stop_grace,
        # Twice what is kept of a log file, as log files are cut only after the end of the run.
        "room": settings.limits.run_log_bytes * 2,
    }


def _daemon_options(
    settings: Settings, engine: DockerEngineSettings | SwarmEngineSettings | NamedEngine
) -> dict[str, Any]:
    """Return the options that a daemon and the manager of a Swarm have in common."""
    docker = settings.engine.docker
    # Without registries nothing is pulled.
    registries = docker.registries if docker.pull == "missing" else ()
    folders = (
        (settings.storage.path, engine.storage_source),
        (settings.state_dir / "runs", engine.runs_source),
    )
    sources = []
    for folder, source in folders:
        if source is not None:
            sources.append(Source(folder.absolute(), source.bind or "", source.volume or ""))
    tls_files = dict(engine.tls or ())  # name and value of each of its settings
    return {
        "base_url": engine.base_url,
        "tls": {name: str(path) for name, path in tls_files.items() if path is not None},
        "pull": PullRules(frozenset(registries), docker.pull_seconds),
        "sources": tuple(sources),
        "saved_log_size": settings.limits.run_log_bytes,
    }


def _sandboxes_at(base_url: str) -> int:
    """Return the limit of the network namespaces that a daemon prepares.

    For a daemon on another machine, this is `FEWEST_SANDBOXES`.
    """
    address = base_url or os.environ.get("DOCKER_HOST", "")
    if address.startswith(("tcp:", "ssh:")):
        return FEWEST_SANDBOXES  # its memory is unknown
    memory = this_machine().memory * SANDBOX_MEMORY_SHARE
    fitting = int(memory / sandboxes.MEMORY)
    return min(max(FEWEST_SANDBOXES, fitting), MOST_SANDBOXES)
