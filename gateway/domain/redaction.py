"""Redacts what a node learns of a failure at another one: neither the data of others nor their settings.

A job's body goes to each node without the entries of the others (`JobSpec.for_node`). A message that quotes such an
entry, like "dataset x is not granted", would reveal it all the same. Only the submitter, who wrote the entries, and
the scheduling node, which has them anyway, get messages unredacted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.spec import Ending, JobSpec, NodeId

HIDDEN = "…"
# Characters. A shorter text is hidden only as the whole value of a problem, or as the id of a dataset.
_SHORTEST = 4


# ---------------------------------------------------------------- entries of other nodes


def for_node(
    spec: JobSpec,
    node: NodeId,
    ending: Ending | None,
) -> Ending | None:
    """Return a job's ending as it is reported to one node: without values from other nodes' entries."""
    if ending is None or ending.failure is None:
        return ending
    failure = ending.failure
    if node in (spec.initiator, spec.scheduler, failure.node):
        return ending
    message = without_others(spec, node, failure.message)
    return replace(ending, failure=replace(failure, message=message))


def without_others(
    spec: JobSpec,
    node: NodeId,
    text: str,
) -> str:
    """Return a text with … in place of each value that only entries of other nodes have."""
    entries = list(_foreign_entries(spec, node))
    values: list[Any] = []
    for entry in entries:
        values += _values(entry)
    text = _without_quoted_values(text, values)
    secrets = {secret for secret in _secrets(entries, values) if secret in text}
    secrets -= _visible_words(spec, node)
    return _without_words(text, secrets)


def _secrets(entries: list[Any], values: list[Any]) -> set[str]:
    """Return the texts in entries that have to be hidden: ids of datasets, and all but short values."""
    secrets: set[str] = set()
    for entry in entries:
        secrets.update(_dataset_ids(entry))
    for value in values:
        if isinstance(value, str) and len(value) >= _SHORTEST:
            secrets.add(value)
    return secrets


def _without_words(text: str, words: set[str]) -> str:
    """Return a text with … in place of each of these words; of overlapping ones the longest goes first."""
    if not words:
        return text
    longest_first = sorted(sorted(words), key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", HIDDEN, text)


def _without_quoted_values(text: str, values: list[Any]) -> str:
    """Hide values of any type and length in the form in which a `Problem` quotes them."""
    if "(got " not in text:
        return text
    quotes = {Problem("", "", value).text.strip() for value in values}
    for quote in quotes:
        if quote:
            text = text.replace(quote, f"(got {HIDDEN})")
    return text


def _foreign_entries(spec: JobSpec, node: NodeId) -> Iterator[Any]:
    """Yield the parameters and settings of parties at other nodes."""
    labels = {party.label for party in spec.parties_at(node)}
    for params in (spec.task_params, spec.job_params):
        for role, by_index in params.items():
            if role == "common" or not isinstance(by_index, Mapping):
                continue
            for key, entry in by_index.items():
                entry_labels = [f"{role}.{index}" for index in str(key).split("|")]
                if labels.isdisjoint(entry_labels):
                    yield entry


def _visible_words(spec: JobSpec, node: NodeId) -> set[str]:
    """Return the words that the node gets: names in the flow, its parties, its own and the common entries."""
    words = {spec.job_id, *spec.nodes}
    for party in spec.parties:
        words |= {party.role, party.label}
    for task in spec.dag.nodes:
        component = task.component
        words |= {task.name, component.provider, component.name, component.version}
    visible = spec.for_node(node)
    for params in (visible.task_params, visible.job_params):
        words.update(value for value in _values(params) if isinstance(value, str))
        words.update(_dataset_ids(params))
    return words


def _values(entry: Any) -> Iterator[Any]:
    """Yield an entry and everything in it, at any depth."""
    pending = [entry]
    while pending:
        value = pending.pop()
        yield value
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value


def _dataset_ids(entry: Any) -> Iterator[str]:
    """Yield the ids of the datasets in an entry, in both spellings of messages."""
    for value in _values(entry):
        if not isinstance(value, Mapping):
            continue
        dataset_id = value.get("dataset_id")
        if isinstance(dataset_id, str) and dataset_id:
            yield dataset_id
            yield dataset_id.replace("#", "/", 1)
        namespace = value.get("namespace")
        name = value.get("name")
        if isinstance(namespace, str) and isinstance(name, str):
            yield f"{namespace}#{name}"
            yield f"{namespace}/{name}"


# ---------------------------------------------------------------- addresses and paths of this node

_PATH = re.compile(
    r"(?:(?<![\w/.…~-])|(?<=unix://)|(?<=file://))"  # at the start of a word: URLs are left alone
    r"(?<!refuses )"  # a peer's refusal names a path of the protocol
    r"/(?!v\d+/|api/|bfia/)"  # our paths on the wire, and the folders that every container has
    r"(?:[^\s/'\":,;()<>]+/)+"
    r"(?P<last>[^\s/'\":,;()<>]*)"
)
# A path in quotes may contain blanks.
_QUOTED_PATH = re.compile(
    r"(?<=['\"])/(?!v\d+/|api/|bfia/)(?:[^\n'\"/]+/)+(?P<last>[^\n'\"/]*)(?=['\"])"
)
_DAEMON = re.compile(
    r"(?<!\w)(?P<scheme>tcp|ssh)://(?!…)(?:[^\s'\",;()<>@/]*@)?(?P<host>\[[^\s\]]*\]|[^\s'\",;()<>:/]+)"
    r"(?:[^\s'\",;()<>]*[^\s'\",;()<>:.])?"
)
# How Docker's client names a daemon.
_POOL = re.compile(r"host='[^'\s]*', port=\d+")
# Daemons of one text whose hosts are searched for without a scheme, too. A bound, as a text may be hostile.
_MAX_DAEMONS = 8
# Keys of a storage, in the address that a container gets.
_KEY = re.compile(r"(?<=[?&])(?P<name>password|token|username)=[^&\s]+")


def for_others(text: str) -> str:
    """Return a text without addresses of Docker daemons and keys of storages, and paths cut to their last part.

    Anything else stays: addresses of nodes, names of images, paths of the protocols, a path of one part.
    """
    text = _KEY.sub(r"\g<name>=***", text)
    daemons = islice(_DAEMON.finditer(text), _MAX_DAEMONS)
    hosts = {daemon["host"] for daemon in daemons}
    text = _DAEMON.sub(r"\g<scheme>://…", text)
    for host in sorted(hosts, key=len, reverse=True):  # ssh repeats it without the scheme
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "…", text)
    text = _POOL.sub("host='…'", text)
    text = _QUOTED_PATH.sub(r"…/\g<last>", text)
    return _PATH.sub(r"…/\g<last>", text)


def redacted(value: Any, is_text: bool = False) -> Any:
    """Return a value for another institution: its messages and warnings, at any depth, as `for_others` leaves them.

    ``is_text`` marks the value itself as a message or warning.
    """
    match value:
        case dict():
            return {key: redacted(item, _has_texts(key)) for key, item in value.items()}
        case list():
            return [redacted(item, is_text) for item in value]
        case str() if is_text:
            return for_others(value)
    return value


def _has_texts(key: str) -> bool:
    return key in ("message", "warnings")
