"""The words by which people find a job: one short text for each record, which an index covers.

The text has marked words between separators: ``|@user|=job id|~flow|>node|+provider/component|``,
in lower case. A text that is too long is cut, and ends with `CUT`: then only the job's description
says whether a node or a component occurs in it.
"""

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import func, or_, select

from gateway.domain.spec import JobSpec, NodeId
from gateway.store.functions import position

LENGTH = 600  # characters; an index of MariaDB has 3072 bytes, four for each character
CUT = "…"  # ends a text that lacks some words, or (of an older gateway) all of them
_SEPARATOR = "|"


def words_of(spec: JobSpec, user: str) -> str:
    """Return the text of a job's record; ``user``: its submitter here, "" if unknown."""
    words = dict.fromkeys(_marked_words(spec, user))
    text = _SEPARATOR + "".join(f"{word}{_SEPARATOR}" for word in words)
    if len(text) > LENGTH:
        return text[: LENGTH - len(CUT)] + CUT
    return text


def contains_text(table: sa.Table, text: str) -> sa.ColumnElement[bool]:
    """Return the condition for jobs with a text in one of their words."""
    return _found(table, _plain(text))


def has_user(table: sa.Table, user: str) -> sa.ColumnElement[bool]:
    """Return the condition for jobs of a submitter."""
    return _found(table, _between_separators(f"@{_plain(user)}"))


def may_have_node(table: sa.Table, node: NodeId) -> sa.ColumnElement[bool]:
    """Return the condition for jobs that may have a party at a node."""
    return _found(table, _between_separators(f">{_plain(node)}"), CUT)


def may_have_component(table: sa.Table, component: str) -> sa.ColumnElement[bool]:
    """Return the condition for jobs that may have a component, given as in `has_component`."""
    name = _plain(component)
    if "/" in name:
        return _found(table, _between_separators(f"+{name}"), CUT)
    return _found(table, f"/{name}{_SEPARATOR}", CUT)


def has_component(spec: JobSpec, component: str) -> bool:
    """Return whether a job has a component, given as ``name`` or ``provider/name``."""
    name = component.lower()
    for task in spec.dag.nodes:
        code = task.component.code.lower()
        if name in (code, task.component.name.lower()):
            return True
    return False


def _marked_words(spec: JobSpec, user: str) -> Iterator[str]:
    """Yield the words of a job, each with the mark of its kind."""
    if user:
        yield f"@{_plain(user)}"
    yield f"={_plain(spec.job_id)}"
    yield f"~{_plain(spec.flow_id)}"
    for node in spec.nodes:
        yield f">{_plain(node)}"
    for task in spec.dag.nodes:
        yield f"+{_plain(task.component.code)}"


def _plain(text: str) -> str:
    """Return a text in lower case, without separators and lone surrogates."""
    encodable = text.encode("utf-8", "replace").decode()
    return encodable.lower().replace(_SEPARATOR, " ")


def _between_separators(word: str) -> str:
    return f"{_SEPARATOR}{word}{_SEPARATOR}"


def _found(table: sa.Table, *texts: str) -> sa.ColumnElement[bool]:
    """Return the condition for jobs with one of these texts in their words.

    The subquery reads only the index on the time of creation, which contains the words; the rows
    themselves are large. The function around the id keeps SQLite from fetching all matching jobs
    by their ids: it reads the newest ones first, in the order of that index.
    """
    words = table.alias("words_of_jobs").c
    conditions = [position(words.words, text) > 0 for text in texts]
    matching = select(words.job_id).where(or_(*conditions))
    return func.coalesce(table.c.job_id, "").in_(matching)
