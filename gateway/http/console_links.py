"""Links to pages of the console."""

from urllib.parse import quote


def console_link(job_id: str, address: str = "") -> str:
    """Return the link to a job's page.

    ``address``: that of the operators' listener, as people reach it. If it is empty, the link is a
    path on that listener.
    """
    return f"{address}/console/#/jobs/{quote(job_id, safe='')}"
