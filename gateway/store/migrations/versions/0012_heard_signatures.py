"""Signatures of FATE's that were heard while they hold, for all gateways of a node."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012_heard_signatures"
down_revision = "0011_provider_revisions"

EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    op.create_table(
        "heard_signature",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Index("heard_signature_until", "until"),
        **EXACT,
    )
