"""Options that commands share, and the completion of names."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, TOKEN, URL, CallFailed, connect
from gateway.data.reading import NotFit

# Names without characters that a shell interprets: it executes the completed line.
_SAFE_NAME = re.compile(r"\w[\w#.:@/+,=%-]*")
_COMPLETION_TIMEOUT = 2.0  # seconds; a slower node completes nothing
_COMPLETION_LIMIT = 100  # names offered


def paged(limit: int = 100) -> dict[str, tuple[Any, Any]]:
    """Return the options of a list that comes in pages."""
    after = typer.Option(help="The next page: what the last one ended with.")
    how_many = typer.Option(min=1, max=1000, help="How many.")
    return {
        "after": (Annotated[str, after], ""),
        "limit": (Annotated[int, how_many], limit),
    }


# ---------------------------------------------------------------- completion of names


def _completion(
    path: str,
    names_in: Callable[[Any], Iterable[str]],
    **query: Any,
) -> Any:
    """Return a completion by the names in a list of the node.

    ``path`` and ``query`` select the list, ``names_in`` yields the names of its first page.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        """Return the matching names; typer calls this."""
        config = Path(str(ctx.params.get("config") or DEFAULT_CONFIG))
        url = str(ctx.params.get("url") or "")
        # Whatever goes wrong: a completion may not print an error into the user's line.
        with suppress(CallFailed, NotFit, OSError, LookupError, TypeError):
            with connect(config, url, timeout=_COMPLETION_TIMEOUT) as node:
                names = list(names_in(node.get(path, limit=1000, **query)))
            return _matching(names, incomplete)
        return []

    return complete


def _matching(names: Iterable[str], beginning: str) -> list[str]:
    """Return the first safe names with this beginning, each once; see `_SAFE_NAME`."""
    matching: dict[str, None] = {}
    for name in names:
        if name.startswith(beginning) and _SAFE_NAME.fullmatch(name):
            matching[name] = None
    return list(matching)[:_COMPLETION_LIMIT]


def _fields_of(
    list_key: str,
    field: str,
) -> Callable[[Any], Iterator[str]]:
    """Return a function that yields one field of each entry in the list of a page."""

    def values(page: Any) -> Iterator[str]:
        for entry in page[list_key]:
            yield entry[field]

    return values


def _component_names(page: Any) -> Iterator[str]:
    """Yield the full name of each component of the providers in a page."""
    for provider in page["providers"]:
        for name in provider["components"]:
            yield f"{provider['name']}:{provider['version']}/{name}"


_jobs = _completion("/api/v1/jobs", _fields_of("jobs", "job_id"))
nodes = _completion("/api/v1/routes", _fields_of("routes", "node"))
datasets = _completion(
    "/api/v1/datasets", _fields_of("datasets", "dataset_id"), unregistered="false"
)
providers = _completion("/api/v1/providers", _fields_of("providers", "provider_name"))
components = _completion("/api/v1/providers", _component_names, retired="false")

# ---------------------------------------------------------------- options and arguments

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
