"""Reports of checks of partners' platforms."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0022_platform_reports"
down_revision = "0021_job_words"

_BINARY = (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
_EXACT: Any = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _BINARY
}
_LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "platform_report",
        sa.Column("node", sa.String(128), primary_key=True),
        sa.Column("author", sa.String(255), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
        sa.Column("summary", _LongText, nullable=False),
        sa.Column("envelope", _LongText, nullable=False),
        if_not_exists=True,
        **_EXACT,
    )
