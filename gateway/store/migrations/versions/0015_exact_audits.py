"""The baseline: a new database is made from `gateway.store.schema` and stamped with the newest
revision.
"""

revision = "0015_exact_audits"
down_revision = None


def upgrade() -> None:
    raise NotImplementedError("a new database is made by gateway.store.database.migrate")
