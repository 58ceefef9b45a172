"""What the shell offers for an argument: names that the node knows. Whatever goes wrong, it offers nothing."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, CallFailed, connect

_PATIENCE = 2.0
"""seconds"""
_MOST = 100

Offer = Callable[[typer.Context, str], list[str]]


def _offering(path: str, names: Callable[[Any], Iterable[str]], **query: Any) -> Offer:
    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        config = Path(str(ctx.params.get("config") or DEFAULT_CONFIG))
        with suppress(CallFailed, OSError, LookupError, TypeError):
            with connect(config, str(ctx.params.get("url") or ""), timeout=_PATIENCE) as node:
                found = dict.fromkeys(names(node.get(path, **query)))
            return [name for name in found if name.startswith(incomplete)][:_MOST]
        return []

    return offer


jobs = _offering("/api/v1/jobs", lambda found: (job["job_id"] for job in found["jobs"]), limit=_MOST)
JobId = Annotated[str, typer.Argument(help="The job's id.", autocompletion=jobs)]
"""the argument of every command about one job"""
nodes = _offering("/api/v1/routes", lambda found: (route["node"] for route in found["routes"]), limit=1000)
datasets = _offering(
    "/api/v1/datasets", lambda found: (one["dataset_id"] for one in found["datasets"]), limit=1000
)
components = _offering(
    "/api/v1/providers",
    lambda found: (f"{p['name']}:{p['version']}/{name}" for p in found["providers"] for name in p["components"]),
    retired="false",
    limit=1000,
)
providers = _offering(
    "/api/v1/providers", lambda found: (one["provider_name"] for one in found["providers"]), limit=1000
)
