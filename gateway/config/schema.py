"""All settings of a node, with the checks of their values; unknown keys are refused.

`gateway.config.jobs` has the sections about jobs, `gateway.config.engine` the one about engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.auth import Role
from gateway.config.attestation import TeeSettings
from gateway.config.engine import EngineSettings, NamedEngine
from gateway.config.identity import IdentitySettings
from gateway.config.jobs import (
    ApprovalSettings,
    FateSettings,
    JobsSettings,
    LimitSettings,
    ResourceSettings,
    Retention,
    TrustSettings,
)
from gateway.config.values import (
    COMMAND_OF_SECRET,
    DEFAULT_STORAGE,
    FILE_OF_SECRET,
    Bind,
    DatabaseUrl,
    DirectHost,
    EventName,
    FileUrl,
    HttpUrl,
    NetworkName,
    NodeName,
    PeerTls,
    PrivateUrl,
    ProxyUrl,
    RemoteSettings,
    Section,
    StorageName,
    Switch,
    Token,
    require,
    require_one_source,
)
from route_table.proxies import DefaultProxy

MIN_TOKEN_LENGTH = 16  # characters of an admin's token: a shorter one could be guessed


PREFIX = "BFIA_GATEWAY__"  # the beginning of each environment variable that sets a setting


class Node(Section):
    """Identity of this node."""

    id: NodeName = Field(description="Id of this node, as peers and jobs name it.")
    institution: str = Field(
        default="", description="Id of the institution that owns it; default: the node's id."
    )
    coordinator: str = Field(
        default="", description="Node that schedules the jobs submitted here; default: this node."
    )

    @property
    def scheduler(self) -> str:
        """The node that schedules the jobs submitted here."""
        return self.coordinator or self.id


class Listener(Section):
    """A listener of this node: the address that it binds, and the address that clients use."""

    bind: Bind = Field(description="Address and port to listen on.")
    advertise: HttpUrl | None = Field(default=None, description="Address at which others reach it.")


class PeerListener(Listener):
    """The listener for other nodes."""

    tls: PeerTls | None = Field(
        default=None, description="Certificate for https; null: plain http."
    )
    trusted_proxies: list[NetworkName] = Field(
        default_factory=list,
        description="Addresses or networks of reverse proxies that end TLS and hand on the "
        "client's certificate in the header client-cert. With them, other requests are refused.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "PeerListener":
        """Require https in the advertised address of a listener with TLS, and one end of TLS."""
        if self.tls is not None and self.advertise is not None:
            require(
                self.advertise.startswith("https://"),
                "advertise must begin with https:// while tls is set",
            )
        has_both = all([self.trusted_proxies, self.client_ca])
        require(
            not has_both,
            "trusted_proxies and tls.client_ca exclude each other: a proxy would show its own "
            "certificate",
        )
        return self

    @property
    def asks_for_certificate(self) -> bool:
        """Whether every request needs a client certificate, shown here or at a trusted proxy."""
        return any([self.trusted_proxies, self.client_ca])

    @property
    def client_ca(self) -> Path | None:
        """The file of the authorities of clients' certificates; None if clients show none."""
        return getattr(self.tls, "client_ca", None)


class OperatorListener(Section):
    """The listener for this node's people and platform."""

    bind: Bind = Field(
        default="127.0.0.1:7382", description="Address and port of the operator's interface."
    )
    advertise: HttpUrl | None = Field(
        default=None,
        description="Address at which people reach it, for links to the console; partners that "
        "speak FATE's protocol see it as board_url.",
    )


class Listen(Section):
    """Three listeners in one process: for peers, for this node's containers, for its operators."""

    peer: PeerListener = Field(
        default=PeerListener(bind="0.0.0.0:7380"), description="For other nodes."
    )
    container: Listener | None = Field(
        default=Listener(bind="127.0.0.1:7381"),
        description="For this node's containers; null serves them on the peer listener, by token "
        "only.",
    )
    operator: OperatorListener = Field(
        default=OperatorListener(), description="For this node's own platform."
    )


class Database(Section):
    """The database with all state that must survive a restart; several gateways of a node may
    share one.
    """

    url: DatabaseUrl = Field(
        default="sqlite:///var/gateway.db",
        description="SQLAlchemy address: sqlite:///path, mysql+pymysql://user@host/database or "
        "postgresql+psycopg://user@host/database (extra postgres).",
    )
    password_file: Path | None = Field(
        default=None,
        description="File with the password of the database and nothing else, of mode 0600.",
    )
    password_command: list[str] = Field(
        default_factory=list,
        description="Program and arguments that print the password of the database within 10 s.",
    )

    @model_validator(mode="after")
    def _one_password(self) -> "Database":
        """Refuse two passwords, and one for a database without a user."""
        require_one_source(self, "password")
        if self.password_file is None and not self.password_command:
            return self
        # A password in the URL may come from the environment, which takes precedence.
        require(
            urlsplit(self.url).username,
            "password_file and password_command need the user in url: "
            "mysql+pymysql://user@host/database",
        )
        return self


class Storage(Section):
    """The node's tables, models and reports."""

    url: FileUrl | None = Field(
        default=None,
        description="Folder of tables, models and reports: file:///path; default: var/storage "
        "next to this file.",
    )
    stand_in: Literal["file", "none"] = Field(
        default="file",
        description="file: this folder also serves components whose storageEngine lists none of "
        "this node's storages; none: jobs with such a component are refused (STORAGE_MISMATCH).",
    )

    @property
    def path(self) -> Path:
        """The folder of tables, models and reports; below the working folder if nothing is set."""
        return Path((self.url or DEFAULT_STORAGE).removeprefix("file://"))


class RouteTableSettings(Section):
    """Routes to other nodes."""

    file: Path | None = Field(default=None, description="YAML file: node id -> how to reach it.")


class OutboundSettings(Section):
    """The way of this node's requests to other hosts."""

    proxy: ProxyUrl | None = Field(
        default=None,
        description="HTTP proxy (CONNECT) on the way to partners, receivers of events and the "
        "OpenID provider, such as http://user@proxy:3128; routes may name another one.",
    )
    proxy_password: Path | None = Field(
        default=None, description="File with the password of its user and nothing else."
    )
    direct: list[DirectHost] = Field(
        default_factory=list,
        description="Hosts reached without it: names, endings such as .bank.example, addresses, "
        "networks; this machine always is.",
    )

    @model_validator(mode="after")
    def _has_user_of_password(self) -> "OutboundSettings":
        """Refuse a password without a user, which no proxy would get."""
        has_user = "@" in (self.proxy or "")
        require(
            has_user or self.proxy_password is None,
            "proxy_password needs a user in proxy: http://user@host:port",
        )
        return self

    @property
    def default(self) -> DefaultProxy:
        """The proxy, and the hosts that are reached without it."""
        return DefaultProxy(self.proxy, self.proxy_password, tuple(self.direct))


class Data(Section):
    """Sources of uploads, and the use of uploaded data."""

    roots: list[Path] = Field(
        default_factory=list,
        description="Folders from which data may be uploaded by server path; empty: no upload by "
        "server path.",
    )
    grants: Literal["open", "listed"] = Field(
        default="open",
        description="open: an uploaded dataset without any grant serves jobs with every node; "
        "listed: with none. Outputs of jobs always need a grant. `init` writes listed.",
    )
    max_upload_bytes: int = Field(
        default=16 * 1024**3,
        gt=0,
        description="Largest uploaded file, in bytes.",
    )


class Oidc(Section):
    """An OpenID provider at which people log in to the console."""

    issuer: PrivateUrl = Field(
        description="Address of the provider, exactly as in its metadata.",
        examples=["https://login.bank.example/realms/bank"],
    )
    client_id: str = Field(
        min_length=1,
        description="This console's id there.",
        examples=["bfia-console"],
    )
    client_secret: str = Field(
        default="",
        description="Its secret there; only by the environment, else client_secret_file or "
        "client_secret_command; empty: none.",
    )
    client_secret_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    client_secret_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )
    console: PrivateUrl = Field(
        description="Address at which browsers reach the operators' listener; the provider sends "
        "them back to /api/v1/session/oidc/callback below it.",
        examples=["https://bfia.bank.example"],
    )
    roles: dict[str, Role] = Field(
        min_length=1,
        description="Group -> role, such as {bfia-admins: admin, analysts: platform}; the first "
        "match counts, and a person without a match cannot log in.",
        examples=[{"bfia-admins": "admin", "analysts": "platform"}],
    )
    role_claim: str = Field(
        default="groups",
        min_length=1,
        description="Claim of the ID token with the groups; may be a path: a.b.",
    )
    name_claim: str = Field(
        default="preferred_username",
        min_length=1,
        description="Claim with the name that the audit shows.",
    )
    scopes: list[str] = Field(
        default_factory=lambda: ["openid", "profile"],
        description="Requested scopes; openid must be among them.",
    )
    ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities of the provider's certificate; null: the "
        "system's.",
    )

    @model_validator(mode="after")
    def _complete(self) -> "Oidc":
        """Refuse two secrets, and scopes with which no provider issues an ID token."""
        has_secret_file = self.client_secret_file is not None
        has_two_secrets = self.client_secret and has_secret_file
        require(
            not has_two_secrets,
            "client_secret and client_secret_file exclude each other",
        )
        require_one_source(self, "client_secret")
        require("openid" in self.scopes, "scopes must contain openid")
        return self


class Auth(Section):
    """Whether the operators' listener requires a token, and how people get one."""

    mode: Annotated[Literal["off", "on"], Switch] = Field(
        default="off",
        description="off only while the operator listener is on the loopback address.",
    )
    token: Token = Field(
        default="",
        description="An admin's bearer token for mode on; others are made by: bfia-gateway token "
        "create.",
    )
    token_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    token_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )
    oidc: Oidc | None = Field(
        default=None,
        description="An OpenID provider at which people log in to the console; null: tokens only.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Auth":
        """Refuse a login that ``mode`` turns off, and a token that is easy to guess."""
        if self.oidc is not None:
            require(self.mode == "on", "oidc needs mode: on")
        is_short = 0 < len(self.token) < MIN_TOKEN_LENGTH  # "" stands for no token
        require(not is_short, "a token must have at least 16 characters")
        require_one_source(self, "token")
        return self


class WebhookSettings(Section):
    """An address that receives events of jobs."""

    url: HttpUrl = Field(description="Address that each event is posted to, as JSON.")
    events: list[EventName] = Field(
        default_factory=list, description="Names of events; empty: all."
    )
    secret: str = Field(default="", description="Key of the signature header; empty: no signature.")
    secret_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    secret_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )

    @model_validator(mode="after")
    def _one_source(self) -> "WebhookSettings":
        """Refuse two sources of the secret."""
        require_one_source(self, "secret")
        return self


class EventSettings(Section):
    """Receivers of the events of jobs."""

    webhooks: list[WebhookSettings] = Field(
        default_factory=list, description="Receivers: {url, events: [finished, …], secret}."
    )

    @model_validator(mode="after")
    def _each_once(self) -> "EventSettings":
        """Refuse two webhooks with one address, since deliveries are stored by address."""
        urls = [hook.url for hook in self.webhooks]
        require(
            len(set(urls)) == len(urls),
            "webhooks must each have a url of their own: name all its events in one entry",
        )
        return self


class ProviderSettings(Section):
    """Requirements for the registration of an algorithm image."""

    image: Literal["warn", "require"] = Field(
        default="warn",
        description="require: a missing image causes the refusal of its registration, and of jobs.",
    )


class SecretSettings(Section):
    """Passwords, keys and tokens that settings need."""

    mode: Literal["warn", "refuse"] = Field(
        default="warn",
        description="refuse: no start with a secret in clear in this file, with a secret's file "
        "that others may read, or with a storage that would give runs the node's key without "
        "share_key; warn: `doctor` and the start name them. `init` writes refuse.",
    )


@dataclass(frozen=True)
class Origin:
    """The origin of a setting's value: what set it, and where."""

    kind: str  # default, file, environment or command
    where: str = ""  # file and line, or the variable's name


class Settings(BaseSettings):
    """All settings of a node, checked each by itself and against each other."""

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
    storages: dict[StorageName, RemoteSettings] = Field(
        default_factory=dict,
        description="Other storages by name: {lake: {url: s3://host:port/bucket, username, "
        "password_file}}. Uploads go to the first one; a task reads and writes in "
        "the storage of its data.",
    )
    engine: EngineSettings
    engines: dict[StorageName, NamedEngine] = Field(
        default_factory=dict,
        description="Further engines by their names: {big: {base_url: tcp://10.0.0.9:2376}}. A "
        "provider names one "
        "as metadata.engine, by its base_url or by its device; all others run at engine.",
    )
    route_table: RouteTableSettings = RouteTableSettings()
    outbound: OutboundSettings = OutboundSettings()
    data: Data = Data()
    auth: Auth = Auth()
    secrets: SecretSettings = SecretSettings()
    approval: ApprovalSettings = ApprovalSettings()
    trust: TrustSettings = TrustSettings()
    limits: LimitSettings = LimitSettings()
    jobs: JobsSettings = JobsSettings()
    retention: Retention = Retention()
    events: EventSettings = EventSettings()
    resources: ResourceSettings = ResourceSettings()
    fate: FateSettings = FateSettings()
    providers: ProviderSettings = ProviderSettings()
    identity: IdentitySettings = IdentitySettings()
    tee: TeeSettings = TeeSettings()
    state_dir: Path = Field(
        default=Path("var"), description="Folder of all other persistent data: logs, spools."
    )

    # Both are set by `loader.load`.
    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=dict)
    _base: Path = PrivateAttr(default=Path())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment override the values of the file, and use no other source."""
        return env_settings, init_settings

    @property
    def origins(self) -> Mapping[str, Origin]:
        """The origin of each setting that was set, by its path, such as ``engine.kind``."""
        return self._origins

    @property
    def base(self) -> Path:
        """The folder against which relative paths were resolved."""
        return self._base

    @model_validator(mode="after")
    def _containers_have_listener(self) -> "Settings":
        """Require a separate container listener if peers show certificates, or expect one."""
        needs_listener = bool(self.listen.peer.trusted_proxies)
        is_missing = self.listen.container is None
        require(
            not all([needs_listener, is_missing]),
            "listen.container must not be null while listen.peer.trusted_proxies is set: "
            "containers have no certificate",
        )
        if self.listen.peer.tls is not None:
            require(
                self.listen.container is not None,
                "listen.container must not be null while listen.peer.tls is set: "
                "containers do not know its authority",
            )
        return self

    @model_validator(mode="after")
    def _reached_from_everywhere(self) -> "Settings":
        """Require an advertised address if containers run on other machines than the gateway."""
        listener: Listener = self.listen.peer
        setting = "listen.peer.advertise"
        if self.listen.container is not None:
            listener = self.listen.container
            setting = "listen.container.advertise"
        beginning = self._reason_for_advertising()
        if beginning:
            require(
                listener.advertise is not None,
                f"{beginning} {setting}: where containers of every engine reach this gateway, "
                "such as http://10.0.0.5:7381",
            )
        return self

    def _reason_for_advertising(self) -> str:
        """Return the beginning of the rule that requires an address, such as "engines need".

        It names the setting that puts containers on other machines; "" if no setting does.
        """
        if self.engines:
            return "engines need"
        if self.engine.kind in ("swarm", "kubernetes"):
            return f"engine.kind {self.engine.kind} needs"
        return ""

    @model_validator(mode="after")
    def _engines_apart(self) -> "Settings":
        """Refuse two engines at one address, and further engines next to local processes."""
        main = self.engine.main
        if self.engines:
            require(
                main is not None,
                "engines need engine.kind docker, swarm or kubernetes: local processes see other "
                "folders",
            )
        # Some kinds of engines have no address; those without one never count as repeated.
        addresses = {getattr(main, "base_url", "")}
        for name, engine in self.engines.items():
            is_repeated = engine.base_url and engine.base_url in addresses
            require(
                not is_repeated,
                f"engines.{name}.base_url: {engine.base_url} is there twice",
            )
            addresses.add(engine.base_url)
        return self

    @model_validator(mode="after")
    def _storages_are_reached(self) -> "Settings":
        """Require one user for all HDFS storages, and named DataNodes on a closed network."""
        has_closed_network = self._has_closed_network()
        users = set()  # with the files of their keys
        for name, storage in self.storages.items():
            if storage.kind != "hdfs":
                continue
            users.add((storage.user, storage.principal, storage.keytab))
            if has_closed_network:
                require(
                    storage.datanodes,
                    f"storages.{name}.datanodes must say where HDFS serves its blocks, such as "
                    "[10.0.8.0/24:9866]: containers reach only what is named",
                )
        require(
            len(users) <= 1,
            "storages of kind hdfs must all have the same username, principal and keytab",
        )
        return self

    def _has_closed_network(self) -> bool:
        """Return whether containers reach only the addresses that this node opens for them.

        They do on the bridge network that the gateway itself makes, unless ``outside`` is set.
        """
        docker = self.engine.docker
        conditions = [
            self.engine.kind == "docker",
            docker.network_mode == "bridge",
            not docker.network,
            not docker.outside,
        ]
        return all(conditions)

    @model_validator(mode="after")
    def _guarded(self) -> "Settings":
        """Require tokens at an operator listener that other machines can reach."""
        host = self.listen.operator.bind.rpartition(":")[0].strip("[]")
        is_loopback = host in ("127.0.0.1", "::1", "localhost")
        if self.auth.mode == "off":
            require(
                is_loopback,
                "auth.mode: off is allowed only while listen.operator.bind is on the loopback "
                "address; set auth.mode: on, and auth.token or `bfia-gateway token create`",
            )
        return self
