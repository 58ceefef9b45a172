"""Jobs that people keep as templates."""

import sqlalchemy as sa
from alembic import op

from gateway.store.schema import EXACT, LongText

revision = "0019_templates"
down_revision = "0018_route_files"


def upgrade() -> None:
    op.create_table(
        "template",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("author", sa.String(255), nullable=False),
        sa.Column("saved_at", sa.Double(), nullable=False),
        sa.Column("job", LongText, nullable=False),
        if_not_exists=True,
        **EXACT,
    )
