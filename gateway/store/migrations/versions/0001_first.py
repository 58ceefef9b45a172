"""The first schema: jobs, local jobs, tasks, runs, timeline, submissions, providers, datasets."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
ID = sa.String(128)
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""Whatever the server's default is: every character is kept, and names that differ in case are different."""


def upgrade() -> None:
    for name in ("job", "local_job"):
        op.create_table(
            name,
            sa.Column("job_id", ID, primary_key=True),
            sa.Column("flow_id", sa.String(255), nullable=False),
            sa.Column("status", sa.String(16), nullable=False),
            sa.Column("outcome", sa.String(16)),
            sa.Column("created_at", sa.Double(), nullable=False),
            sa.Column("due_at", sa.Double()),
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
            sa.Column("spec", LONG, nullable=False),
            sa.Column("state", LONG, nullable=False),
            **EXACT,
        )
        op.create_index(f"{name}_due", name, ["due_at"])
        op.create_index(f"{name}_flow", name, ["flow_id", "created_at"])
        op.create_index(f"{name}_created", name, ["created_at"])
    op.create_table(
        "task",
        sa.Column("task_id", ID, primary_key=True),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        **EXACT,
    )
    op.create_index("task_job", "task", ["job_id"])
    op.create_table(
        "run",
        sa.Column("run_id", ID, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("task_id", ID, nullable=False),
        sa.Column("role", sa.String(64), nullable=False),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        **EXACT,
    )
    op.create_index("run_token", "run", ["token"])
    op.create_index("run_job", "run", ["job_id"])
    op.create_index("run_task", "run", ["task_id"])
    op.create_index("run_status", "run", ["status"])
    op.create_table(
        "timeline",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("side", sa.String(16), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("event", sa.String(255), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("detail", LONG, nullable=False),
        **EXACT,
    )
    op.create_index("timeline_job", "timeline", ["job_id", "id"])
    op.create_table(
        "submission",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("flow_id", sa.String(255), nullable=False),
        sa.Column("scheduler", ID, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        **EXACT,
    )
    op.create_table(
        "provider",
        sa.Column("provider_key", sa.String(255), primary_key=True),
        sa.Column("document", LONG, nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        **EXACT,
    )
    op.create_table(
        "dataset",
        sa.Column("namespace", ID, primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("document", LONG, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        **EXACT,
    )
    op.create_table(
        "installation",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        **EXACT,
    )
