"""GPUs are counted beside cores, memory and disk."""

import sqlalchemy as sa
from alembic import op

revision = "0020_gpus"
down_revision = "0019_templates"


def upgrade() -> None:
    for table in ("resource_claim", "resource_engine"):
        if "gpu" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}:
            op.add_column(
                table, sa.Column("gpu", sa.BigInteger, nullable=False, server_default="0")
            )
