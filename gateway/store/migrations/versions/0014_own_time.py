"""What time it last was by each gateway's own clock: its next process goes on from there."""

import sqlalchemy as sa
from alembic import op

revision = "0014_own_time"
down_revision = "0013_further_engines"


def upgrade() -> None:
    op.add_column("gateway", sa.Column("own_time", sa.Double()))
