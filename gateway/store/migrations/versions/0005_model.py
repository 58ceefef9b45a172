"""Models: one row per party and version."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005_model"
down_revision = "0004_resources"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
ID = sa.String(128)


def upgrade() -> None:
    op.create_table(
        "model",
        sa.Column("model_id", ID, primary_key=True),
        sa.Column("version", ID, primary_key=True),
        sa.Column("role", sa.String(64), primary_key=True),
        sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deployed_at", sa.Double()),
        sa.Column("granted", LONG, nullable=False),
        sa.Column("document", LONG, nullable=False),
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )
    op.create_index("model_job", "model", ["job_id"])
