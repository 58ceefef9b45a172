"""Engines made of the settings alone, and the names by which providers refer to them."""

from collections.abc import Mapping
from dataclasses import dataclass

from engines.base import Engine
from engines.multi import SeveralEngines
from engines.process.engine import ProcessEngine
from gateway.bootstrap.parts import cluster_options, instance_of
from gateway.config.schema import Settings
from gateway.config.schema.engine import (
    DockerEngineSettings,
    KubernetesEngineSettings,
    MainEngine,
    NamedEngine,
    SwarmEngineSettings,
)
from gateway.domain.problems import Problem
from gateway.errors import Invalid

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
    kubernetes = _kubernetes_section(engine)
    if kubernetes is not None:
        return _kubernetes(settings, kubernetes, installation)
    # Imported late: a node whose runs are processes does without Docker's library.
    from gateway.bootstrap import daemon_engines  # noqa: PLC0415

    if isinstance(engine, SwarmEngineSettings):
        return daemon_engines.swarm(settings, engine, installation)
    if isinstance(engine, NamedEngine) and engine.kind == "swarm":
        return daemon_engines.swarm(settings, engine, installation)
    assert isinstance(engine, DockerEngineSettings | NamedEngine)
    return daemon_engines.daemon(settings, engine, installation, instance)


def _kubernetes_section(engine: MainEngine | NamedEngine) -> KubernetesEngineSettings | None:
    """Return the settings of a cluster of Kubernetes; None for an engine of another kind."""
    if isinstance(engine, KubernetesEngineSettings):
        return engine
    if isinstance(engine, NamedEngine):
        return engine.kubernetes
    return None


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
    # Loads Docker's library, as the engine itself does.
    from engines.registry.names import PullRules  # noqa: PLC0415

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
        **cluster_options(settings),
    )
    return KubernetesEngine(settings.node.id, installation, options)
