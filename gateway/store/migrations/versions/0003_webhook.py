"""Receivers of events: how far each has got."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003_webhook"
down_revision = "0002_route_versions"

EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "webhook",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        **EXACT,
    )
