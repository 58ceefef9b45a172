"""Which job a question of another node is about."""

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.store import Store


class SqlJobAudits:
    """Questions by the node that asked and by the id that it gave them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def job_of(self, sender: str, audit_id: str) -> str | None:
        """Return the job that a question is about; None: that node has asked no such question."""
        t = schema.job_audit
        with self._store.read() as connection:
            query = sa.select(t.c.job_id).where(t.c.sender == sender, t.c.audit_id == audit_id)
            found: str | None = connection.execute(query).scalar()
            return found

    def add(self, sender: str, audit_id: str, job_id: str) -> str:
        """Keep a question; return the job that it is about, which is another one where the id was used before."""
        try:
            with self._store.write() as connection:
                connection.execute(
                    schema.job_audit.insert().values(sender=sender, audit_id=audit_id, job_id=job_id)
                )
        except sa.exc.IntegrityError:
            return self.job_of(sender, audit_id) or job_id
        return job_id
