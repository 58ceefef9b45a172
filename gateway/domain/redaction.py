"""Redacts what a node learns of a failure at another one: not which data the others have, nor their own settings.

A job's body goes to each node without the entries of the others (`JobSpec.for_node`); a message that quotes from
such an entry, as "dataset x is not granted" does, would tell them after all. Who submitted the job wrote them, and
the node that schedules it has them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.spec import Ending, JobSpec, NodeId

HIDDEN = "…"
_SHORTEST = 4
"""characters; a shorter text is left out only where it is all that was found, or a dataset's id"""


def for_node(
    spec: JobSpec,
    node: NodeId,
    ending: Ending | None,
) -> Ending | None:
    """Return how a job ends as reported to one node: without what only the entries of other nodes say."""
    if (
        ending is None
        or ending.failure is None
        or node in (spec.initiator, spec.scheduler, ending.failure.node)
    ):
        return ending
    text = without_others(spec, node, ending.failure.message)
    return replace(ending, failure=replace(ending.failure, message=text))


def without_others(
    spec: JobSpec,
    node: NodeId,
    text: str,
) -> str:
    """Return a text with … for each value that stands in it and in no entry that the node gets."""
    entries = list(_of_others(spec, node))
    values = list(chain.from_iterable(map(_values, entries)))
    if "(got " in text:
        for found in {Problem("", "", value).text.strip() for value in values}:
            text = text.replace(found, f"(got {HIDDEN})") if found else text
    words = {value for value in values if isinstance(value, str) and len(value) >= _SHORTEST}
    words |= set(chain.from_iterable(map(_datasets, entries)))
    secret = {word for word in words if word in text} - _known(spec, node)
    if not secret:
        return text
    longest_first = "|".join(
        re.escape(word) for word in sorted(secret, key=lambda word: (-len(word), word))
    )
    return re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", HIDDEN, text)


def _of_others(spec: JobSpec, node: NodeId) -> Iterator[Any]:
    mine = {party.label for party in spec.parties_at(node)}
    for params in (spec.task_params, spec.job_params):
        for role, by_index in params.items():
            if role != "common" and isinstance(by_index, Mapping):
                for key, entry in by_index.items():
                    if mine.isdisjoint(f"{role}.{index}" for index in str(key).split("|")):
                        yield entry


def _known(spec: JobSpec, node: NodeId) -> set[str]:
    """Return the words that the node gets: names in the flow, its parties, its own and the common entries."""
    reported = spec.for_node(node)
    known = {
        spec.job_id,
        *spec.nodes,
        *(p.role for p in spec.parties),
        *(p.label for p in spec.parties),
    }
    for task in spec.dag.nodes:
        known |= {task.name, task.component.provider, task.component.name, task.component.version}
    for params in (reported.task_params, reported.job_params):
        known |= {value for value in _values(params) if isinstance(value, str)}
        known |= set(_datasets(params))
    return known


def _values(entry: Any) -> Iterator[Any]:
    """Yield an entry and everything in it, at any depth."""
    left = [entry]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value


def _datasets(entry: Any) -> Iterator[str]:
    """Yield the ids of the datasets that an entry names, as messages spell them."""
    for value in _values(entry):
        if not isinstance(value, Mapping):
            continue
        if isinstance(value.get("dataset_id"), str) and value["dataset_id"]:
            yield from (value["dataset_id"], value["dataset_id"].replace("#", "/", 1))
        if isinstance(value.get("namespace"), str) and isinstance(value.get("name"), str):
            yield from (
                f"{value['namespace']}#{value['name']}",
                f"{value['namespace']}/{value['name']}",
            )


_PATH = re.compile(
    r"(?:(?<![\w/.…~-])|(?<=unix://)|(?<=file://))"  # where a word begins: inside of an address it stays
    r"(?<!refuses )"  # as a peer does a path of the protocol
    r"/(?!v\d+/|api/|bfia/)"  # our paths on the wire, and the folders that every container has
    r"(?:[^\s/'\":,;()<>]+/)+"
    r"(?P<last>[^\s/'\":,;()<>]*)"
)


_QUOTED = re.compile(
    r"(?<=['\"])/(?!v\d+/|api/|bfia/)(?:[^\n'\"/]+/)+(?P<last>[^\n'\"/]*)(?=['\"])"  # blanks belong to it
)


_DAEMON = re.compile(
    r"(?<!\w)(?P<scheme>tcp|ssh)://(?!…)(?:[^\s'\",;()<>@/]*@)?(?P<host>\[[^\s\]]*\]|[^\s'\",;()<>:/]+)"
    r"(?:[^\s'\",;()<>]*[^\s'\",;()<>:.])?"
)
_POOL = re.compile(r"host='[^'\s]*', port=\d+")
"""how the client of Docker names a daemon"""
_MOST_DAEMONS = 8
"""of one text are looked for without their scheme too: others may have written it, to keep us busy"""


_KEY = re.compile(r"(?<=[?&])(?P<name>password|token|username)=[^&\s]+")
"""of a storage, in the address that a container gets"""


def for_others(text: str) -> str:
    """Return the text without addresses of Docker daemons and keys of storages; of a path the last part.

    What is neither stays: addresses of nodes, names of images, paths of the protocols, a path of one part.
    """
    text = _KEY.sub(lambda found: f"{found['name']}=***", text)
    hosts = {found["host"] for found in islice(_DAEMON.finditer(text), _MOST_DAEMONS)}
    text = _DAEMON.sub(lambda found: f"{found['scheme']}://…", text)
    for host in sorted(hosts, key=len, reverse=True):  # what ssh says of it names it once more
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "…", text)
    text = _POOL.sub("host='…'", text)
    for pattern in (_QUOTED, _PATH):
        text = pattern.sub(lambda found: f"…/{found['last']}", text)
    return text


def redacted(value: Any, words: bool = False) -> Any:
    """Return what another institution gets of a value: its messages and warnings, at any depth, `for_others`.

    ``words``: the value is one of those.
    """
    match value:
        case dict():
            return {
                key: redacted(one, key in ("message", "warnings")) for key, one in value.items()
            }
        case list():
            return [redacted(one, words) for one in value]
        case str() if words:
            return for_others(value)
    return value
