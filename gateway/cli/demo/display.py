"""What the demo prints: the job's progress, its result, and where to find its files."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.cli.demo.api import request
from gateway.cli.demo.failure import DemoFailed
from gateway.cli.demo.nodes import BANK, PARTNER, NodeProcess
from gateway.cli.language import t

JOB_TIMEOUT = 600.0  # seconds
STATUS_STYLES = {
    "SUCCESS": "green",
    "RUNNING": "yellow",
    "FAILED": "red",
}


def watch(
    bank: NodeProcess,
    job_id: str,
    console: Console,
) -> dict[str, Any]:
    """Show a job until it succeeds; return it. Raises `DemoFailed` for another end, and after
    `JOB_TIMEOUT`.
    """
    deadline = time.monotonic() + JOB_TIMEOUT
    with Live(console=console, refresh_per_second=8) as live:
        while True:
            job: dict[str, Any] = request("GET", f"{bank.operator}/api/v1/jobs/{job_id}")
            live.update(_progress(job))
            if job["status"] in ("FINISHED", "REJECTED"):
                break
            if time.monotonic() > deadline:
                raise DemoFailed(f"the job is still {job['status']} after {JOB_TIMEOUT:g} s")
            time.sleep(0.2)
    if job["outcome"] != "SUCCEEDED":
        raise _job_failure(job, bank)
    return job


def _job_failure(
    job: dict[str, Any],
    bank: NodeProcess,
) -> DemoFailed:
    failure = job.get("failure") or {}
    places = [str(failure[key]) for key in ("task", "role", "node") if failure.get(key)]
    where = " ".join(places)
    logs = bank.home.parent / "*" / "state" / "runs"
    return DemoFailed(
        f"the job ended as {job['outcome']} with {failure.get('reason')} ({where}), logs are "
        f"below {logs}: "
        f"{failure.get('message')}"
    )


def _progress(job: dict[str, Any]) -> Group:
    """Return each task's status at both parties, and a progress bar below."""
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "bank (guest)", "partner (host)"):
        table.add_column(t(heading))
    for task in job["tasks"]:
        cells = [_status_cell(task, node) for node in (BANK, PARTNER)]
        table.add_row(task["name"], *cells)
    bar = ProgressBar(
        total=100,
        completed=job["progress"],
        width=50,
    )
    line = Table.grid(padding=(0, 1))
    line.add_row(bar, Text(t(f"job {job['status']}, {job['progress']} %")))
    return Group(table, line)


def _status_cell(task: dict[str, Any], node: str) -> Text:
    statuses = list(task["nodes"].get(node, {}).values())
    status = "-"
    if statuses:
        status = statuses[0]
    return Text(status, style=STATUS_STYLES.get(status, "dim"))


# ------------------------------------------------------------ the result


@dataclass(frozen=True)
class Reports:
    """The values of the bank's reports."""

    intersect: Any
    common_ids: str
    losses: Any
    scores: dict[str, Any]

    @property
    def loss_values(self) -> list[float]:
        """The loss after each tree."""
        entries = self.losses
        if isinstance(entries, dict):
            entries = entries.get("loss")
        values = []
        for entry in entries or []:
            if isinstance(entry, dict):
                entry = entry["loss"]
            values.append(float(entry))
        return values


def load_reports(bank: NodeProcess, job_id: str) -> Reports:
    """Ask the bank for the reports of a job. Raises `DemoFailed`."""
    outputs_url = f"{bank.operator}/api/v1/jobs/{job_id}/outputs"
    values = {}
    for output in request("GET", outputs_url)["outputs"]:
        values[output["task"], output["key"]] = output["value"]
    table = request("GET", f"{outputs_url}/intersect/guest.0/report0")
    return Reports(
        intersect=values.get(("intersect", "report0")),
        common_ids=str(dict(table["rows"])["intersection"]),
        losses=values.get(("secureboost", "report0")) or {},
        scores=values.get(("secureboost", "report1")) or {},
    )


def print_result(
    reports: Reports,
    nodes: Sequence[NodeProcess],
    console: Console,
) -> None:
    """Print the quality of the model, and the folders of both nodes."""
    table = _plain_table("Result at the bank")
    table.add_row(t("common ids"), reports.common_ids)
    scores = reports.scores
    table.add_row(
        t("AUC, both together"), f"[bold]{scores.get('auc'):.4f}[/]   KS {scores.get('ks'):.4f}"
    )
    local = scores.get("local_baseline")
    if local:
        table.add_row(
            t("AUC, the bank alone"), f"{local.get('auc'):.4f}   KS {local.get('ks'):.4f}"
        )
    losses = [f"{value:.4f}" for value in reports.loss_values]
    table.add_row(t("loss per tree"), "  ".join(losses))
    console.print()
    console.print(table)
    console.print(_folders(nodes))


def _folders(nodes: Sequence[NodeProcess]) -> Table:
    table = _plain_table("Where things lie")
    for node in nodes:
        table.add_row(
            t(f"{node.name}: models and reports"),
            str(node.home / "storage"),
        )
        table.add_row(
            t(f"{node.name}: logs of the runs"),
            str(node.home / "state" / "runs"),
        )
        table.add_row(
            t(f"{node.name}: the gateway's log"),
            str(node.home / "gateway.log"),
        )
    return table


def _plain_table(title: str) -> Table:
    return Table(
        title=t(title),
        title_justify="left",
        show_header=False,
        box=None,
    )
