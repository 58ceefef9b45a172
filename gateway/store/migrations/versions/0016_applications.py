"""Applications of the management layer, and the jobs that use them."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0016_applications"
down_revision = "0015_exact_audits"

_BINARY = (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
_EXACT: Any = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _BINARY
}
_LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "application",
        sa.Column("number", _Number, primary_key=True, autoincrement=True),
        sa.Column("partner", sa.String(128), nullable=False),
        sa.Column("side", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("document", _LongText, nullable=False),
        sa.UniqueConstraint("partner", "side", "kind", "id", name="application_id"),
        if_not_exists=True,
        **_EXACT,
    )
    known = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("application")}
    for name, columns in (
        ("application_due", ["due_at"]),
        ("application_status", ["status", "kind"]),
    ):
        if name not in known:  # a start may have been killed among these statements
            op.create_index(name, "application", columns)
    op.create_table(
        "application_job",
        sa.Column("job_id", sa.String(128), primary_key=True),
        sa.Column("number", _Number, primary_key=True, autoincrement=False),
        sa.Column("permit", sa.Boolean, nullable=False),
        if_not_exists=True,
        **_EXACT,
    )
