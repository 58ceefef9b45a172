"""What there is to know of a job below the table of its tasks, line by line."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.cli.command import amount
from gateway.cli.language import t
from gateway.errors import counted

_TOPICS_SHOWN = 10


def lineage(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield which job this one reruns or continues, and what it takes over."""
    inherited = ", ".join(dict.fromkeys(run["task_name"] for run in job.get("inherited_runs", [])))
    inherited = f"; taken over: {inherited}" if inherited else ""
    if origin := job.get("origin"):
        changed = (
            f", other parameters for {', '.join(origin['changed'])}" if origin["changed"] else ""
        )
        yield f"reruns {origin['job_id']} from {origin['start']}{changed}{inherited}"
    elif job.get("old_job_id"):
        yield f"continues {job['old_job_id']}{inherited}"


def on_channel(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the unread messages of each topic, the runs that wait for one, and what has come in all."""
    for on in job.get("channel", [])[:_TOPICS_SHOWN]:
        left = f"{counted(on['messages'], 'message')}, {on['bytes']} bytes, the oldest for {on['oldest']:.0f} s"
        rate = f"{amount(on['bytes_per_second'])}/s now" if on["bytes_per_second"] else ""
        waits = f"{', '.join(on['readers'])} waiting" if on["readers"] else ""
        facts = filter(None, (left if on["messages"] else "", rate, waits))
        yield f"channel, topic {on['topic']}: " + "; ".join(facts)
    if refused := job.get("channel_refused"):
        yield f"channel, last refused {refused}"
    for of in job.get("channel_received", []):
        received = f"{counted(of['messages'], 'message')}, {amount(of['bytes'])}"
        yield f"channel, {of['session']}: {received} received, {amount(of['bytes_per_second'])}/s now"


def away(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the runs here whose engine does not answer."""
    for run in [run for run in job["runs"] if run.get("away_at") and run.get("waiting")]:
        yield f"{run['task_name']} as {run['party']}: {run['waiting']['message']}"


def last_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the end of what each failed run here wrote, and where the whole is."""
    for run, last in [one for one in _that_count(job) if one[0].get("last_lines")][-3:]:
        where = shlex.join(
            ["job", "logs", job["job_id"], "--task", run["task_name"], "--party", run["party"]]
        )
        where = f" (all: {where})" if last else f", attempt {run['attempt'] + 1}"
        yield t(f"last lines of {run['task_name']} as {run['party']}{where}:")
        yield from (f"  {' '.join(line[:300].splitlines())}" for line in run["last_lines"][-10:])


def warnings(job: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the scheduling node, of this one and of its runs."""
    runs = [(f"{run['task_name']} as {run['party']}", run) for run, _ in _that_count(job)]
    ours = [f"{what}: {one}" for what, run in runs for one in run.get("warnings", [])]
    return list(dict.fromkeys([*job.get("warnings", []), *job.get("local_warnings", []), *ours]))


def in_short(
    warnings: Sequence[str],
    job_id: str,
    most: int | None,
) -> list[str]:
    """Return the first warnings as lines, and where the others are."""
    hidden = len(warnings) - most if most is not None else 0
    rest = (
        [f"{counted(hidden, 'more warning')}: bfia-gateway job show {shlex.quote(job_id)}"]
        if hidden > 0
        else []
    )
    return [*(f"warning: {warning}" for warning in warnings[:most]), *rest]


def _that_count(job: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], bool]]:
    """Return the runs here, each with whether it is the last try; none of a stopped job or before a success."""
    runs = job.get("runs", []) if job.get("outcome") != "STOPPED" else []
    last = {(run["task_name"], run["party"]): run for run in runs}
    tried = [(run, last[run["task_name"], run["party"]]) for run in runs]
    return [
        (run, run is last) for run, last in tried if run is last or last.get("status") != "SUCCESS"
    ]
