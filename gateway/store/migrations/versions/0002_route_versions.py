"""The versions of the route table, and which of them the file holds."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002_route_versions"
down_revision = "0001"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "route_version",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("author", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("text", LONG, nullable=False),
        **EXACT,
    )
    op.create_table(
        "route_export",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        **EXACT,
    )
