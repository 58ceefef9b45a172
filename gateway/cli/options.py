"""Options that commands share, and the completion of names."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, TOKEN, URL, CallFailed, connect
from gateway.data.reading import NotFit

_PLAIN = re.compile(r"\w[\w#.:@/+,=%-]*")
"""names that a shell takes for nothing else: it runs what it has completed"""


def paged(limit: int = 100) -> dict[str, tuple[Any, Any]]:
    """Return the options of a list that comes in pages."""
    return {
        "after": (
            Annotated[str, typer.Option(help="The next page: what the last one ended with.")],
            "",
        ),
        "limit": (
            Annotated[
                int,
                typer.Option(
                    min=1,
                    max=1000,
                    help="How many.",
                ),
            ],
            limit,
        ),
    }


def _names(
    path: str,
    names: Callable[[Any], Iterable[str]],
    **query: Any,
) -> Any:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        config = Path(str(ctx.params.get("config") or DEFAULT_CONFIG))
        with suppress(CallFailed, NotFit, OSError, LookupError, TypeError):
            with connect(config, str(ctx.params.get("url") or ""), timeout=2.0) as node:
                found = dict.fromkeys(names(node.get(path, limit=1000, **query)))
            return [
                name for name in found if name.startswith(incomplete) and _PLAIN.fullmatch(name)
            ][:100]
        return []

    return complete


_jobs = _names("/api/v1/jobs", lambda found: (job["job_id"] for job in found["jobs"]))
nodes = _names("/api/v1/routes", lambda found: (route["node"] for route in found["routes"]))
datasets = _names(
    "/api/v1/datasets",
    lambda found: (one["dataset_id"] for one in found["datasets"]),
    unregistered="false",
)
providers = _names(
    "/api/v1/providers", lambda found: (one["provider_name"] for one in found["providers"])
)
components = _names(
    "/api/v1/providers",
    lambda found: (
        f"{p['name']}:{p['version']}/{name}" for p in found["providers"] for name in p["components"]
    ),
    retired="false",
)

Config = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="The node's configuration file, for its address and token."
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar=URL, help=f"The node's operator listener; the token is then {TOKEN}."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the history.")]
JobId = Annotated[
    str,
    typer.Argument(
        help="The job's id or its beginning; last: the newest job.", autocompletion=_jobs
    ),
]
NodeId = Annotated[str, typer.Argument(help="Id of the other node.", autocompletion=nodes)]
