"""Datasets are granted to partner nodes."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009_dataset_grants"
down_revision = "0008_counting"

EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "dataset_grant",
        sa.Column("namespace", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.Column("granted_by", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("revoked_by", sa.String(255), nullable=False),
        **EXACT,
    )
