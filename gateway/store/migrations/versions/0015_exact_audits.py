"""Ids of questions about jobs that differ in case only are two, as all other ids."""

from alembic import op

revision = "0015_exact_audits"
down_revision = "0014_own_time"


def upgrade() -> None:
    if op.get_bind().dialect.name in ("mysql", "mariadb"):
        op.execute("ALTER TABLE job_audit CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
