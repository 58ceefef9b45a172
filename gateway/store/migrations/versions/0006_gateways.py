"""The gateways that share a database, and when each was last heard of."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006_gateways"
down_revision = "0005_model"

EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "gateway",
        sa.Column("owner", sa.String(128), primary_key=True),
        sa.Column("url", sa.String(255), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        **EXACT,
    )
