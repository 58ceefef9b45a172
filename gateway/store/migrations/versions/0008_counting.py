"""Jobs and tasks are counted by state without reading them."""

from alembic import op

revision = "0008_counting"
down_revision = "0007_access"


def upgrade() -> None:
    for name in ("job", "local_job"):
        op.create_index(f"{name}_status", name, ["status", "outcome", "created_at"])
    op.create_index("task_status", "task", ["status"])
