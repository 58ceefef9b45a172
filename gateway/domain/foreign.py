"""Computing engines of other platforms, which have no place beside containers: named, so that refusals name them.

A vendor's image may bring and use any of them; the gateway starts its container and knows nothing of the inside.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.domain.problems import Problem

ENGINES: Mapping[str, str] = {
    "eggroll": "Eggroll",
    "spark": "Spark",
    "linkis": "Linkis",
    "hive": "Hive",
    "rabbitmq": "RabbitMQ",
    "pulsar": "Pulsar",
}
"""as configurations of other platforms spell them -> their names"""

_ASKING = frozenset({"engine", "engines", "backend", "computing", "federation"})
"""settings of a job by which other platforms choose an engine, with or without ``_engine`` behind"""


def named(value: Any) -> str:
    """Return the name of the foreign engine that a value asks for; empty where it asks for none."""
    words = str(value).lower().replace("-", "_").split("_") if isinstance(value, str) else []
    return next((ENGINES[word] for word in words if word in ENGINES), "")


def chooses(setting: str) -> bool:
    """Say whether other platforms choose an engine by a setting of this name."""
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _ASKING


def rule(engine: str) -> str:
    """Say why this gateway does not take it."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def check(job_params: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find what asks for a foreign engine in a job's settings, such as ``computing_engine`` or ``spark_run``."""
    for role, entry in job_params.items():
        settings = {"": entry} if role == "common" else entry
        if not isinstance(settings, Mapping):
            continue
        for index, values in settings.items():
            if isinstance(values, Mapping):
                yield from _asked(values, f"{path}.{role}.{index}".rstrip("."))


def _asked(settings: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for key, value in settings.items():
        at, word = f"{path}.{key}", str(key).lower()
        if word.endswith("_run") and (engine := named(word.removesuffix("_run"))):
            yield Problem(at, rule(engine), value)
        elif word.removesuffix("_engine") in _ASKING:
            chosen = value if isinstance(value, Mapping) else {"": value}
            for part, name in chosen.items():
                if engine := named(name):
                    yield Problem(f"{at}.{part}".rstrip("."), rule(engine), name)
