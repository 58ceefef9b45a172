"""Lines of the audit log are chained by their hashes; those that are there already have none."""

import sqlalchemy as sa
from alembic import op

revision = "0017_audit_chain"
down_revision = "0016_applications"


def upgrade() -> None:
    if "hash" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("audit")}:
        op.add_column("audit", sa.Column("hash", sa.String(64)))
