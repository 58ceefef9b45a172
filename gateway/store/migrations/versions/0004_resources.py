"""Who holds what of the node's resources, and who waits for them."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004_resources"
down_revision = "0003_webhook"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
ID = sa.String(128)
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "resource_claim",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cpu", sa.BigInteger, nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("disk", sa.BigInteger, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("held_at", sa.Double()),
        sa.Column("scheduler", ID, nullable=False),
        sa.Column("reason", LONG, nullable=False),
        **EXACT,
    )
    pool = op.create_table(
        "resource_pool",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ignored", sa.Integer, nullable=False),
        sa.Column("repaired", sa.Integer, nullable=False),
        sa.Column("expired", sa.Integer, nullable=False),
        **EXACT,
    )
    op.bulk_insert(pool, [{"id": 1, "ignored": 0, "repaired": 0, "expired": 0}])
