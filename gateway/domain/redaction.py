"""Redaction of messages about a failure before they go to another node.

A job's body goes to each node without the entries of the other nodes (`JobSpec.for_node`). A
message that quotes such an entry, like "dataset x is not granted", would reveal it all the same.
The submitter wrote the entries, and the scheduling node has the complete body: these two nodes get
messages unredacted.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from gateway.domain.problems import Problem
from gateway.domain.spec import Ending, JobSpec, NodeId, role_entries

HIDDEN = "…"
# Smallest length, in characters, of a text that is hidden wherever it occurs. A shorter text is
# hidden only as the whole value of a problem, or as the id of a dataset.
_SHORTEST = 4


# ---------------------------------------------------------------- entries of other nodes


def for_node(
    spec: JobSpec,
    node: NodeId,
    ending: Ending | None,
) -> Ending | None:
    """Return a job's ending as it is reported to one node: without values of other nodes' entries.

    Nodes that may see every entry, and the node where the failure happened, get it unchanged.
    """
    if ending is None or ending.failure is None:
        return ending
    failure = ending.failure
    if node in (spec.initiator, spec.scheduler, failure.node):
        return ending
    message = without_others(spec, node, failure.message)
    return replace(
        ending,
        failure=replace(failure, message=message),
    )


def without_others(
    spec: JobSpec,
    node: NodeId,
    text: str,
) -> str:
    """Return a text with … in place of each value that only other nodes have in their entries.

    Words that the node has in its own copy of the job stay.
    """
    entries = list(_foreign_entries(spec, node))
    values: list[Any] = []
    for entry in entries:
        values += _values(entry)
    text = _without_quoted_values(text, values)
    secrets = {secret for secret in _secrets(entries, values) if secret in text}
    return _without_words(text, secrets - _visible_words(spec, node))


def _secrets(
    entries: list[Any],
    values: list[Any],
) -> set[str]:
    """Return the texts of entries that have to be hidden.

    These are ids of datasets of any length, and the texts in ``values`` with at least `_SHORTEST`
    characters. ``values`` are the single values of the entries at any depth.
    """
    texts = [value for value in values if isinstance(value, str)]
    secrets = {text for text in texts if len(text) >= _SHORTEST}
    for entry in entries:
        secrets.update(_dataset_ids(entry))
    return secrets


def _without_words(text: str, words: set[str]) -> str:
    """Return a text with … in place of each of these words.

    Where words overlap, the longest is replaced. Parts of words stay: "id" in "idle" is not hidden.
    """
    if not words:
        return text
    # The inner order, by alphabet, makes the pattern independent of the order of the set.
    longest_first = sorted(
        sorted(words),
        key=len,
        reverse=True,
    )
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", HIDDEN, text)


def _without_quoted_values(text: str, values: list[Any]) -> str:
    """Hide values of any type and length in the form in which a `Problem` quotes them.

    The form is `` (got value)``, in JSON.
    """
    if "(got " not in text:
        return text  # quotes nothing
    # the text of a problem without a rule is nothing but the quote of its value
    quotes = {Problem("", "", value).text.strip() for value in values}
    quotes.discard("")  # of values that a problem does not quote
    for quote in quotes:
        text = text.replace(quote, f"(got {HIDDEN})")
    return text


def _foreign_entries(spec: JobSpec, node: NodeId) -> Iterator[Any]:
    """Yield the parameters and settings of parties at other nodes.

    An entry for several parties is foreign if none of them is at this node.
    """
    labels = {party.label for party in spec.parties_at(node)}
    entries = chain(_labelled_entries(spec.task_params), _labelled_entries(spec.job_params))
    for entry_labels, entry in entries:
        if labels.isdisjoint(entry_labels):
            yield entry


def _labelled_entries(params: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield the entries of parties, each with the labels of its parties.

    The entry ``guest`` → ``0|1`` has the labels ``guest.0`` and ``guest.1``. Common entries are for
    every node and left out.
    """
    for role, by_index in role_entries(params):
        for key, entry in by_index.items():
            indices = str(key).split("|")
            labels = [f"{role}.{index}" for index in indices]
            yield labels, entry


def _visible_words(spec: JobSpec, node: NodeId) -> set[str]:
    """Return the words of a job's body that the node gets, which need not be hidden from it.

    These are the job's id, the names in the flow, nodes, roles and parties, and the texts in common
    entries and in those of its own parties.
    """
    words = {spec.job_id, *spec.nodes}
    for party in spec.parties:
        words |= {party.role, party.label}
    for task in spec.dag.nodes:
        component = task.component
        words |= {
            task.name,
            component.provider,
            component.name,
            component.version,
        }
    visible = spec.for_node(node)
    entries = [visible.task_params, visible.job_params]
    words.update(value for value in _values(entries) if isinstance(value, str))
    words.update(_dataset_ids(entries))
    return words


def _values(entry: Any) -> Iterator[Any]:
    """Yield an entry and every value in it, at any depth, in no particular order.

    Keys of objects are not yielded.
    """
    pending = [entry]
    while pending:
        value = pending.pop()
        yield value
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value


def _dataset_ids(entry: Any) -> Iterator[str]:
    """Yield the ids of the datasets in an entry, at any depth, in both spellings of messages.

    An id is ``namespace#name``, which messages also spell ``namespace/name``.
    """
    for value in _values(entry):
        if isinstance(value, Mapping):
            yield from _ids_of_location(value)


def _ids_of_location(location: Mapping[str, Any]) -> Iterator[str]:
    """Yield the spellings of a dataset that an object names by its id, or by namespace and name.

    Nothing is yielded for an object that names no dataset.
    """
    dataset_id = location.get("dataset_id")
    if isinstance(dataset_id, str) and dataset_id:
        yield dataset_id
        yield dataset_id.replace("#", "/", 1)
    namespace = location.get("namespace")
    name = location.get("name")
    if isinstance(namespace, str) and isinstance(name, str):
        yield f"{namespace}#{name}"
        yield f"{namespace}/{name}"


# ---------------------------------------------------------------- addresses and paths of this node

# An absolute path of at least two parts; only the last part is shown.
_PATH = re.compile(
    r"(?:(?<![\w/.…~-])|(?<=unix://)|(?<=file://))"  # at the start of a word: URLs are left alone
    r"(?<!refuses )"  # a peer's refusal names a path of the protocol
    r"/(?!v\d+/|api/|bfia/)"  # our paths on the wire, and the folders that every container has
    r"(?:[^\s/'\":,;()<>]+/)+"
    r"(?P<last>[^\s/'\":,;()<>]*)"
)
# A path in quotes, which may contain blanks.
_QUOTED_PATH = re.compile(
    r"(?<=['\"])/(?!v\d+/|api/|bfia/)(?:[^\n'\"/]+/)+(?P<last>[^\n'\"/]*)(?=['\"])"
)
# The address of a Docker daemon: scheme, user, host, then port and path. An address that is hidden
# already, such as ``tcp://…``, does not match.
_DAEMON = re.compile(
    r"(?<!\w)(?P<scheme>tcp|ssh)://(?!…)(?:[^\s'\",;()<>@/]*@)?"
    r"(?P<host>\[[^\s\]]*\]|[^\s'\",;()<>:/]+)"
    r"(?:[^\s'\",;()<>]*[^\s'\",;()<>:.])?"
)
# The address of a daemon in errors of Docker's client.
_HOST_AND_PORT = re.compile(r"host='[^'\s]*', port=\d+")
# Daemons of one text whose hosts are also replaced without a scheme. Bounded, as each is a search
# through a text that may come from an attacker.
_MAX_DAEMONS = 8
# Credentials for a storage in the query of an address that a container gets.
_CREDENTIAL = re.compile(r"(?<=[?&])(?P<name>password|token|username)=[^&\s]+")


def for_others(text: str) -> str:
    """Return a text of this node as other institutions may see it.

    Addresses of Docker daemons and credentials for storages are removed, and paths are cut to their
    last part. Anything else stays: addresses of nodes, names of images, paths of the protocols, and
    paths of one part.
    """
    text = _CREDENTIAL.sub(r"\g<name>=***", text)
    daemons = islice(_DAEMON.finditer(text), _MAX_DAEMONS)
    hosts = {daemon["host"] for daemon in daemons}
    text = _DAEMON.sub(r"\g<scheme>://…", text)
    # ssh repeats the host without the scheme; the longest first, as one may contain another
    for host in sorted(hosts, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "…", text)
    text = _HOST_AND_PORT.sub("host='…'", text)
    text = _QUOTED_PATH.sub(r"…/\g<last>", text)
    return _PATH.sub(r"…/\g<last>", text)


def redacted(value: Any, is_text: bool = False) -> Any:
    """Return a JSON value for another institution, with `for_others` applied to its messages.

    Messages are the texts below the keys of `_has_texts`, at any depth. ``is_text`` marks the value
    itself as a message.
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
    """Return whether a key of a JSON object has messages for people as its value.

    The value is a text, or a list of texts.
    """
    return key in ("message", "warnings")
