"""Computing engines of other platforms, the business of vendors' images, and the settings that ask for one."""

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

_CHOOSING = frozenset({"engine", "engines", "backend", "computing", "federation"})
"""settings by which other platforms choose an engine, with or without ``_engine`` behind"""


def foreign_engine(value: Any) -> str:
    """Return the name of the foreign engine that a value asks for; empty where it asks for none."""
    words = str(value).lower().replace("-", "_").split("_") if isinstance(value, str) else []
    return next((ENGINES[word] for word in words if word in ENGINES), "")


def foreign_engine_rule(engine: str) -> str:
    """Return why this gateway does not provide it."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def chooses_engine(setting: str) -> bool:
    """Tell whether a setting of a job is one by which other platforms choose an engine."""
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _CHOOSING


def foreign_engines(settings: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find settings such as ``computing_engine`` or ``spark_run``."""
    for key, value in settings.items():
        at, word = f"{path}.{key}", str(key).lower()
        if word.endswith("_run") and (engine := foreign_engine(word.removesuffix("_run"))):
            yield Problem(at, foreign_engine_rule(engine), value)
        elif word.removesuffix("_engine") in _CHOOSING:
            chosen = value if isinstance(value, Mapping) else {"": value}
            for part, name in chosen.items():
                if engine := foreign_engine(name):
                    yield Problem(f"{at}.{part}".rstrip("."), foreign_engine_rule(engine), name)
