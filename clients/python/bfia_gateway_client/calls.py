"""The shared parts of all calls.

These are their base class, paths of the API, the lookup of providers by partial names, and texts
for people.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from bfia_gateway_client.errors import Invalid, Problem, Refused, invalid

if TYPE_CHECKING:
    from pydantic import BaseModel

    from bfia_gateway_client.wire import Wire

W = TypeVar("W", bound="Wire")
M = TypeVar("M", bound="BaseModel")

Json = Mapping[str, Any]  # a JSON object
Entries = list  # `list` itself, where a method `list` hides it
MAX_PAGE_SIZE = 1000  # entries that a node returns at most per request
# Placeholders in the advice for a failure's reason: NODE or N for a node, JOB for a job, T for a
# task, P for a party.
_PLACEHOLDER = re.compile(r"\b(NODE|JOB|[TPN])\b")


class Group(Generic[W]):
    """Calls about one subject, made over a wire."""

    def __init__(self, wire: W) -> None:
        self._wire: W = wire

    async def _ask(
        self,
        model: type[M],
        method: str,
        path: str,
        body: Any = None,
        **options: Any,
    ) -> M:
        """Send a request and return its response as a model. ``options``: as in `Wire.call`."""
        response = await self._wire.call(method, path, body, **options)
        return model.model_validate(response)

    async def _list(
        self,
        model: type[M],
        path: str,
        key: str,
        limit: int,
        query: Json | None = None,
    ) -> list[M]:
        """Return up to ``limit`` entries of a list, page by page.

        ``key``: the list's key in a response; ``query``: further parameters. Raises `Invalid` for a
        limit below 1.
        """
        if limit < 1:
            raise invalid(Problem("limit", "must be 1 or more", limit))
        entries: list[M] = []
        after: str | None = ""  # where the next page begins; None after the last
        while after is not None and len(entries) < limit:
            page_size = min(limit - len(entries), MAX_PAGE_SIZE)
            page_query = {**(query or {}), "limit": page_size, "after": after}
            response = await self._wire.call("GET", path, query=page_query)
            for entry in response[key]:
                entries.append(model.model_validate(entry))
            after = response.get("next")
        return entries


# ------------------------------------------------------------ paths


def path_of(kind: str, *parts: str) -> str:
    """Return a path of the node's API, such as ``/api/v1/jobs/JOB`` for jobs and JOB.

    Each of the ``parts`` becomes one segment, whatever its characters.
    """
    segments = [segment(part) for part in parts]
    return "/".join(["/api/v1", kind, *segments])


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


# ------------------------------------------------------------ providers


async def provider_named(
    wire: "Wire",
    name: str,
    *,
    retired: bool = False,
) -> str:
    """Return the full name, name:version@device, of a provider by a full or partial name.

    If several providers match, active ones are preferred, or retired ones with ``retired``. Raises
    `Invalid` (PROVIDER_AMBIGUOUS) if several remain, and `Refused` (PROVIDER_UNKNOWN) if no
    provider matches.
    """
    # A full name is not looked up: the call that uses it reports an unknown provider.
    is_full_name = ":" in name and "@" in name
    if is_full_name:
        return name
    matches = await _list_providers(wire, provider_name=name)
    preferred = [provider for provider in matches if provider["retired"] == retired]
    full_names = [str(provider["provider_name"]) for provider in preferred or matches]
    match full_names:
        case []:
            raise await _unknown_provider(wire, name)
        case [full_name]:
            return full_name
    raise _ambiguous_provider(name, full_names)


async def _list_providers(wire: "Wire", **query: str) -> list[dict[str, Any]]:
    """Return the registered providers that match a query, at most a page of them."""
    page_query = {**query, "limit": MAX_PAGE_SIZE}
    response = await wire.call("GET", path_of("providers"), query=page_query)
    providers: list[dict[str, Any]] = response["providers"]
    return providers


def _ambiguous_provider(name: str, full_names: list[str]) -> Invalid:
    """Return the error for a name that several providers have."""
    choices = ", ".join(full_names)
    return Invalid(
        f"{name} may be any of {choices}: name version and device, too",
        reason="PROVIDER_AMBIGUOUS",
        next_step="Name version and device: name:version@device.",
    )


async def _unknown_provider(wire: "Wire", name: str) -> Refused:
    """Return the error for a name without a provider, with a registered name that resembles it."""
    providers = await _list_providers(wire)
    names = [str(provider["name"]) for provider in providers]
    suggestion = near(name.partition(":")[0], names)
    text = f"no provider {name} is registered"
    if suggestion:
        text += f"; did you mean {suggestion}?"
    return Refused(text, reason="PROVIDER_UNKNOWN")


# ------------------------------------------------------------ texts


def next_step_of(advice: str, job: Json, failure: Json) -> str:
    """Return the next step after a job's failure, with the names of job, task, party and node.

    ``advice``: the advice for the failure's reason. A placeholder whose name is unknown stays.
    """
    node = failure.get("node")
    names = {
        "JOB": job["job_id"],
        "T": failure.get("task"),
        "P": _failed_party(job, failure),
        "N": node,
        "NODE": node,
    }

    def fill_in(placeholder: re.Match[str]) -> str:
        word = placeholder[0]
        return shlex.quote(names[word] or word)

    return _PLACEHOLDER.sub(fill_in, advice)


def _failed_party(job: Json, failure: Json) -> str:
    """Return the label of the first party with the failure's role and node; empty without one."""
    failed_at = (failure.get("role"), failure.get("node"))
    for party in job["parties"]:
        if (party["role"], party["node"]) == failed_at:
            return f"{party['role']}.{party['index']}"
    return ""


def near(word: str, choices: Iterable[str]) -> str:
    """Return the choice that a misspelt word resembles, ignoring case; empty if there is none.

    Only the first 64 characters of the word count: longer texts take long to compare.
    """
    by_lower_case = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(
        word[:64].lower(),
        list(by_lower_case),
        n=1,
    )
    if not matches:
        return ""
    return by_lower_case[matches[0]]
