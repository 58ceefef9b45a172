"""Jobs that leave a version open: ``*`` becomes the newest one in use here, once, when the job is taken in."""

from collections.abc import Iterator
from dataclasses import replace

from gateway.domain.dag import Dag, DagNode
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec
from provider_registry.registry import Registry, Unknown
from provider_registry.versions import ANY


def unsettled(spec: JobSpec, registry: Registry) -> Iterator[Problem]:
    """Yield a problem for every task whose open version this node cannot fill in."""
    for node in _open(spec):
        try:
            _newest(node, registry)
        except Unknown as error:
            rule = f"stands for the newest version that the scheduling node has in use, but here {error.message}"
            yield Problem(f"dag.components.{node.name}.version", rule, ANY, "a version by its number")


def settled(spec: JobSpec, registry: Registry) -> tuple[JobSpec, list[str]]:
    """Return the job with the versions that its tasks use, and what was chosen, in words.

    Raises `Unknown` where there is nothing to choose from, which `unsettled` tells before.
    """
    chosen = {node.name: _newest(node, registry) for node in _open(spec)}
    if not chosen:
        return spec, []
    nodes = tuple(
        replace(node, component=replace(node.component, version=chosen.get(node.name, node.component.version)))
        for node in spec.dag.nodes
    )
    words = [
        f"task {node.name} uses {node.component}, the newest version in use when the job was created (asked for *)"
        for node in nodes
        if node.name in chosen
    ]
    return replace(spec, dag=Dag(nodes, spec.dag.version)), words


def _open(spec: JobSpec) -> Iterator[DagNode]:
    return (node for node in spec.dag.nodes if node.component.version == ANY)


def _newest(node: DagNode, registry: Registry) -> str:
    return registry.newest(node.component.provider, node.component.name)
