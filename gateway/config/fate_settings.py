"""Settings of FATE's own protocol."""

from typing import Literal

from pydantic import Field

from gateway.auth import Role
from gateway.config.engine_settings import Section


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
