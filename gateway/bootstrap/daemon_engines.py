"""Engines of Docker daemons, made of the settings; imported only where there is such an engine.

Importing this module loads Docker's library, which takes memory and a part of a node's start.
"""

import math
import os
from typing import Any

from engines.docker import ContainerdEngine, DockerOptions, Source
from engines.process.engine import this_machine
from engines.registry.names import PullRules
from engines.swarm import SwarmEngine, SwarmOptions
from gateway.bootstrap.parts import cluster_options
from gateway.config.schema import Settings
from gateway.config.schema.engine import DockerEngineSettings, NamedEngine, SwarmEngineSettings

# Network namespaces prepared for each core of a daemon: more would slow the runs down.
SANDBOXES_PER_CORE = 2
SANDBOXES_ELSEWHERE = 4  # at a daemon on another machine, whose cores are unknown


def swarm(
    settings: Settings,
    engine: SwarmEngineSettings | NamedEngine,
    installation: str,
) -> SwarmEngine:
    """Return the engine of a Swarm, from the address of its manager."""
    options = SwarmOptions(
        constraints=tuple(engine.constraints),
        gpu=engine.gpu,
        # A container has at most three log files. When the oldest is discarded, two full ones stay,
        # which together have the bytes of the setting.
        log_size=settings.limits.run_log_bytes // 2,
        **cluster_options(settings),
        **_daemon_options(settings, engine),
    )
    return SwarmEngine(settings.node.id, installation, options)


def daemon(
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
        # As for a Swarm, see `swarm`.
        log_size=settings.limits.run_log_bytes // 2,
        **_daemon_options(settings, engine),
    )
    return ContainerdEngine(settings.node.id, installation, options)


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
    """Return the limit of the network namespaces that a daemon prepares."""
    address = base_url or os.environ.get("DOCKER_HOST", "")
    if address.startswith(("tcp:", "ssh:")):
        return SANDBOXES_ELSEWHERE
    return SANDBOXES_PER_CORE * math.ceil(this_machine().cpu)
