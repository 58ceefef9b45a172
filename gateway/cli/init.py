"""The commented configuration that ``init`` writes, made from the settings themselves."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from docker.utils import kwargs_from_env
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engines.docker.client import Client
from engines.process.engine import this_machine
from gateway.cli.language import spoken, t
from gateway.config.schema import Settings
from gateway.config.values import DEFAULT_STORAGE
from gateway.data.reading import nearest_existing
from gateway.domain.resources import GIB
from gateway.identity.keys import Keyring
from gateway.language.catalogue import CHINESE, of_settings

_ROUTES = (
    ("JG0100001100000000:", ""),
    ("  host: 127.0.0.1", "or  url: https://gateway.example.com/bfia"),
    ("  port: 7380", ""),
    (
        "  profile: spec",
        "spec | fate | kuscia | audited: its dialect; fate-partner: FATE's protocol",
    ),
    ("  deadline: 10", "seconds for one request"),
    ("  signing: required", "by its keys; off: whoever names the node is taken for it"),
    ("JG0100001100000005:", ""),
    ("  via: JG0100001100000000", "that node passes on, where its own routes allow it"),
)
"""an example of routes, and what its lines mean"""
_IMAGES = 'images: {"unionpay:2.0.0": {command: [env, PYTHONPATH=/path/to/vendor, python3, -m, refvendor]}}'

TLS_FILES = ("node.pem", "node.key", "ca.pem")
"""certificate, key, and the authorities of the partners' certificates"""
_PART = 0.75
"""of the machine's memory and of the storage's disk, for jobs: the rest is for the gateway and the system"""


def docker_answers() -> bool:
    """Say whether a Docker daemon is reachable."""
    return _memory_of_docker() is not None


def _memory_of_docker() -> int | None:
    """Return the bytes of memory of the daemon's machine; None where no daemon answers."""
    try:
        with closing(
            Client(
                version="auto",
                timeout=3,
                **kwargs_from_env(),
            )
        ) as client:
            return int(client.info()["MemTotal"])
    except (DockerException, OSError):
        return None


def more(
    port: int,
    auth: bool,
    tls: Path | None,
    folder: Path,
) -> dict[str, Any]:
    """Return the settings that the options choose, by path; files as seen from the configuration's folder."""
    chosen: dict[str, Any] = {"auth.mode": "on"} if auth else {}
    for n, (name, host) in enumerate(
        {
            "peer": "0.0.0.0",
            "container": "127.0.0.1",
            "operator": "127.0.0.1",
        }.items()
    ):
        chosen[f"listen.{name}.bind"] = f"{host}:{port + n}"
    if tls is not None:
        files = [Path(os.path.relpath(tls / one, folder)).as_posix() for one in TLS_FILES]
        chosen["listen.peer.tls"] = dict(
            zip(("certificate", "key", "client_ca"), files, strict=True)
        )
    return chosen


def example(
    node: str,
    engine: str,
    routes: str,
    folder: Path,
    more: dict[str, Any],
) -> str:
    """Return a configuration for a file in the folder: every setting with its meaning, bounded by this machine."""
    storage = f"file://{folder.resolve() / DEFAULT_STORAGE}"
    memory = (_memory_of_docker() if engine == "docker" else None) or this_machine().memory
    chosen = {
        "node.id": node,
        "engine.kind": engine,
        "route_table.file": routes,
        "storage.url": storage,
        "data.grants": "listed",
        "resources.memory_gib": _part_of(memory),
        "resources.disk_gib": _part_of(shutil.disk_usage(nearest_existing(folder.resolve())).total),
        **more,
    }
    lines = [
        f"# {t('Configuration of one BFIA interconnection gateway.')}",
        f"# {t('Environment variables go over this file:')}",
        f"# {t('BFIA_GATEWAY__ENGINE__KIND=process stands for engine.kind.')}",
        "",
    ]
    return "\n".join([*lines, *_settings(Settings, None, "", chosen)]) + "\n"


def empty_routes() -> str:
    """Return an empty route table whose comments show what an entry is."""
    lines = [
        t("Node id -> how its gateway is reached. This node itself needs no entry."),
        t('Ids are text: quote those that YAML would read otherwise, such as "0123".'),
        "",
        *(f"{line:<26} # {t(about)}" if about else line for line, about in _ROUTES),
        t("All keys: docs/routes.md"),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "{}\n"


def own_key(folder: Path) -> str:
    """Return the id of the key that a new node signs with: made now, unless it has one already."""
    ring = Keyring(folder / str(Settings.model_fields["state_dir"].default))
    return (ring.signing or ring.make("ed25519")).id


def _part_of(size: int) -> float:
    return max(round(size * _PART / GIB, 1), 0.1)


def _settings(
    model: type[BaseModel],
    values: BaseModel | None,
    path: str,
    chosen: dict[str, Any],
) -> Iterator[str]:
    """Yield a line for each setting of a section; ``values`` are its defaults where they are not the model's."""
    pad = "  " * path.count(".")
    for name, field in model.model_fields.items():
        place = f"{path}{name}"
        value = (
            field.get_default(call_default_factory=True)
            if values is None
            else getattr(values, name)
        )
        section = _section(field)
        if place == "engine.process":
            yield f"{pad}process:"
            yield f"{pad}  # {t('Image name -> the command that stands for it, such as')}"
            yield f"{pad}  # {_IMAGES}"
            yield f"{pad}  images: {{}}"
        elif section is not None and (isinstance(value, BaseModel) or value is PydanticUndefined):
            if about := _about(field.description or section.__doc__ or ""):
                yield f"{pad}# {about}"
            yield f"{pad}{name}:"
            yield from _settings(
                section, value if isinstance(value, BaseModel) else None, f"{place}.", chosen
            )
        else:
            about = _about(field.description or "")
            yield f"{pad}{name}: {_yaml(chosen.get(place, value))}" + (
                f"  # {about}" if about else ""
            )


def _about(text: str) -> str:
    """Return what a setting means in the language in use."""
    line = " ".join(text.split())
    return of_settings().get(line, line) if spoken() == CHINESE else line


def _section(field: FieldInfo) -> type[BaseModel] | None:
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps([str(one) for one in value])
    plain = value if value is None or isinstance(value, (bool, int, float, dict)) else str(value)
    return json.dumps(plain, ensure_ascii=False)
