"""What became of providers, and whose their names are."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0011_provider_revisions"
down_revision = "0010_job_audit"

LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def upgrade() -> None:
    revisions = op.create_table(
        "provider_revision",
        sa.Column("provider_key", sa.String(255), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("author", sa.String(255), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("document", LONG, nullable=False),
        **EXACT,
    )
    owners = op.create_table(
        "provider_owner",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        **EXACT,
    )
    known = op.get_bind().execute(sa.text("SELECT provider_key, document, updated_at FROM provider")).all()
    beginning = {"number": 1, "author": "", "action": "registered", "reason": "before there was a history"}
    if known:  # what is there belongs to the node's admins, until they give it to a vendor
        op.bulk_insert(
            revisions,
            [{"provider_key": k, "at": at, "document": text, **beginning} for k, text, at in known],
        )
        names = dict.fromkeys(row[0].partition(":")[0] for row in known)
        op.bulk_insert(owners, [{"name": name, "owner": ""} for name in names])
