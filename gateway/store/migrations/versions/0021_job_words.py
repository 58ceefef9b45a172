"""Jobs are found by words and by the reason of their failure."""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0021_job_words"
down_revision = "0020_gpus"

_TABLES = ("job", "local_job")
_LENGTH = 600  # characters of the words
_CUT = "…"
_ROWS_AT_ONCE = 500


def upgrade() -> None:
    for name in _TABLES:
        inspector = sa.inspect(op.get_bind())
        columns = {column["name"] for column in inspector.get_columns(name)}
        if "words" not in columns:
            words = sa.Column("words", sa.String(_LENGTH), nullable=False, server_default=_CUT)
            op.add_column(name, words)
        if "reason" not in columns:
            op.add_column(name, sa.Column("reason", sa.String(64)))
        _fill(name)
        _index(name)


def _index(name: str) -> None:
    """Replace the index on the time of creation, and add the one on the reason."""
    created = f"{name}_created"
    indexes = {
        index["name"]: index["column_names"]
        for index in sa.inspect(op.get_bind()).get_indexes(name)
    }
    if "words" not in indexes.get(created, ()):
        if created in indexes:
            op.drop_index(created, name)
        op.create_index(created, name, ["created_at", "job_id", "words"])
    if f"{name}_reason" not in indexes:
        op.create_index(f"{name}_reason", name, ["reason", "created_at"])


def _fill(name: str) -> None:
    """Write the words and the reason of each job that has none yet."""
    connection = op.get_bind()
    table = sa.table(name, *map(sa.column, ("job_id", "spec", "state", "words", "reason")))
    query = sa.select(table.c.job_id, table.c.spec, table.c.state)
    query = query.where(table.c.words == _CUT).order_by(table.c.job_id).limit(_ROWS_AT_ONCE)
    last_id = ""
    while rows := connection.execute(query.where(table.c.job_id > last_id)).all():
        for job_id, spec, state in rows:
            update = table.update().where(table.c.job_id == job_id)
            connection.execute(update.values(**_values(spec, state)))
        last_id = rows[-1].job_id


def _values(spec_text: str, state_text: str) -> dict[str, Any]:
    """Return the new columns of a job; nothing is known of an unreadable one."""
    try:
        spec = json.loads(spec_text)
        state = json.loads(state_text)
        words = "|" + "".join(f"{word}|" for word in dict.fromkeys(_words(spec, state)))
        failure = (state.get("ending") or {}).get("failure") or {}
        reason = failure.get("reason") or None
    except (AttributeError, KeyError, TypeError, ValueError):
        return {"words": _CUT, "reason": None}
    if len(words) > _LENGTH:
        words = words[: _LENGTH - 1] + _CUT
    return {"words": words, "reason": reason and str(reason)[:64]}


def _words(spec: dict[str, Any], state: dict[str, Any]) -> Iterator[str]:
    """Yield the marked words of a job, in lower case."""
    marked = [("@", state.get("user") or ""), ("=", spec["job_id"]), ("~", spec["flow_id"])]
    marked += [(">", party["node"]) for party in spec["parties"]]
    for task in spec["dag"]["nodes"]:
        component = task["component"]
        marked.append(("+", f"{component['provider']}/{component['name']}"))
    for mark, text in marked:
        if text:
            yield mark + text.lower().replace("|", " ")
