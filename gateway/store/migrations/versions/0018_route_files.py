"""Each gateway of a node follows a route file of its own; no gateway keeps its own clock's time
any more.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018_route_files"
down_revision = "0017_audit_chain"

_BINARY = (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
_EXACT: Any = {
    f"{name}_{option}": value for name in ("mysql", "mariadb") for option, value in _BINARY
}


def upgrade() -> None:
    # MariaDB commits each of these by itself: a start that was killed among them is followed by
    # another
    op.drop_table("route_export", if_exists=True)
    op.create_table(
        "route_export",
        sa.Column("owner", sa.String(128), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        **_EXACT,
    )
    if "own_time" in {
        column["name"] for column in sa.inspect(op.get_bind()).get_columns("gateway")
    }:
        with op.batch_alter_table("gateway") as table:
            table.drop_column("own_time")
