"""Requests for computing engines of other platforms, in settings of jobs and nodes.

Vendors' images bring their engines with them. Jobs written for other platforms have settings that
request an engine of the platform; this gateway has none, and rejects the job with a reason.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.domain.problems import Problem

# Names of engines by their spelling in configurations of other platforms.
ENGINES: Mapping[str, str] = {
    "eggroll": "Eggroll",
    "spark": "Spark",
    "linkis": "Linkis",
    "hive": "Hive",
    "rabbitmq": "RabbitMQ",
    "pulsar": "Pulsar",
}
# Settings by which other platforms choose an engine, here without their optional suffix
# ``_engine``.
_CHOOSING = frozenset({"engine", "engines", "backend", "computing", "federation"})


def foreign_engine(value: Any) -> str:
    """Return the name of the foreign engine that a value requests; empty if it requests none.

    The value is split into words at ``_`` and ``-``: ``spark_cluster`` requests Spark.
    """
    if not isinstance(value, str):
        return ""
    for word in value.lower().replace("-", "_").split("_"):
        if word in ENGINES:
            return ENGINES[word]
    return ""


def foreign_engine_rule(engine: str) -> str:
    """Return the message to a job that requests a foreign engine."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def chooses_engine(setting: str) -> bool:
    """Return whether other platforms choose an engine by this setting of a job.

    Such settings are ``engine``, ``computing_engine`` or ``spark_run``.
    """
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _CHOOSING


def foreign_engines(
    settings: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Find settings that request an engine, such as ``computing_engine`` or ``spark_run``.

    ``path`` is the path of the settings in the body. A setting of this kind is valid if its value
    names no foreign engine.
    """
    for key, value in settings.items():
        for at, engine, requested in _engine_requests(key, value, f"{path}.{key}"):
            if engine:
                yield Problem(at, foreign_engine_rule(engine), requested)


def _engine_requests(
    setting: str,
    value: Any,
    path: str,
) -> Iterator[tuple[str, str, Any]]:
    """Yield path, foreign engine and value of each request for an engine in a setting.

    The engine is empty if the value names no foreign one. Nothing is yielded for a setting that
    chooses no engine. If the value is an object, such as the engines of several services, each of
    its values is a request.
    """
    word = str(setting).lower()
    if word.endswith("_run"):
        yield path, foreign_engine(word.removesuffix("_run")), value
    elif word.removesuffix("_engine") not in _CHOOSING:
        return
    elif isinstance(value, Mapping):
        for part, name in value.items():
            part_path = f"{path}.{part}".rstrip(".")  # an empty key adds no dot
            yield part_path, foreign_engine(name), name
    else:
        yield path, foreign_engine(value), value
