"""The links of partners that end at each gateway of the node."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0024_links"
down_revision = "0023_states_in_rows"

_BINARY = (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
_EXACT: Any = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _BINARY
}
_Id = sa.String(128).with_variant(sa.String(128, collation="C"), "postgresql")
_LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "link",
        sa.Column("owner", _Id, primary_key=True),
        sa.Column("node", _Id, primary_key=True),
        sa.Column("links", _LongText, nullable=False),
        if_not_exists=True,
        **_EXACT,
    )
