"""Settings of FATE's own protocol."""

from pydantic import Field

from gateway.engine_settings import Section


class FateSettings(Section):
    """FATE-Flow's own protocol, beside the standard's."""

    enabled: bool = Field(
        default=False,
        description="Serve /v2/partner and /v2/scheduler to peers and FATE's client API to operators.",
    )
