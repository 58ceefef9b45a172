"""The sections ``route_table``, ``outbound``, ``trust`` and ``fate``: the way to partners."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from gateway.config.values import (
    COMMAND_OF_SECRET,
    FILE_OF_SECRET,
    DirectHost,
    ProxyUrl,
    Section,
    require,
    require_one_source,
)
from route_table.proxies import DefaultProxy


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


class TrustSettings(Section):
    """Requirements for jobs with other nodes."""

    level: Literal["open", "known", "contract", "permit"] = Field(
        default="known",
        description="open: nothing, for tests only; known: a route; contract: a contract in force "
        "with every other node of the job, too; permit: for each dataset here also a valid permit.",
    )


class FateApp(Section):
    """Credentials with which one FATE site signs its requests to another."""

    app_id: str = Field(min_length=1, description="Its id, which is sent.")
    app_token: str = Field(default="", description="Its token, which is not sent.")
    app_token_file: Path | None = Field(
        default=None,
        description=FILE_OF_SECRET,
    )
    app_token_command: list[str] = Field(
        default_factory=list,
        description=COMMAND_OF_SECRET,
    )

    @model_validator(mode="after")
    def _one_source(self) -> "FateApp":
        """Require one source of the token."""
        require_one_source(self, "app_token")
        sources = [self.app_token, self.app_token_file, self.app_token_command]
        require(any(sources), "an application needs app_token, app_token_file or app_token_command")
        return self


class FateSite(Section):
    """The agreement with one FATE site: the signing of requests and the device of its components.

    Without an application (null), requests in that direction are not signed.
    """

    sends: FateApp | None = Field(
        default=None, description="Application id and token that the site gave this node."
    )
    expects: FateApp | None = Field(
        default=None,
        description="Application id and token that this node gave the site; "
        "requests without them are refused.",
    )
    device: Literal["docker", "k8s", "local"] = Field(
        default="docker",
        description="Device under which the site has registered the providers of our jobs.",
    )


class FateSettings(Section):
    """FATE-Flow's own protocol, in addition to the standard's."""

    enabled: bool = Field(
        default=False,
        description="Serve /v2/partner and /v2/scheduler to peers.",
    )
    sites: dict[str, FateSite] = Field(
        default_factory=dict,
        description="Party id -> the agreement with the site: {sends: …, expects: …, device: "
        "docker}.",
    )
