"""Other nodes ask about jobs before they create them, by ids of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0010_job_audit"
down_revision = "0009_dataset_grants"


def upgrade() -> None:
    op.create_table(
        "job_audit",
        sa.Column("sender", sa.String(128), primary_key=True),
        sa.Column("audit_id", sa.String(128), primary_key=True),
        sa.Column("job_id", sa.String(128), nullable=False),
    )
    op.create_index("job_audit_job", "job_audit", ["job_id"])
