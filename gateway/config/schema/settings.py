"""The settings of a node as a whole, with the checks that concern several sections."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.config.schema.access import Auth, SecretSettings
from gateway.config.schema.engine import EngineSettings, NamedEngine, ProviderSettings
from gateway.config.schema.events import EventSettings
from gateway.config.schema.identity import IdentitySettings
from gateway.config.schema.jobs import (
    ApprovalSettings,
    JobsSettings,
    LimitSettings,
    ResourceSettings,
    Retention,
)
from gateway.config.schema.listeners import Listen, Listener, Node
from gateway.config.schema.partners import (
    FateSettings,
    OutboundSettings,
    RouteTableSettings,
    TrustSettings,
)
from gateway.config.schema.storage import Data, Database, RemoteSettings, Storage
from gateway.config.schema.tee import TeeSettings
from gateway.config.values import StorageName, require

PREFIX = "BFIA_GATEWAY__"  # the beginning of each environment variable that sets a setting


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
