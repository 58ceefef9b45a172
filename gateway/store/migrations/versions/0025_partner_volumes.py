"""The bytes exchanged with each partner, by day."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0025_partner_volumes"
down_revision = "0024_links"

_BINARY = (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
_EXACT: Any = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _BINARY
}
_Id = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
_Word = sa.String(16).with_variant(sa.String(16, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "partner_volume",
        sa.Column("partner", _Id, primary_key=True),
        sa.Column("day", _Word, primary_key=True),
        sa.Column("bytes_in", sa.BigInteger(), nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **_EXACT,
    )
