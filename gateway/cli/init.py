"""The commented configuration that ``init`` writes, derived from the schema of the settings."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import NoneType
from typing import Any

from docker.errors import DockerException
from docker.utils import kwargs_from_env
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engines.docker.client import Client
from engines.process.engine import this_machine
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed
from gateway.cli.language import language_in_use, t
from gateway.config.schema import Settings
from gateway.config.schema.listeners import PeerListener
from gateway.config.values import DEFAULT_STORAGE
from gateway.data.reading import nearest_existing
from gateway.domain.amounts import GIB
from gateway.errors import problems_of
from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from gateway.language.catalogue import CHINESE, of_settings

# An example of routes: lines, each with the comment behind it.
_ROUTES = (
    (
        "JG0100001100000000:",
        "bfia-gateway partner accept writes such an entry, with keys, from an invitation",
    ),
    ("  host: 127.0.0.1", "or  url: https://gateway.example.com/bfia"),
    ("  port: 7380", ""),
    (
        "  profile: spec",
        "spec | fate | kuscia | audited | transport: its dialect; fate-partner: FATE's protocol",
    ),
    ("  deadline: 10", "seconds for a call with all its tries"),
    (
        "  signing: required",
        "needs keys: PUBLIC KEY, which sign its requests; off: any request with its id is accepted",
    ),
    ("JG0100001100000005:", ""),
    ("  via: JG0100001100000000", "that node passes on, where its own routes allow it"),
)
_IMAGES = (
    "images: "
    '{"unionpay:2.0.0": {command: [env, PYTHONPATH=/path/to/vendor, python3, -m, refvendor]}}'
)
# Certificate, key, and the authorities of the partners' certificates.
TLS_FILES = ("node.pem", "node.key", "ca.pem")
# Part of the machine's memory, and of the storage's disk, that jobs may use; the rest is for the
# gateway and the system.
_SHARE = 0.75
_DOCKER_TIMEOUT = 3  # seconds for a response of the daemon


def docker_responds() -> bool:
    """Return whether a Docker daemon is reachable."""
    return _memory_of_docker() is not None


def _memory_of_docker() -> int | None:
    """Return the bytes of memory of the daemon's machine; None without a daemon."""
    try:
        client = Client(version="auto", timeout=_DOCKER_TIMEOUT, **kwargs_from_env())
        with closing(client):
            return int(client.info()["MemTotal"])
    except (DockerException, OSError):
        return None


# ---------------------------------------------------------------- the configuration


def check_address(address: str, *, by_https: bool) -> None:
    """Raise `CallFailed` unless partners can reach a node at an address.

    ``by_https``: the node will serve peers by https.
    """
    try:
        PeerListener(bind="127.0.0.1:7380", advertise=address)
    except ValidationError as error:
        (problem, *_) = problems_of(error.errors())
        raise CallFailed(f"--address {address}: {problem.rule}", EXIT_BAD_INPUT) from None
    if by_https and not address.startswith("https://"):
        text = f"--address {address}: must begin with https://, as --tls is given"
        raise CallFailed(text, EXIT_BAD_INPUT)


def settings_from_options(
    port: int,
    *,
    auth: bool,
    tls: Path | None,
    address: str,
    folder: Path,
) -> dict[str, Any]:
    """Return the settings that correspond to the command's options, by path.

    ``address`` is where partners reach the node; "" if it is not known yet. ``tls`` is the folder
    that holds the `TLS_FILES`; None: without TLS. The settings name these files by paths relative
    to ``folder``, the folder of the configuration.
    """
    settings: dict[str, Any] = {
        "listen.peer.bind": f"0.0.0.0:{port}",
        "listen.container.bind": f"127.0.0.1:{port + 1}",
        "listen.operator.bind": f"127.0.0.1:{port + 2}",
    }
    if auth:
        settings["auth.mode"] = "on"
    if address:
        settings["listen.peer.advertise"] = address
    if tls is not None:
        files = [Path(os.path.relpath(tls / name, folder)).as_posix() for name in TLS_FILES]
        keys = ("certificate", "key", "client_ca")
        settings["listen.peer.tls"] = dict(zip(keys, files, strict=True))
    return settings


def configuration_text(
    node: str,
    engine: str,
    routes: str,
    folder: Path,
    settings: dict[str, Any],
) -> str:
    """Return a new configuration: every setting with its meaning.

    The limits of memory and disk are a share of this machine's. ``folder`` is the folder of the
    configuration, and ``routes`` the name of the route file in it. ``settings`` are values that
    replace the defaults, by the paths of the settings.
    """
    memory = None
    if engine == "docker":
        memory = _memory_of_docker()
    disk = shutil.disk_usage(nearest_existing(folder.resolve())).total
    chosen = {
        "node.id": node,
        "engine.kind": engine,
        "route_table.file": routes,
        "storage.url": f"file://{folder.resolve() / DEFAULT_STORAGE}",
        "data.grants": "listed",
        "secrets.mode": "refuse",
        "resources.memory_gib": _share_of(memory or this_machine().memory),
        "resources.disk_gib": _share_of(disk),
        **settings,
    }
    lines = [
        f"# {t('Configuration of one BFIA interconnection gateway.')}",
        f"# {t('Environment variables take precedence over this file:')}",
        f"# {t('BFIA_GATEWAY__ENGINE__KIND=process stands for engine.kind.')}",
        "",
        *_section_lines(Settings, None, "", chosen),
    ]
    return "\n".join(lines) + "\n"


def _share_of(size: int) -> float:
    """Return the share of a number of bytes that jobs may use, in GiB; at least 0.1."""
    return max(round(size * _SHARE / GIB, 1), 0.1)


def _section_lines(
    model: type[BaseModel],
    values: BaseModel | None,
    path: str,
    chosen: dict[str, Any],
) -> Iterator[str]:
    """Yield the lines of each setting of a section.

    ``values`` is the parent section's default value for the section; None if it has none, so that
    the defaults of the model's fields count.
    """
    for name, field in model.model_fields.items():
        if values is None:
            value = field.get_default(call_default_factory=True)
        else:
            value = getattr(values, name)
        yield from _setting_lines(f"{path}{name}", field, value, chosen)


def _setting_lines(
    path: str,
    field: FieldInfo,
    value: Any,
    chosen: dict[str, Any],
) -> Iterator[str]:
    """Yield the line of a setting, or all lines of a section."""
    indent = "  " * path.count(".")
    name = path.rpartition(".")[2]
    if path == "engine.process":  # its default has no images, so an example shows their form
        yield f"{indent}process:"
        yield f"{indent}  # {t('Image name -> the command that stands for it, such as')}"
        yield f"{indent}  # {_IMAGES}"
        yield f"{indent}  images: {{}}"
        return
    section = _section_model(field, value)
    if section is None:
        meaning = _in_use_language(field.description or "")
        comment = f"  # {meaning}" if meaning else ""
        yield f"{indent}{name}: {_yaml(chosen.get(path, value))}{comment}"
        return
    meaning = _in_use_language(field.description or section.__doc__ or "")
    if meaning:
        yield f"{indent}# {meaning}"
    yield f"{indent}{name}:"
    defaults = value if isinstance(value, BaseModel) else None
    yield from _section_lines(section, defaults, f"{path}.", chosen)


def _section_model(field: FieldInfo, value: Any) -> type[BaseModel] | None:
    """Return the model of a section; None for a single setting, or a section absent by default."""
    # Undefined: a required setting or section, which has no default.
    may_be_section = isinstance(value, BaseModel) or value is PydanticUndefined
    if not may_be_section:  # a plain value; None for a section that is absent by default
        return None
    alternatives = getattr(field.annotation, "__args__", ())  # of a union, such as a model or None
    for candidate in (field.annotation, *alternatives):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _in_use_language(description: str) -> str:
    """Return the description of a setting in one line and in the language in use."""
    line = " ".join(description.split())
    if language_in_use() == CHINESE:
        return of_settings().get(line, line)
    return line


def _yaml(value: Any) -> str:
    """Return a setting's value in one line of JSON, which is YAML, too."""
    if isinstance(value, list):
        return json.dumps([str(entry) for entry in value])
    if not isinstance(value, (bool, int, float, dict, NoneType)):
        value = str(value)  # a path, a URL or a choice
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- the route table and the key


def empty_routes() -> str:
    """Return a route table without entries; an example in its comments shows the form of one."""
    lines = [
        t("Node id -> how its gateway is reached. This node itself needs no entry."),
        t('Ids are text: quote those that YAML would read otherwise, such as "0123".'),
        "",
    ]
    for line, meaning in _ROUTES:
        lines.append(f"{line:<26} # {t(meaning)}" if meaning else line)
    lines.append(t("All keys: bfia-gateway docs routes"))
    comments = [f"# {line}".rstrip() for line in lines]
    return "\n".join([*comments, "{}"]) + "\n"


def ensure_signing_key(folder: Path) -> str:
    """Return the id of the key with which a new node signs; create the key if there is none.

    Also creates the key to which partners seal messages.
    """
    state_dir = folder / str(Settings.model_fields["state_dir"].default)
    ring = Keyring(state_dir)
    key = ring.signing or ring.make("ed25519")
    SealingKeyFile(state_dir).ensure(key)
    return key.id
