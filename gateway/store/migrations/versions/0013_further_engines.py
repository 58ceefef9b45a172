"""What jobs hold of engines beside the main one, and what those last had."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0013_further_engines"
down_revision = "0012_heard_signatures"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.add_column("resource_claim", sa.Column("further", LONG))
    op.create_table(
        "resource_engine",
        sa.Column("engine", sa.String(255), primary_key=True),
        sa.Column("cpu", sa.Double(), nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        **EXACT,
    )
