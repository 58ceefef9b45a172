"""``/api/v1/settings``: every value in force, and where it comes from."""

from typing import Any

from gateway.config.effective import effective
from gateway.config.schema import Settings
from gateway.http.paths import Paths


def router(settings: Settings) -> Paths:
    """Return the path."""
    router = Paths(tags=["operators"])

    @router.get("/api/v1/settings", summary="Every setting in force, and where it comes from", response_model=None)
    async def shown() -> Any:
        """``origin``: default, file (``where``: file and line), environment (the variable), or command.

        Secrets and passwords are masked.
        """
        return {"settings": effective(settings)}

    return router
