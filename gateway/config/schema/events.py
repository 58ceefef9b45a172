"""The section ``events``: receivers of the events of jobs."""

from pathlib import Path

from pydantic import Field, model_validator

from gateway.config.values import (
    COMMAND_OF_SECRET,
    FILE_OF_SECRET,
    EventName,
    HttpUrl,
    Section,
    require,
    require_one_source,
)


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
