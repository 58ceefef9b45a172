"""The tasks or runs of a large record are stored in their own rows."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0023_states_in_rows"
down_revision = "0022_platform_reports"

_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    for table in ("task", "run"):
        columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
        if "state" not in columns:
            op.add_column(table, sa.Column("state", _LONG_TEXT))
        if "position" not in columns:
            op.add_column(table, sa.Column("position", sa.Integer))
