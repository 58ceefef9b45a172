"""The configuration: one YAML file, the environment over it (``BFIA_GATEWAY__ENGINE__KIND``), read once.

Unknown keys and wrong values are refused all together, each with its path. Nothing else in the project reads the
environment for configuration.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.config.approval_settings import ApprovalSettings
from gateway.config.engine_settings import EngineSettings, Section
from gateway.config.fate_settings import FateSettings
from gateway.config.limit_settings import LimitSettings, ResourceSettings, Retention
from gateway.config.peer_tls import PeerTls
from gateway.config.setting_origins import Origins, origins
from gateway.config.setting_values import (
    DEFAULT_STORAGE,
    Bind,
    DatabaseUrl,
    EventName,
    FileUrl,
    HttpUrl,
    NodeName,
    Token,
)
from gateway.config.settings_file import HIDDEN, read
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.plain_words import join, problems_of

PREFIX = "BFIA_GATEWAY__"


class Node(Section):
    """Who this node is."""

    id: NodeName = Field(description="Id of this node, as peers and jobs name it.")
    institution: str = Field(default="", description="Id of the institution that owns it; default: the node's id.")
    coordinator: str = Field(
        default="", description="Node that schedules the jobs submitted here; default: this node."
    )


class Listener(Section):
    """A place that others reach this node at."""

    bind: Bind = Field(description="Address and port to listen on.")
    advertise: HttpUrl | None = Field(default=None, description="The same place as others reach it.")


class PeerListener(Listener):
    """Where other nodes reach this one."""

    tls: PeerTls | None = Field(default=None, description="Certificate for https; null: plain http.")

    @model_validator(mode="after")
    def _advertised_by_https(self) -> "PeerListener":
        if self.tls is not None and self.advertise is not None and not self.advertise.startswith("https://"):
            raise ValueError("advertise must begin with https:// while tls is set")
        return self


class OperatorListener(Section):
    """Where this node's people and platform reach it."""

    bind: Bind = Field(default="127.0.0.1:7382", description="Address and port of the operator's interface.")


class Listen(Section):
    """Three listeners in one process: for peers, for this node's containers, for its operators."""

    peer: PeerListener = Field(default=PeerListener(bind="0.0.0.0:7380"), description="For other nodes.")
    container: Listener | None = Field(
        default=Listener(bind="127.0.0.1:7381"),
        description="For this node's containers; null serves them on the peer listener, by token only.",
    )
    operator: OperatorListener = Field(default=OperatorListener(), description="For this node's own platform.")


class Database(Section):
    """Where everything is kept that a restart must not lose; several gateways of a node may share one."""

    url: DatabaseUrl = Field(
        default="sqlite:///var/gateway.db",
        description="SQLAlchemy address: sqlite:///path or mysql+pymysql://user:password@host/database.",
    )


class Storage(Section):
    """Where the node's tables, models and reports lie."""

    url: FileUrl | None = Field(
        default=None,
        description="Where tables, models and reports lie: file:///path; default: var/storage beside this file.",
    )

    @property
    def path(self) -> Path:
        """Return the folder."""
        return Path((self.url or DEFAULT_STORAGE).removeprefix("file://"))


class RouteTableSettings(Section):
    """How other nodes are reached."""

    file: Path | None = Field(default=None, description="YAML file: node id -> how to reach it.")


class Data(Section):
    """Where uploads may come from, and who may use what was uploaded."""

    roots: list[Path] = Field(
        default_factory=list,
        description="Folders from which data may be uploaded by server path; empty: that is off.",
    )
    grants: Literal["open", "listed"] = Field(
        default="open",
        description="open: an uploaded dataset never granted to anybody serves jobs with every node; listed: with "
        "none. What jobs left always needs a grant. `init` writes listed.",
    )
    max_upload_bytes: int = Field(default=16 * 1024**3, gt=0, description="Largest uploaded file, in bytes.")


class Auth(Section):
    """Whether the operators' listener asks who it is."""

    mode: Literal["off", "on"] = Field(
        default="off", description="off only while the operator listener is on the loopback address."
    )
    token: Token = Field(
        default="",
        description="An admin's bearer token for mode on; others are made by: bfia-gateway token create.",
    )

    @model_validator(mode="after")
    def _has_token(self) -> "Auth":
        if self.token and len(self.token) < 16:
            raise ValueError("a token must have at least 16 characters")
        return self


class WebhookSettings(Section):
    """A receiver of events."""

    url: HttpUrl = Field(description="Address that each event is posted to, as JSON.")
    events: list[EventName] = Field(default_factory=list, description="Names of events; empty: all of them.")
    secret: str = Field(default="", description="Key of the signature header; empty: no signature.")


class EventSettings(Section):
    """Who is told what becomes of jobs."""

    webhooks: list[WebhookSettings] = Field(
        default_factory=list, description="Receivers: {url, events: [finished, …], secret}."
    )

    @model_validator(mode="after")
    def _each_once(self) -> "EventSettings":
        urls = [hook.url for hook in self.webhooks]
        if len(set(urls)) != len(urls):
            raise ValueError("webhooks must each have a url of their own: name all its events in one entry")
        return self


class ProviderSettings(Section):
    """What a registration of an algorithm image has to fulfil."""

    image: Literal["warn", "require"] = Field(
        default="warn", description="require: an image that is not there refuses its registration, and jobs."
    )
    check_seconds: float = Field(
        default=30.0, gt=0, description="Longest time for checking a large description, in a process of its own."
    )
    fetch_seconds: float = Field(
        default=20.0,
        gt=0,
        description="Longest wait for images at a registration, where engine.docker.pull fetches.",
    )


class Settings(BaseSettings):
    """Everything an admin can set."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    node: Node
    listen: Listen = Listen()
    database: Database = Database()
    storage: Storage = Storage()
    engine: EngineSettings
    route_table: RouteTableSettings = RouteTableSettings()
    data: Data = Data()
    auth: Auth = Auth()
    approval: ApprovalSettings = ApprovalSettings()
    limits: LimitSettings = LimitSettings()
    retention: Retention = Retention()
    events: EventSettings = EventSettings()
    resources: ResourceSettings = ResourceSettings()
    fate: FateSettings = FateSettings()
    providers: ProviderSettings = ProviderSettings()
    state_dir: Path = Field(
        default=Path("var"), description="Folder of everything else that is kept: logs, spools."
    )

    _origins: Origins = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> Origins:
        """Return where what was set comes from."""
        return self._origins

    @model_validator(mode="after")
    def _ports_fit(self) -> "Settings":
        if self.listen.peer.tls is not None and self.listen.container is None:
            text = "must not be null while listen.peer.tls is set: containers do not know its authority"
            raise ValueError(f"listen.container {text}")
        return self

    @model_validator(mode="after")
    def _reached_from_everywhere(self) -> "Settings":
        listener = self.listen.container or self.listen.peer
        if self.engine.docker.daemons and listener.advertise is None:
            raise ValueError(
                "engine.docker.daemons need listen.container.advertise: where containers of every daemon reach "
                "this gateway, such as http://10.0.0.5:7381"
            )
        return self

    @model_validator(mode="after")
    def _guarded(self) -> "Settings":
        host = self.listen.operator.bind.rpartition(":")[0].strip("[]")
        if self.auth.mode == "off" and host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                "auth.mode: off is allowed only while listen.operator.bind is on the loopback address; "
                "set auth.mode: on, and auth.token or `bfia-gateway token create`"
            )
        return self


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the configuration. Raises `Invalid` with every problem and its path.

    Relative paths are relative to the configuration file's folder (to the working folder without a file).
    """
    text, data = read(path) if path is not None else ("", {})
    data = _merged(data, overrides or {})
    base = path.resolve().parent if path is not None else Path.cwd()
    unknown = [
        Problem(name, "is no setting; see `bfia-gateway init`", HIDDEN)
        for name in os.environ
        if name.startswith(PREFIX) and name[len(PREFIX) :].partition("__")[0].lower() not in Settings.model_fields
    ]
    try:
        settings = _from(data)
    except ValidationError as error:
        found = [
            one._replace(path=join(e["loc"]) or "settings", got=_shown(e["loc"], one.got))
            for e, one in zip(error.errors(), problems_of(error.errors(), Settings), strict=True)
        ]
        raise Invalid([*unknown, *found]) from error
    except SettingsError as error:  # an environment variable for a section that is no JSON
        raise Invalid([*unknown, Problem(f"{PREFIX}…", str(error), HIDDEN)]) from error
    if unknown:
        raise Invalid(unknown)
    settings = _anchored(settings, base)
    settings._origins = origins(path, text, overrides or {}, os.environ, PREFIX)
    return settings


def _shown(path: tuple[int | str, ...], value: Any) -> Any:
    """Return what was found at the path, but no secret."""
    if not path:
        return None
    if (path[0] == "auth" and path[-1] != "mode") or path[0] in ("events", "fate"):
        return HIDDEN
    return without_password(str(value)) if path[0] == "database" else value


def without_password(url: str) -> str:
    """Return the address without its user, password and options."""
    return re.sub(r"(?s)\?.*", "?***", re.sub(r"(?s)://.*@", "://***@", url))


def _from(data: dict[str, Any]) -> Settings:
    class Read(Settings):
        @classmethod
        def settings_customise_sources(  # the environment over the file, nothing else
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return env_settings, InitSettingsSource(settings_cls, init_kwargs=data)

    return Settings.model_construct(**dict(Read()))


def _merged(data: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(data)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result


def _anchored(settings: Settings, base: Path) -> Settings:
    def at(path: Path) -> Path:
        return path if path.is_absolute() else base / path

    url = settings.database.url
    if url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
        url = f"sqlite:///{base / url.removeprefix('sqlite:///')}"
    storage = settings.storage.url
    if storage is None:
        storage = f"file://{base / DEFAULT_STORAGE}"
    file = settings.route_table.file
    docker = settings.engine.docker.below(at)
    peer = settings.listen.peer
    if peer.tls is not None:
        peer = peer.model_copy(update={"tls": peer.tls.below(base)})
    return settings.model_copy(
        update={
            "listen": settings.listen.model_copy(update={"peer": peer}),
            "state_dir": at(settings.state_dir),
            "database": Database(url=url),
            "storage": Storage(url=storage),
            "route_table": RouteTableSettings(file=at(file) if file else None),
            "engine": settings.engine.model_copy(update={"docker": docker}),
            "data": settings.data.model_copy(update={"roots": [at(r) for r in settings.data.roots]}),
        }
    )
