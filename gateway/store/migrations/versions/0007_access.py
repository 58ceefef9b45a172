"""Tokens of people and programs, and the record of what they changed."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007_access"
down_revision = "0006_gateways"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        **EXACT,
    )
    op.create_table(
        "audit",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("action", sa.String(1000), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("code", sa.Integer),
        sa.Column("detail", LONG, nullable=False),
        **EXACT,
    )
