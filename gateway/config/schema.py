"""The configuration: one YAML file, the environment over it (``BFIA_GATEWAY__ENGINE__KIND``), read once.

Unknown keys and wrong values are refused all together, each with its path. Nothing else in the project reads the
environment for configuration.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.auth import Role
from gateway.config.loader import HIDDEN, Origins, origins, read
from gateway.domain import validation
from gateway.domain.events import NAMES
from gateway.domain.problems import Problem
from gateway.errors import Invalid, join, problems_of
from gateway.http.server import Tls
from route_table import certificates, document
from route_table.model import Identity

_DAEMON = r"^(unix:///.+|tcp://[^/]+|ssh://[^/-][^/]*(/.+)?)$"
_WHOLE_MACHINE = ("/", "/run", "/var", "/var/run", "/proc", "/sys", "/dev", "/etc", "/root")


class Section(BaseModel):
    """A part of the configuration: keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Image(Section):
    """How a local process stands for an image."""

    command: list[str] = Field(min_length=1, description="Command line that stands for the image.")


class ProcessEngineSettings(Section):
    """Algorithms as local processes, with the gateway's own rights."""

    images: dict[str, Image] = Field(default_factory=dict, description="Image name -> the command that runs it.")


class StorageSource(Section):
    """The Docker daemon's view of the storage, where the gateway itself runs in a container."""

    bind: str | None = Field(default=None, description="Folder on the daemon's host.")
    volume: str | None = Field(default=None, description="Name of a Docker volume.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.bind is None) == (self.volume is None):
            raise ValueError("must have exactly one of bind and volume")
        return self


class TlsSettings(Section):
    """Who the daemon is, and who we are; the daemon's certificate is always checked."""

    ca: Path = Field(description="File with the certificate of the authority that signed the daemon's.")
    cert: Path | None = Field(default=None, description="File with our own certificate.")
    key: Path | None = Field(default=None, description="File with its key.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together")
        return self

    def below(self, at: Callable[[Path], Path]) -> Self:
        """Return the same with each path as ``at`` makes it."""
        return self.model_copy(update={name: at(path) for name, path in self if path is not None})


class ExtraMount(Section):
    """A folder or file that containers of one provider see beyond the ordinary."""

    source: Path = Field(description="Folder or file on the daemon's host.")
    target: str = Field(pattern="^/", description="Where the container sees it.")
    read_only: bool = Field(default=True, description="false: the container may write there.")


class Allowance(Section):
    """What an admin grants the containers of one provider. Shown with every run that has it."""

    mounts: list[ExtraMount] = Field(default_factory=list, description="Further mounts.")
    capabilities: list[str] = Field(default_factory=list, description="Linux capabilities, such as NET_RAW.")

    @field_validator("mounts")
    @classmethod
    def _no_engine(cls, value: list[ExtraMount]) -> list[ExtraMount]:
        for mount in value:
            if not mount.source.is_absolute() or ".." in mount.source.parts:
                raise ValueError(f"{mount.source} is no absolute path without ..")
            if mount.source.suffix == ".sock" or str(mount.source) in _WHOLE_MACHINE:
                raise ValueError(f"{mount.source} would hand the whole machine to the container")
            if mount.target.startswith("/bfia"):
                raise ValueError(f"{mount.target} is the gateway's own; choose a target outside of /bfia")
        return value


class DaemonSettings(Section):
    """A further Docker daemon, which providers may name as ``metadata.base_url``."""

    base_url: str = Field(pattern=_DAEMON, description="Its address: tcp://, ssh:// or unix://.")
    tls: TlsSettings | None = Field(default=None, description="Certificates for one at tcp://.")
    storage_source: StorageSource | None = Field(default=None, description="How it sees the storage.")
    runs_source: StorageSource | None = Field(default=None, description="The same for the folder of run logs.")
    outside: bool = Field(default=True, description="Containers there reach other machines, and so this gateway.")
    cpu: float | None = Field(default=None, gt=0, description="Its cores for jobs; null: all that it has.")
    memory_gib: float | None = Field(
        default=None, gt=0, description="Its memory for jobs in GiB; null: all that it has."
    )

    @model_validator(mode="after")
    def _tls_of_tcp(self) -> Self:
        _check_tls(self.tls, self.base_url)
        return self


class SignatureRule(Section):
    """Whose signature the images of a provider, or from a registry, need: cosign's, with a key of one's own."""

    provider: str = Field(default="*", min_length=1, description="Provider's name; * stands for anything.")
    registry: str = Field(
        default="*", min_length=1, description="Its image's registry, host[:port] or docker.io; * for anything."
    )
    keys: list[Path] = Field(min_length=1, description="Files with public keys in PEM; one of them will do.")


class DockerEngineSettings(Section):
    """Algorithms as containers of a Docker daemon."""

    base_url: str = Field(
        default="",
        pattern=f"^$|{_DAEMON}",
        description="Address of the Docker daemon, unix://, tcp:// or ssh://; empty: as DOCKER_HOST says.",
    )
    daemons: list[DaemonSettings] = Field(
        default_factory=list, description="Further daemons; a provider may name these and no others."
    )
    tls: TlsSettings | None = Field(default=None, description="Certificates for a daemon at tcp://.")
    pull: Literal["never", "missing"] = Field(
        default="never", description="missing: images that are not here are fetched before a job is READY."
    )
    registries: list[str] = Field(
        default_factory=list,
        description="Registries images may be fetched from: host[:port], or docker.io for names without one.",
    )
    pull_seconds: float = Field(default=600.0, gt=0, description="Longest time for fetching one image.")
    pull_stale_seconds: float = Field(
        default=120.0, gt=0, description="Without any news for so long, fetching is given up and begun anew, once."
    )
    signatures: list[SignatureRule] = Field(
        default_factory=list,
        description="Images that have to be signed (cosign sign --key); the first rule about an image decides.",
    )
    network: str = Field(default="", description="Bridge network of the containers; default: bfia-<node>.")
    network_mode: Literal["bridge", "host"] = Field(default="bridge", description="host gives up isolation.")
    outside: bool = Field(
        default=False, description="Containers reach other machines; needed if the gateway is on another one."
    )
    user: str = Field(default="65534:65534", description="User of containers whose image would run as root.")
    read_only_root: bool = Field(
        default=False, description="Containers can write only their outputs, their log and a small /tmp."
    )
    storage_source: StorageSource | None = Field(
        default=None, description="How the daemon sees the storage, if the gateway is itself in a container."
    )
    runs_source: StorageSource | None = Field(
        default=None, description="The same for the folder of run logs (var/runs)."
    )

    allow: dict[str, Allowance] = Field(
        default_factory=dict, description="What containers of a provider get beyond the ordinary, by its name."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pull == "missing" and not self.registries:
            raise ValueError("pull: missing needs at least one of registries")
        names = [self.base_url, *(daemon.base_url for daemon in self.daemons)]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"daemons: {twice} is there twice")
        _check_tls(self.tls, self.base_url)
        return self

    def below(self, at: Callable[[Path], Path]) -> Self:
        """Return the same with the path of each certificate as ``at`` makes it."""
        daemons = [daemon.model_copy(update=_tls_below(daemon, at)) for daemon in self.daemons]
        signed = [r.model_copy(update={"keys": [at(key) for key in r.keys]}) for r in self.signatures]
        return self.model_copy(update={"daemons": daemons, "signatures": signed, **_tls_below(self, at)})


def _tls_below(
    settings: DaemonSettings | DockerEngineSettings, at: Callable[[Path], Path]
) -> dict[str, TlsSettings]:
    return {} if settings.tls is None else {"tls": settings.tls.below(at)}


def _check_tls(tls: TlsSettings | None, base_url: str) -> None:
    if tls is not None and not base_url.startswith("tcp://"):
        raise ValueError("tls needs a base_url that begins with tcp://")


def _no_foreign_engine(kind: Any) -> Any:
    if engine := validation.named(kind):
        raise ValueError(validation.rule(engine))
    return kind


class EngineSettings(Section):
    """What runs the algorithms."""

    kind: Annotated[Literal["docker", "process"], BeforeValidator(_no_foreign_engine)] = Field(
        description="docker, or process (runs vendor code with the gateway's own rights). No default."
    )
    docker: DockerEngineSettings = Field(default=DockerEngineSettings(), description="For kind docker.")
    process: ProcessEngineSettings = Field(default=ProcessEngineSettings(), description="For kind process.")

    @model_validator(mode="after")
    def _signatures_kept(self) -> Self:
        if self.kind != "docker" and self.docker.signatures:
            raise ValueError(
                f"docker.signatures cannot be kept by kind {self.kind}, which runs no images:"
                " take it out, or set kind: docker"
            )
        return self


class LimitSettings(Section):
    """What jobs may take of this node, and how long it waits for what."""

    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Cores of a task that asks for none; null: holds none, may use all of the node's.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory in GiB of a task that asks for none; null: holds none, may use 3/4 of the node's.",
    )
    disk_gib: float | None = Field(
        default=None,
        gt=0,
        description="Disk in GiB of a task that asks for none; null: holds none, may use 3/4 of the node's.",
    )
    files: int = Field(
        default=250_000, gt=0, description="Files and folders that a container may make, whatever it asks for."
    )
    pids: int | None = Field(default=512, gt=0, description="Processes and threads of a container.")
    body_bytes: int = Field(default=32 * 1024**2, gt=0, description="Largest body of a control request, in bytes.")
    message_bytes: int = Field(default=256 * 1024**2, gt=0, description="Largest channel message, in bytes.")
    session_bytes: int = Field(default=2 * 1024**3, gt=0, description="Unread bytes of one job's channel.")
    partner_jobs: int = Field(
        default=5000, gt=0, description="Jobs of one partner node that have not ended; a further one is refused."
    )
    partner_requests_per_minute: int = Field(
        default=60_000, gt=0, description="Requests of one partner node in a minute; further ones are refused."
    )
    lost_gateway_seconds: float = Field(
        default=60.0,
        ge=1,
        description="Tasks of a gateway that is silent for this long fail, where several share a database.",
    )
    unreachable_seconds: float = Field(
        default=600.0, gt=0, description="A running job whose node is silent for this long fails."
    )
    orphan_seconds: float | None = Field(
        default=None,
        gt=0,
        description="A job ends here when its scheduler is silent for so long; null: unreachable_seconds + 60.",
    )
    ageing_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A job that waited this long for resources goes before all younger ones, and keeps what one "
        "node granted while it waits for another.",
    )
    schedule_attempts: int = Field(
        default=0, ge=0, description="A job ends when one node had too little free so many times; 0: it waits on."
    )
    schedule_pause_seconds: float = Field(
        default=0.5, gt=0, description="First pause before such a node is asked again; it doubles each time."
    )
    schedule_longest_pause_seconds: float = Field(
        default=30.0,
        gt=0,
        description="The longest such pause; nodes of ours say by themselves when something is free. "
        "A job that has not asked here for three times as long loses its place.",
    )
    engine_down_seconds: float = Field(
        default=60.0, gt=0, description="A container whose engine does not answer for this long counts as failed."
    )
    exit_without_report: Literal["succeeds", "fails"] = Field(
        default="succeeds",
        description="What a container comes to that ends with code 0 and all outputs, and never reported success.",
    )
    run_log_bytes: int = Field(
        default=32 * 1024**2,
        ge=65536,
        description="Largest saved log of a container and stream; of a longer one both ends are kept. "
        "A file that a container writes to its log folder, or a process prints to, keeps that much of each end "
        "while it runs.",
    )
    disk_check_seconds: float = Field(
        default=10.0, gt=0, description="How often the disk is measured that a running container's job has taken."
    )
    storage_reserve_bytes: int = Field(
        default=256 * 1024**2, ge=0, description="No container is started with less than this free on the storage."
    )


class RoleDefaults(Section):
    """What a task of one role needs, where the job does not say."""

    cpu: float | None = Field(default=None, gt=0, description="Cores of a task.")
    memory_gib: float | None = Field(default=None, gt=0, description="Memory of a task in GiB.")
    disk_gib: float | None = Field(default=None, gt=0, description="Disk of a task in GiB.")


class ResourceSettings(Section):
    """What this node has for jobs. Detected; the settings can only make it less, but for the overcommit."""

    cpu: float | None = Field(default=None, gt=0, description="Cores for jobs; null: all that the engine has.")
    memory_gib: float | None = Field(
        default=None, gt=0, description="Memory for jobs in GiB; null: all that the engine has."
    )
    disk_gib: float | None = Field(
        default=None, gt=0, description="Disk for jobs in GiB; null: the whole file system of the storage."
    )
    cpu_overcommit: float = Field(default=1.0, gt=0, le=1000, description="Jobs may hold so many times the cores.")
    memory_overcommit: float = Field(
        default=1.0, gt=0, le=1000, description="Jobs may hold so many times the memory."
    )
    job_share: float = Field(default=1.0, gt=0, le=1, description="Part of all this that one job may hold.")
    roles: dict[str, RoleDefaults] = Field(
        default_factory=dict,
        description="Role, such as arbiter -> what its tasks get that ask for nothing, instead of limits.",
    )


class Retention(Section):
    """What is kept of a job after its end, and for how long; null: for ever."""

    workspace_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Containers, run folders, mailboxes and uploads that outlived their end go after this.",
    )
    logs_seconds: float | None = Field(
        default=30 * 86400.0, ge=0, description="Logs of runs, after the end of their job."
    )
    outputs_seconds: float | None = Field(
        default=None, ge=0, description="Tables, models and reports of a job; what others refer to stays."
    )
    jobs_seconds: float | None = Field(
        default=None, ge=0, description="The job itself with its logs and outputs; a line that it was there stays."
    )
    every_seconds: float = Field(default=60.0, gt=0, description="Pause between two cleanings.")


NODE_RULE = f"{document.NODE_RULE}, such as JG0100001100000010"

DEFAULT_STORAGE = "var/storage"
"""Beside the configuration file."""


def _bind(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must read <address>:<port>, such as 127.0.0.1:7380")
    return value


def _http(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    return value.rstrip("/")


def _database(value: str) -> str:
    if value.startswith("sqlite+pysqlite:"):  # the same by its longer name
        value = "sqlite:" + value.removeprefix("sqlite+pysqlite:")
    if value.startswith("sqlite:"):
        if not re.fullmatch(r"sqlite:///[^?]+", value) or value == "sqlite:///:memory:":
            raise ValueError("must name a file: sqlite:///path, without options")
        return value
    parts = urlsplit(value)
    try:
        usable = parts.scheme == "mysql+pymysql" and parts.hostname and parts.path.strip("/") and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable:
        raise ValueError("must read sqlite:///path or mysql+pymysql://user:password@host:port/database")
    return value


def _file_url(value: str) -> str:
    if not value.startswith("file://"):
        raise ValueError(f"storage kind {value.partition(':')[0]!r} is not supported yet; use file:///path")
    if not value.startswith("file:///"):
        raise ValueError("must be file:// and an absolute path: file:///path")
    return value


def _token(value: str) -> str:
    if value.lower().startswith("change-me"):
        raise ValueError("is still the example's; put one of your own, such as from: openssl rand -hex 24")
    return value


def is_node(value: str) -> bool:
    """Tell whether a node may be called so: what addresses, headers and partners' route tables can hold."""
    return document.NODE_ID.fullmatch(value) is not None


def _node(value: str) -> str:
    if not is_node(value):
        raise ValueError(NODE_RULE)
    return value


def _event(value: str) -> str:
    if value not in NAMES:
        raise ValueError(f"must be among {', '.join(NAMES)}")
    return value


Bind = Annotated[str, AfterValidator(_bind)]

EventName = Annotated[str, AfterValidator(_event)]

HttpUrl = Annotated[str, AfterValidator(_http)]

NodeName = Annotated[
    str,
    BeforeValidator(lambda v: str(v) if isinstance(v, int) and not isinstance(v, bool) else v),
    AfterValidator(_node),
]

DatabaseUrl = Annotated[str, AfterValidator(_database)]

FileUrl = Annotated[str, AfterValidator(_file_url)]

Token = Annotated[str, AfterValidator(_token)]


PATH = "listen.peer.tls"
_NAMES = {f"{PATH}.ca": f"{PATH}.client_ca"}


class PeerTls(Section):
    """PEM files; they are read at the start."""

    certificate: Path = Field(description="PEM file of this node's certificate, with its chain.")
    key: Path = Field(description="PEM file of its key, without a password.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of peers' certificates; null: peers need not show one.",
    )

    revoked: Path | None = Field(
        default=None,
        description="File of revocation lists signed by client_ca, PEM or DER; read again when it changes.",
    )

    def below(self, folder: Path) -> "PeerTls":
        """Return the same with its relative paths below a folder."""
        paths = {name: folder / path for name, path in self if path is not None}
        return self.model_copy(update=paths)

    @property
    def identity(self) -> Identity:
        """The same as routes have it."""
        ca = str(self.client_ca) if self.client_ca is not None else None
        return Identity(ca, str(self.certificate), str(self.key))


def problems(tls: PeerTls, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with the files."""
    for found in certificates.problems(tls.identity, PATH, now):
        yield Problem(_NAMES.get(found.path, found.path), found.rule, found.got)
    if tls.revoked is not None and tls.client_ca is None:
        yield Problem(
            f"{PATH}.revoked", "needs client_ca, whose authorities sign revocation lists", str(tls.revoked)
        )
    elif tls.revoked is not None:
        try:
            certificates.revocation_lists(str(tls.revoked), str(tls.client_ca))
        except certificates.Unusable as error:
            yield Problem(f"{PATH}.revoked", str(error), str(tls.revoked))


def unproven(bind: str, tls: PeerTls | None) -> str:
    """Return what is open where other machines reach the listener and peers prove nothing; empty where they do."""
    host = bind.rpartition(":")[0].strip("[]")
    try:
        here_only = host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name: who reaches it is not known here
        here_only = False
    if here_only or (tls is not None and tls.client_ca is not None):
        return ""
    return f"whoever reaches {bind} can claim to be any peer: peers show no certificate"


def served(tls: PeerTls | None) -> dict[str, Tls]:
    """Return which listeners are served by https, for `gateway.http.server.serve`. Raises `Invalid`."""
    if tls is None:
        return {}
    found = list(problems(tls, datetime.now(UTC)))
    if found:
        raise Invalid(found, reason="CERTIFICATE_UNUSABLE")
    files = tls.identity
    return {"peer": Tls(str(files.certificate), str(files.key), files.ca)}


class FateApp(Section):
    """An application that one site gave another to sign with."""

    app_id: str = Field(min_length=1, description="Its id, which is sent.")
    app_token: str = Field(min_length=1, description="Its token, which is not sent.")


class FateSite(Section):
    """What is agreed with one FATE site: how requests are signed (null: not at all), where its components run."""

    sends: FateApp | None = Field(default=None, description="What the site gave this node.")
    expects: FateApp | None = Field(default=None, description="What this node gave the site; without it: refused.")
    device: Literal["docker", "k8s", "local"] = Field(
        default="docker", description="Under which device the site has registered the providers of our jobs."
    )


class FateClient(Section):
    """An application by which FATE's own tools are let in where ``auth.mode`` is on."""

    app_token: str = Field(min_length=16, description="Its token, which is not sent.")
    role: Role = Field(default=Role.PLATFORM, description="What it may do: admin, vendor, platform or viewer.")


class FateSettings(Section):
    """FATE-Flow's own protocol, beside the standard's."""

    enabled: bool = Field(
        default=False,
        description="Serve /v2/partner and /v2/scheduler to peers and FATE's client API to operators.",
    )
    sites: dict[str, FateSite] = Field(
        default_factory=dict,
        description="Party id -> what is agreed with the site: {sends: …, expects: …, device: docker}.",
    )
    clients: dict[str, FateClient] = Field(
        default_factory=dict, description="Application id of FATE's tools -> {app_token: …, role: …}."
    )


class ApprovalRule(Section):
    """What is decided on a task at a party here of which all patterns match; ``*`` stands for anything."""

    source: str = Field(default="*", description="The node that wants the job.")
    component: str = Field(default="*", description="provider/name of the task's component.")
    dataset: str = Field(default="*", description="Id of the task's own data here, or <namespace>#<name>.")
    role: str = Field(default="*", description="The role that this node plays.")
    command: Literal["*", "create", "start"] = Field(
        default="*", description="create: taking the job; start: its start, where only a reject counts."
    )
    decide: Literal["approve", "reject", "ask"] = Field(description="approve, reject, or ask a person.")


class ApprovalSettings(Section):
    """Who has to agree before this node takes part in a job of another one."""

    mode: Literal["off", "rules", "person"] = Field(
        default="off", description="off: nobody; rules: they decide, else a person; person: always a person."
    )
    deadline_seconds: float = Field(
        default=86_400.0, gt=0, le=31_536_000, description="A job on which nobody has decided by then is refused."
    )
    rules: list[ApprovalRule] = Field(
        default_factory=list, description="The first that matches a task decides; reject holds in every mode."
    )


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
